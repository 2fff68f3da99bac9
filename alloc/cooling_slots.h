// Slots of one size class that cool on one stream, in the order in which they
// were freed, in eight bytes each.
//
// Each belongs to a batch; batches follow one another. The stream takes the
// newest back, and whole batches leave from the other end. Push and Pop are
// O(1). Not thread-safe.

#ifndef QUIRE_ALLOC_COOLING_SLOTS_H_
#define QUIRE_ALLOC_COOLING_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "alloc/span.h"

namespace quire {

class CoolingSlots {
 public:
  // Host memory for each.
  static constexpr size_t kSlotBytes = sizeof(uint64_t);

  struct Entry {
    Block block;
    uint64_t batch;
  };

  bool empty() const { return slots_.empty(); }
  size_t size() const { return slots_.size(); }

  // REQUIRES: the batch is that of the newest entry, or a later one.
  void Push(Entry entry);
  // The newest; nullopt where there is none.
  std::optional<Entry> Pop();
  // Those of batches before this one go to `slots`, the oldest first.
  void TakeBefore(uint64_t batch, std::vector<Block>* slots);
  // Those of the slab go. Returns the batch of each. O(size).
  std::vector<uint64_t> Remove(const Span* slab);
  // Each, the newest first, until `wanted` returns false.
  void ForEach(absl::FunctionRef<bool(const Entry&)> wanted) const;

 private:
  // A span lies at a multiple of 64 in the lower half of 2^48 addresses, which
  // leaves kSlotBits.
  using Packed = uint64_t;
  static constexpr int kAlignmentBits = 6;
  static_assert(47 - kAlignmentBits + kSlotBits == 64);
  static_assert(alignof(Span) == size_t{1} << kAlignmentBits);

  static Packed Pack(const Block& block);
  static Block Unpack(Packed packed);

  struct Run {
    uint64_t batch;
    uint64_t slots;  // side by side in slots_; not 0
  };

  std::deque<Packed> slots_;
  std::deque<Run> runs_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_COOLING_SLOTS_H_
