// The pages under the sequences: committed, given back, reclaimed.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {

absl::StatusOr<bool> KvCache::Impl::Back(std::span<PageDemand> demands,
                                         PageCount headroom) {
  std::vector<PlannedRun> plan;
  PageCount missing;
  {
    MutexLock lock(&state_mutex_);
    std::vector<PageRun> runs;
    for (PageDemand& demand : demands) {
      demand.previous = demand.region->used_tokens();
      Modify(demand.region,
             [&](KvRegion* r) { r->set_used_tokens(demand.tokens); });
      runs.clear();
      demand.region->AppendMissing(&runs);
      for (const PageRun& run : runs) {
        plan.push_back({demand.region, run});
        missing = Plus(missing, run.count);
      }
    }
  }
  if (plan.empty() && headroom.zero()) return false;

  const PageSupply supply = GetSupply();
  const absl::Status status = Plus(missing, headroom) > supply.in_all
                                  ? Shortage(missing, headroom)
                                  : CommitPlan(plan, supply);
  if (!status.ok()) {
    MutexLock lock(&state_mutex_);
    for (const PageDemand& demand : demands)
      Modify(demand.region,
             [&](KvRegion* r) { r->set_used_tokens(demand.previous); });
    return status;
  }
  MutexLock lock(&state_mutex_);
  counted_.runs_mapped += plan.size();
  return !plan.empty();
}

absl::Status KvCache::Impl::BackBehindGaps(KvRegion* region,
                                           std::span<const PageCount> behind,
                                           uint64_t tokens,
                                           PageCount headroom) {
  // A region that has no token begins with the sinks.
  std::vector<PlannedRun> sinks;
  std::vector<uint32_t> gaps;
  {
    MutexLock lock(&state_mutex_);
    for (uint32_t group = 0; group < behind.size(); ++group) {
      const PageCount first = region->behind(group);
      if (behind[group] <= first) continue;
      gaps.push_back(group);
      if (!first.zero())
        sinks.push_back({region, {group, PageCount(0), first}});
    }
  }
  QUIRE_RETURN_IF_ERROR(CommitRuns(sinks, Patience::kWait));
  {
    MutexLock lock(&state_mutex_);
    for (const uint32_t group : gaps)
      Modify(region, [&](KvRegion* r) { r->ReopenGap(group, behind[group]); });
  }
  PageDemand demand{region, tokens};
  return Back(std::span(&demand, 1), headroom).status();
}

// Pages ahead are worth no wait and nobody else's page: they are mapped where
// the supply has them at once, and left out where that fails all the same.
absl::Status KvCache::Impl::CommitPlan(std::span<const PlannedRun> plan,
                                       PageSupply supply) {
  if (!options_.map_ahead.zero()) {
    const std::vector<PlannedRun> ahead = WithMapAhead(plan);
    PageCount wanted = options_.headroom;
    for (const PlannedRun& planned : ahead)
      wanted = Plus(wanted, planned.run.count);
    if (wanted <= supply.at_once && CommitRuns(ahead, Patience::kWait).ok())
      return absl::OkStatus();
  }
  return CommitRuns(plan, Patience::kWait);
}

std::vector<PlannedRun> KvCache::Impl::WithMapAhead(
    std::span<const PlannedRun> plan) const {
  std::vector<PlannedRun> ahead(plan.begin(), plan.end());
  for (PlannedRun& planned : ahead) {
    const PageCount capacity =
        geometry_.PagesOf(planned.run.group, geometry_.max_tokens());
    planned.run.count =
        std::min(Plus(planned.run.count, options_.map_ahead),
                 PageCount(capacity.value() - planned.run.first.value()));
  }
  return ahead;
}

absl::Status KvCache::Impl::CommitRuns(std::span<const PlannedRun> runs,
                                       Patience patience) {
  absl::Status status;
  size_t done = 0;
  for (; done < runs.size(); ++done) {
    const auto& [region, run] = runs[done];
    status = AwaitUnsharing(region);
    if (!status.ok()) break;
    status =
        patience == Patience::kWait
            ? memory_->Commit(region->range(), SlotInRange(run), run.count)
            : memory_->TryCommit(region->range(), SlotInRange(run), run.count);
    if (!status.ok()) break;
  }
  MutexLock lock(&state_mutex_);
  if (absl::IsDataLoss(status)) runs[done].region->set_damaged();
  for (size_t i = 0; i < done; ++i) {
    const auto& [region, run] = runs[i];
    Modify(region, [&run = run](KvRegion* r) {
      r->set_committed(run.group, Plus(run.first, run.count));
    });
    // Under the region's fence: a page that still cooled became live again, and
    // is no safer to re-use than before. A refusal is the region's damage, and
    // not what the caller should hear of.
    if (!status.ok()) Decommit(region, run).IgnoreError();
  }
  return status;
}

absl::Status KvCache::Impl::AwaitUnsharing(KvRegion* region) {
  std::vector<Fence> cooling;
  {
    MutexLock lock(&state_mutex_);
    if (!region->unsharing()) return absl::OkStatus();
    cooling = region->cooling();
  }
  // Pages that are needed now do not begin to cool meanwhile; others may.
  for (const Fence& fence : cooling) QUIRE_RETURN_IF_ERROR(fence.Wait());
  memory_->Harvest();
  MutexLock lock(&state_mutex_);
  if (region->cooling() == cooling) region->EndUnsharing();
  return absl::OkStatus();
}

