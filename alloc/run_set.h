// Bytes that nobody holds, as maximal runs of addresses, for best fit.
//
// Each run is of a batch of frees (StreamFreeList): bytes that touch are one
// run, of the later batch. Who has no batches gives 0 for all.
//
// Invariants: runs are not empty, and no two of them touch. Every operation is
// O(log runs), FindFit with an alignment above that of most runs apart. Not
// thread-safe.

#ifndef QUIRE_ALLOC_RUN_SET_H_
#define QUIRE_ALLOC_RUN_SET_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "quire/alloc/units.h"

namespace quire {

struct ByteRun {
  uint64_t begin = 0;
  uint64_t length = 0;
  uint64_t batch = 0;

  uint64_t end() const { return begin + length; }
};

class RunSet {
 public:
  bool empty() const { return runs_.empty(); }
  size_t size() const { return runs_.size(); }
  uint64_t bytes() const { return bytes_; }
  // Grows whenever a run comes or goes.
  uint64_t changes() const { return changes_; }
  // Of the longest run; 0 where there is none.
  uint64_t largest() const {
    return by_length_.empty() ? 0 : by_length_.rbegin()->first;
  }

  // Adds bytes; tells `joined` of each run that becomes part of theirs. Returns
  // that. REQUIRES: length > 0, and none of the bytes is here.
  ByteRun Insert(
      ByteRun run, absl::FunctionRef<void(const ByteRun&)> joined =
                       [](const ByteRun& /*run*/) {});
  // Takes bytes out of the run that has them all. Returns the run as it was:
  // what is left of it on both sides stays. REQUIRES: there is one.
  ByteRun Take(uint64_t begin, uint64_t length);

  // Where `bytes` lie best at a multiple of `alignment`: at the beginning of
  // the smallest run that has room for them, the lowest among equals. REQUIRES:
  // alignment is a power of two.
  std::optional<uint64_t> FindFit(uint64_t bytes, Bytes alignment) const;
  // The run that has all of the bytes.
  std::optional<ByteRun> FindAround(uint64_t begin, uint64_t length) const;

  // By address, and by length and address.
  const absl::btree_map<uint64_t, ByteRun>& runs() const { return runs_; }
  const absl::btree_set<std::pair<uint64_t, uint64_t>>& by_length() const {
    return by_length_;
  }

  absl::Status CheckInvariants() const;

 private:
  using Runs = absl::btree_map<uint64_t, ByteRun>;

  void Add(const ByteRun& run);
  ByteRun Remove(Runs::iterator run);
  // The run keeps its beginning.
  void Resize(Runs::iterator run, uint64_t length, uint64_t batch);

  Runs runs_;
  absl::btree_set<std::pair<uint64_t, uint64_t>> by_length_;
  uint64_t bytes_ = 0;
  uint64_t changes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_RUN_SET_H_
