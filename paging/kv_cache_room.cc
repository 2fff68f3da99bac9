// Pages that are given back while the device computes: of what stays mapped
// behind sequences that ended, beyond the limit of that, and of what is kept
// for others, where an admission is to come.
//
// A page takes the driver some 25 us to unmap, and a long sequence has
// thousands: all of them in one step would outlast what the device computes. So
// they are given back as far as the time goes (page_ahead.h), the rest in later
// steps. Nobody lacks them meanwhile: whoever needs one takes it at once.

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "paging/kv_cache_impl.h"

namespace quire {
namespace {

// At a time, between which Admit and Step get their turn: 0.4 ms.
constexpr PageCount kPiece = PageCount(16);

}  // namespace

void KvCache::Impl::CountCalls(uint64_t start, PageCount returned) {
  if (options_.page_ahead.max_steps == 0) return;
  const uint64_t nanoseconds = SaturatingSubtract(Now(), start);
  MutexLock lock(&state_mutex_);
  horizon_.OnCalls(nanoseconds);
  horizon_.OnReturned(nanoseconds, returned);
}

PageCount KvCache::Impl::PieceInTime() const {
  return std::clamp(horizon_.ReturnsInTime(), PageCount(1), kPiece);
}

// ---- What ended -------------------------------------------------------------

bool KvCache::Impl::TrimAhead() {
  {
    MutexLock lock(&state_mutex_);
    if (!trim_) return false;
  }
  const uint64_t start = Now();
  PageCount given;
  {
    MutexLock operation(&operation_mutex_);
    MutexLock lock(&state_mutex_);
    given = Trim(PieceInTime(), /*complete_only=*/true);
  }
  CountCalls(start, given);
  return !given.zero();
}

PageCount KvCache::Impl::Trim(PageCount most, bool complete_only) {
  PageCount given;
  TrimAdopted(most, &given);
  // No page of a region without a prefix lies elsewhere too.
  const uint64_t excess = SaturatingSubtract(totals_.parked - totals_.cached,
                                             ParkedLimit().value());
  const PageCount before = given;
  const PageCount wanted(
      std::min(SaturatingAdd(before.value(), excess), most.value()));
  ReclaimSpare(ParkedRegionsThatAre(/*cached=*/false), wanted, complete_only,
               &given);
  for (std::unique_ptr<KvRegion>& region : parked_.TakeDamaged())
    Dispose(std::move(region));
  trim_ = !adopted_.empty() || given.value() - before.value() < excess;
  return given;
}

void KvCache::Impl::TrimAdopted(PageCount most, PageCount* given) {
  while (!adopted_.empty() && *given < most) {
    const auto slot = FindResident(adopted_.back());
    if (!slot) {
      adopted_.pop_back();
      continue;
    }
    const KvSequence& sequence = sequences_[*slot];
    const auto pages =
        GiveBack(sequence.region.get(),
                 PageCount(most.value() - given->value()), PagesSoon(sequence));
    if (pages.ok()) *given = Plus(*given, *pages);
    // That, or a refusal, was all.
    if (!pages.ok() || *given < most) adopted_.pop_back();
  }
}

std::vector<PageCount> KvCache::Impl::PagesSoon(
    const KvSequence& sequence) const {
  const uint64_t ahead =
      uint64_t{sequence.growth} * options_.page_ahead.max_steps;
  const uint64_t tokens = std::min(
      std::max(sequence.region->used_tokens(), sequence.length + ahead),
      geometry_.max_tokens());
  std::vector<PageCount> pages;
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group)
    pages.push_back(Plus(geometry_.PagesOf(group, tokens), options_.map_ahead));
  return pages;
}

// ---- What is to come --------------------------------------------------------

bool KvCache::Impl::PrepareRoom(std::span<const int32_t> prompt,
                                const SequenceGrowth& growth) {
  if (options_.page_ahead.max_steps == 0) return true;
  const uint64_t start = Now();
  PageCount lacking;
  PageCount given;
  {
    MutexLock operation(&operation_mutex_);
    PrefixEntryId pinned;
    PageCount needed;
    PageCount most;
    {
      MutexLock lock(&state_mutex_);
      most = horizon_.ReturnsInTime();
      // Some of it in each step, however short, so that it comes to an end.
      if (std::exchange(room_step_, counted_.steps) != counted_.steps)
        most = std::max(most, kPiece);
      if (most.zero()) return false;
      PrefixIndex::Found found;
      if (!prompt.empty() &&
          growth.limit.value_or(options_.limit) == options_.limit)
        found = index_.Match(prompt.first(prompt.size() - 1));
      needed = PagesToAdmit(found.tokens, growth);
      if (found.tokens > 0) {
        pinned = found.holder;
        index_.Pin(pinned);
      }
    }
    lacking = PageCount(
        SaturatingSubtract(needed.value(), GetSupply().at_once.value()));
    if (!lacking.zero()) given = ReclaimIdle(std::min(lacking, most));
    MutexLock lock(&state_mutex_);
    if (pinned != PrefixEntryId()) index_.Unpin(pinned);
  }
  CountCalls(start, given);
  // What is not to be had in this way, the admission finds or does not.
  return given >= lacking || given.zero();
}

PageCount KvCache::Impl::PagesToAdmit(uint64_t cached,
                                      const SequenceGrowth& growth) const {
  const bool keeps_all = KeepsAllTokens(growth.limit.value_or(options_.limit));
  const uint64_t tokens =
      keeps_all
          ? growth.tokens
          : std::min(growth.tokens, SaturatingAdd(cached, growth.step_tokens));
  PageCount pages = bare_.PagesToGrow({.computed = cached,
                                       .backed = cached,
                                       .tokens = tokens,
                                       .step_tokens = growth.step_tokens,
                                       .limit = growth.limit});
  // The last page of what is cached is copied.
  if (cached > 0) return Plus(pages, PageCount(geometry_.layout().groups()));
  if (!keeps_all) return pages;
  for (const KvRegion* region : ParkedRegionsThatAre(/*cached=*/false))
    pages = std::min(pages, region->MappingWork(tokens));
  return pages;
}

}  // namespace quire