absl::Status KvCache::Impl::Decommit(KvRegion* region, const PageRun& run) {
  const bool shared = shared_.AnyShared(*region, run.group,
                                        static_cast<size_t>(run.first.value()));
  if (region->fence() != Fence()) region->AddCooling(region->fence(), shared);
  const absl::Status status = memory_->Decommit(
      region->range(), SlotInRange(run), run.count, region->fence());
  Modify(region, [&](KvRegion* r) { r->Remove(run); });
  if (!status.ok()) region->set_damaged();
  return status;
}

absl::StatusOr<PageCount> KvCache::Impl::GiveBack(
    KvRegion* region, PageCount wanted, std::span<const PageCount> kept) {
  const uint64_t before = CountPages().spare;
  FreeTails(region, kept);
  const uint64_t left =
      SaturatingSubtract(wanted.value(), before - CountPages().spare);
  absl::Status status;
  for (const PageRun& run : region->SpareRuns(PageCount(left), kept)) {
    status = Decommit(region, run);
    if (!status.ok()) break;
  }
  CutPrefix(region);
  QUIRE_RETURN_IF_ERROR(status);
  // A page that lies under another slot is no page less.
  return PageCount(before - CountPages().spare);
}

// Cheapest loss first: parked regions in the order of parking, what admitted
// sequences have to spare, what lies behind prefixes, and then prefixes; in a
// second round the pages that only cool, because a kernel may still read them;
// and last what was left under sequences that are swapped out, which has to be
// copied to the host first.
PageCount KvCache::Impl::Reclaim(PageCount wanted) {
  MutexLock lock(&state_mutex_);
  std::vector<KvRegion*> plain = ParkedRegionsThatAre(/*cached=*/false);
  for (const KvSequence& sequence : sequences_) {
    if (sequence.region && !sequence.swapped)
      plain.push_back(sequence.region.get());
  }
  const std::vector<KvRegion*> cached = ParkedRegionsThatAre(/*cached=*/true);
  PageCount given;
  for (const bool complete_only : {true, false}) {
    ReclaimSpare(plain, wanted, complete_only, &given);
    ReclaimSpare(cached, wanted, complete_only, &given);
    ReclaimPrefixes(wanted, complete_only, &given);
  }
  ReclaimSwapped(wanted, &given);
  for (std::unique_ptr<KvRegion>& region : parked_.TakeDamaged())
    Dispose(std::move(region));
  // With no page left to give, what is short may be addresses.
  if (given < wanted) {
    for (std::unique_ptr<KvRegion>& region : parked_.TakeEmpty())
      Dispose(std::move(region));
  }
  return given;
}

std::vector<KvRegion*> KvCache::Impl::ParkedRegionsThatAre(bool cached) const {
  std::vector<KvRegion*> regions = parked_.OldestFirst();
  std::erase_if(regions, [&](const KvRegion* region) {
    return IsCached(*region) != cached;
  });
  return regions;
}

void KvCache::Impl::ReclaimSpare(std::span<KvRegion* const> regions,
                                 PageCount wanted, bool complete_only,
                                 PageCount* given) {
  for (KvRegion* region : regions) {
    if (*given >= wanted) return;
    if (region->spare().zero()) continue;
    if (complete_only && !region->FenceIsComplete()) continue;
    // A region that the driver refuses is skipped: the next one may serve.
    const auto pages =
        GiveBack(region, PageCount(wanted.value() - given->value()),
                 PagesOfPrefix(*region));
    if (pages.ok()) *given = Plus(*given, *pages);
  }
}

PageCount KvCache::Impl::ReclaimIdle(PageCount wanted) {
  MutexLock lock(&state_mutex_);
  PageCount given;
  ReclaimSpare(ParkedRegionsThatAre(/*cached=*/false), wanted,
               /*complete_only=*/true, &given);
  ReclaimSpare(ParkedRegionsThatAre(/*cached=*/true), wanted,
               /*complete_only=*/true, &given);
  ReclaimPrefixes(wanted, /*complete_only=*/true, &given);
  return given;
}

PageSupply KvCache::Impl::GetSupply() const {
  const DeviceMemoryStatistics memory = memory_->GetStatistics();
  const auto pages = [&](Bytes bytes) {
    return PageCount(bytes.value() / geometry_.page_size().value());
  };
  const OwnerStatistics owner = memory_->GetOwnerStatistics(options_.owner);
  const PageCount at_once = Plus(pages(memory.growable), pages(memory.cached));
  const PageCount reclaimable = memory_->ReclaimablePages();
  PageSupply supply;
  supply.at_once = std::min(at_once, pages(owner.allowance));
  // What caches give makes room below a limit of the owner as well.
  supply.in_all = Plus(
      std::min(Plus(at_once, pages(memory.cooling)), pages(owner.hard_room)),
      reclaimable);
  return supply;
}

absl::Status KvCache::Impl::Shortage(PageCount wanted,
                                     PageCount headroom) const {
  const absl::Status status = memory_->DescribeShortage(
      Plus(wanted, headroom), options_.owner, VerdictDetail::kBrief);
  auto verdict = OutOfMemoryVerdict::FromStatus(status);
  if (!verdict) return status;
  verdict->advice += absl::StrCat(
      "; the KV cache needs ", wanted.value(), " pages and a headroom of ",
      headroom.value(), ": release or preempt a sequence, or try again later");
  return verdict->ToStatus();
}

}  // namespace quire
