#include "alloc/run_set.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"

namespace quire {

void RunSet::Add(const ByteRun& run) {
  runs_.emplace(run.begin, run);
  by_length_.emplace(run.length, run.begin);
  bytes_ += run.length;
}

ByteRun RunSet::Remove(absl::btree_map<uint64_t, ByteRun>::const_iterator run) {
  const ByteRun removed = run->second;
  by_length_.erase({removed.length, removed.begin});
  runs_.erase(run);
  bytes_ -= removed.length;
  return removed;
}

// The last run that begins at or before the address.
absl::btree_map<uint64_t, ByteRun>::const_iterator RunSet::LastFrom(
    uint64_t address) const {
  const auto after = runs_.upper_bound(address);
  return after == runs_.begin() ? runs_.end() : std::prev(after);
}

ByteRun RunSet::Insert(ByteRun run,
                       absl::FunctionRef<void(const ByteRun&)> joined) {
  const auto join = [&](const ByteRun& neighbour) {
    run.begin = std::min(run.begin, neighbour.begin);
    run.length += neighbour.length;
    run.batch = std::max(run.batch, neighbour.batch);
    joined(neighbour);
  };
  if (const auto before = LastFrom(run.begin);
      before != runs_.end() && before->second.end() == run.begin) {
    join(Remove(before));
  }
  if (const auto behind = runs_.find(run.end()); behind != runs_.end()) {
    join(Remove(behind));
  }
  Add(run);
  return run;
}

ByteRun RunSet::Take(uint64_t begin, uint64_t length) {
  const ByteRun run = Remove(LastFrom(begin));
  const uint64_t end = begin + length;
  if (begin > run.begin) Add({run.begin, begin - run.begin, run.batch});
  if (run.end() > end) Add({end, run.end() - end, run.batch});
  return run;
}

std::optional<uint64_t> RunSet::FindFit(uint64_t bytes, Bytes alignment) const {
  const uint64_t mask = alignment.value() - 1;
  for (auto it = by_length_.lower_bound({bytes, 0}); it != by_length_.end();
       ++it) {
    const auto [length, begin] = *it;
    const uint64_t skipped = (alignment.value() - (begin & mask)) & mask;
    if (skipped <= length - bytes) return begin + skipped;
  }
  return std::nullopt;
}

std::optional<ByteRun> RunSet::FindAround(uint64_t begin,
                                          uint64_t length) const {
  const auto run = LastFrom(begin);
  if (run == runs_.end() || begin + length > run->second.end()) {
    return std::nullopt;
  }
  return run->second;
}

absl::Status RunSet::CheckInvariants() const {
  uint64_t bytes = 0;
  uint64_t end = 0;
  for (const auto& [begin, run] : runs_) {
    if (run.length == 0 || run.begin != begin || (bytes > 0 && begin <= end) ||
        !by_length_.contains({run.length, begin})) {
      return absl::InternalError(absl::StrFormat(
          "run at %#x: empty, not maximal, or not listed", begin));
    }
    bytes += run.length;
    end = run.end();
  }
  if (bytes != bytes_ || runs_.size() != by_length_.size()) {
    return absl::InternalError("runs miscounted");
  }
  return absl::OkStatus();
}

}  // namespace quire
