// The runs of two sets, by address, those that touch as one.
//
// They are kept until one of the sets has changed: who asks whether bytes lie
// side by side, and plans a detour where they do not, goes through both once.

#ifndef QUIRE_ALLOC_JOINED_RUNS_H_
#define QUIRE_ALLOC_JOINED_RUNS_H_

#include <cstdint>
#include <vector>

#include "alloc/piece.h"
#include "alloc/run_set.h"

namespace quire {

// Not thread-safe.
class JoinedRuns {
 public:
  // REQUIRES: no byte is in both. O(runs of both), or O(1) where both are as
  // they were the last time. Valid until the next call.
  const std::vector<Piece>& Of(const RunSet& a, const RunSet& b);
  // A set is gone: another one may lie where it was.
  void Forget() { a_ = b_ = nullptr; }

 private:
  const RunSet* a_ = nullptr;
  const RunSet* b_ = nullptr;
  uint64_t a_changes_ = 0;
  uint64_t b_changes_ = 0;
  std::vector<Piece> joined_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_JOINED_RUNS_H_
