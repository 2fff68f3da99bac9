// The host memory that a driver has pinned: what it allocated, and what callers
// gave it. Ranges lie apart.
//
// Not thread-safe; operations take O(log n) of n ranges.

#ifndef QUIRE_ALLOC_PINNED_TABLE_H_
#define QUIRE_ALLOC_PINNED_TABLE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

class PinnedTable {
 public:
  enum class Origin {
    kAllocated,  // by AllocatePinned
    kCaller,     // of PinMemory
  };
  struct Range {
    Bytes size;
    Origin origin;
  };

  // REQUIRES: the range lies apart from all others.
  void Add(void* memory, Bytes size, Origin origin);
  // Checks all that can be checked of a range that PinMemory was given, and
  // adds it.
  absl::Status AddOfCaller(void* memory, Bytes size);
  // The range that begins there, which is taken out. kInvalidArgument where
  // there is none of that origin.
  absl::StatusOr<Bytes> Remove(void* memory, Origin origin);

  // By start.
  const std::map<void*, Range>& ranges() const { return ranges_; }
  void AppendLeaks(std::vector<std::string>* leaks) const;

 private:
  std::map<void*, Range> ranges_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PINNED_TABLE_H_
