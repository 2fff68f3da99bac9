#include "alloc/joined_runs.h"

namespace quire {

const std::vector<Piece>& JoinedRuns::Of(const RunSet& a, const RunSet& b) {
  if (a_ == &a && b_ == &b && a_changes_ == a.changes() &&
      b_changes_ == b.changes()) {
    return joined_;
  }
  a_ = &a;
  b_ = &b;
  a_changes_ = a.changes();
  b_changes_ = b.changes();
  joined_.clear();
  uint64_t end = 0;
  const auto add = [&](const ByteRun& run) {
    if (run.begin == end && !joined_.empty()) {
      joined_.back().length += run.length;
    } else {
      joined_.push_back({run.begin, run.length});
    }
    end = run.end();
  };
  auto next_a = a.runs().begin();
  auto next_b = b.runs().begin();
  const auto end_a = a.runs().end();
  const auto end_b = b.runs().end();
  while (next_a != end_a && next_b != end_b) {
    if (next_a->first < next_b->first) {
      add(next_a->second);
      ++next_a;
    } else {
      add(next_b->second);
      ++next_b;
    }
  }
  for (; next_a != end_a; ++next_a) add(next_a->second);
  for (; next_b != end_b; ++next_b) add(next_b->second);
  return joined_;
}

}  // namespace quire
