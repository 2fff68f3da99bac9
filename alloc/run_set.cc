#include "alloc/run_set.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"

namespace quire {

namespace {

// The last run that begins at or before the address.
template <typename Runs>
auto LastFrom(Runs& runs, uint64_t address) {
  const auto after = runs.upper_bound(address);
  return after == runs.begin() ? runs.end() : std::prev(after);
}

}  // namespace

void RunSet::Add(const ByteRun& run) {
  runs_.emplace(run.begin, run);
  by_length_.emplace(run.length, run.begin);
  bytes_ += run.length;
  ++changes_;
}

ByteRun RunSet::Remove(Runs::iterator run) {
  const ByteRun removed = run->second;
  by_length_.erase({removed.length, removed.begin});
  runs_.erase(run);
  bytes_ -= removed.length;
  ++changes_;
  return removed;
}

void RunSet::Resize(Runs::iterator run, uint64_t length, uint64_t batch) {
  ByteRun& resized = run->second;
  by_length_.erase({resized.length, resized.begin});
  by_length_.emplace(length, resized.begin);
  bytes_ = bytes_ - resized.length + length;
  resized.length = length;
  resized.batch = batch;
  ++changes_;
}

ByteRun RunSet::Insert(ByteRun run,
                       absl::FunctionRef<void(const ByteRun&)> joined) {
  const auto join = [&](const ByteRun& neighbour) {
    run.begin = std::min(run.begin, neighbour.begin);
    run.length += neighbour.length;
    run.batch = std::max(run.batch, neighbour.batch);
    joined(neighbour);
  };
  auto before = LastFrom(runs_, run.begin);
  const bool continues =
      before != runs_.end() && before->second.end() == run.begin;
  if (continues) join(before->second);
  if (const auto behind = runs_.find(run.end()); behind != runs_.end()) {
    join(Remove(behind));
    if (continues) before = runs_.find(run.begin);
  }
  if (continues) {
    Resize(before, run.length, run.batch);
  } else {
    Add(run);
  }
  return run;
}

ByteRun RunSet::Take(uint64_t begin, uint64_t length) {
  const auto found = LastFrom(runs_, begin);
  const ByteRun run = found->second;
  const uint64_t end = begin + length;
  if (begin > run.begin) {
    Resize(found, begin - run.begin, run.batch);
  } else {
    Remove(found);
  }
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
  const auto run = LastFrom(runs_, begin);
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
