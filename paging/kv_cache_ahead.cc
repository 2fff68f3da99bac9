// Pages that the next steps will need, mapped before they are needed.
//
// Where none are free, they are taken from what no sequence has: parked regions
// and the ends of kept prefixes, whose pages the step would take as well, and
// wait for. Never from what is mapped ahead for others. The headroom, which
// admissions leave for the growth of those that run, is theirs.
//
// One run of pages at a time, or one prefix where prompts part, between which
// Admit and Step get their turn: they wait for the calls of one at most. What
// the next step will need comes first of all; the rest as far as the time goes
// in which the device computes.

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "paging/kv_cache_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {

uint64_t KvCache::Impl::Now() const {
  if (options_.page_ahead.clock) return options_.page_ahead.clock();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

absl::Status KvCache::Impl::StartAhead() {
  QUIRE_ASSIGN_OR_RETURN(
      ahead_thread_, PrepareThread::Start([this] {
        if (waiting_.load(std::memory_order_relaxed) > 0)
          return PrepareThread::Progress::kMade;  // after a yield
        const HookDeferral deferral(memory_);
        const absl::StatusOr<AheadPiece> piece = PrepareOne(std::nullopt);
        CheckAfterMutation();
        if (!piece.ok()) return PrepareThread::Progress::kRefused;
        return piece->more ? PrepareThread::Progress::kMade
                           : PrepareThread::Progress::kEnough;
      }));
  return absl::OkStatus();
}

absl::StatusOr<PageCount> KvCache::Impl::PrepareAhead(
    std::optional<uint32_t> steps) {
  PageCount mapped;
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const AheadPiece piece, PrepareOne(steps));
    if (!piece.more) return mapped;
    mapped = Plus(mapped, piece.mapped);
  }
}

void KvCache::Impl::PlanAhead(uint64_t now, PageCount pages) {
  // A scheduler may step one sequence alone within a batch.
  if (batch_ != std::exchange(timed_batch_, batch_) || batch_ == 1)
    horizon_.OnStep(now, pages);
  if (ahead_thread_ != nullptr &&
      (dropped_ || trim_ || branches_ > 0 ||
       MostUrgent(horizon_.steps()).region != nullptr))
    ahead_thread_->Wake();
}

PageDemand KvCache::Impl::MostUrgent(uint32_t steps) const {
  PageDemand most{nullptr, 0};
  uint64_t soonest = steps;
  for (const KvSequence& sequence : sequences_) {
    // What the driver refused to map would be tried, and refused, for ever.
    if (!sequence.region || sequence.swapped ||
        sequence.step != attempted_steps_ || sequence.region->damaged() ||
        sequence.region->unsharing())
      continue;
    const uint64_t mapped = sequence.region->mapped_tokens();
    const uint64_t prompt = sequence.region->PromptAfterStep(sequence.length);
    if (mapped < prompt && steps > 0) return {sequence.region.get(), prompt};
    const uint64_t steps_left =
        SaturatingSubtract(mapped, sequence.length) / sequence.growth;
    if (steps_left >= soonest || mapped >= geometry_.max_tokens()) continue;
    soonest = steps_left;
    most = {sequence.region.get(),
            std::min(SaturatingAdd(sequence.length,
                                   uint64_t{sequence.growth} * steps),
                     geometry_.max_tokens())};
  }
  return most;
}

// The time includes what it takes to get the locks, under which no clock of a
// caller is read: it is time that a mapping needs as well. A caller who says
// how far ahead knows what time there is.
absl::StatusOr<KvCache::Impl::AheadPiece> KvCache::Impl::PrepareOne(
    std::optional<uint32_t> steps) {
  bool in_time = true;
  if (!steps) {
    MutexLock lock(&state_mutex_);
    in_time = horizon_.InTime();
  }
  AheadPiece piece;
  if (in_time) {
    piece.more = ReturnDropped();
    while (waiting_.load(std::memory_order_relaxed) == 0 && KeepBranchAhead())
      continue;
  }
  const uint64_t start = Now();
  QUIRE_ASSIGN_OR_RETURN(
      piece.mapped,
      MapMostUrgent(in_time ? steps : std::optional<uint32_t>(1)));
  if (!piece.mapped.zero()) {
    piece.more = true;
    const uint64_t nanoseconds = SaturatingSubtract(Now(), start);
    MutexLock lock(&state_mutex_);
    horizon_.OnMapped(nanoseconds, piece.mapped);
    horizon_.OnCalls(nanoseconds);
  } else if (in_time) {
    piece.more |= TrimAhead();
  }
  return piece;
}

// The tokens in use are raised while the pages are mapped, so that nobody takes
// pages before them meanwhile.
absl::StatusOr<PageCount> KvCache::Impl::MapMostUrgent(
    std::optional<uint32_t> steps) {
  MutexLock operation(&operation_mutex_);
  PageDemand demand{nullptr, 0};
  PlannedRun planned;
  {
    MutexLock lock(&state_mutex_);
    const uint32_t most = options_.page_ahead.max_steps;
    demand = MostUrgent(std::min(steps.value_or(horizon_.steps()), most));
    if (demand.region == nullptr) return PageCount(0);
    demand.previous = demand.region->used_tokens();
    Modify(demand.region, [&](KvRegion* r) {
      r->set_used_tokens(std::max(demand.previous, demand.tokens));
    });
    std::vector<PageRun> runs;
    demand.region->AppendMissing(&runs);
    planned = {demand.region, runs.front()};
  }
  PageCount& count = planned.run.count;
  PageCount at_once = GetSupply().at_once;
  if (at_once < count &&
      !ReclaimIdle(PageCount(count.value() - at_once.value())).zero())
    at_once = GetSupply().at_once;
  count = std::min(count, at_once);
  absl::Status status;
  if (!count.zero()) {
    mapping_ahead_.store(true, std::memory_order_relaxed);
    status = CommitRuns(std::span(&planned, 1), Patience::kNone);
    mapping_ahead_.store(false, std::memory_order_relaxed);
  }
  MutexLock lock(&state_mutex_);
  Modify(demand.region,
         [&](KvRegion* r) { r->set_used_tokens(demand.previous); });
  // Somebody else took the pages: they need them now.
  if (absl::IsResourceExhausted(status)) return PageCount(0);
  QUIRE_RETURN_IF_ERROR(status);
  if (count.zero()) return count;
  ++counted_.runs_mapped_ahead;
  counted_.pages_mapped_ahead += count.value();
  return count;
}

}  // namespace quire
