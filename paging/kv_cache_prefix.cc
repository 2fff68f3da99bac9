// What is kept of sequences that are gone: the rows that they published.
//
// A region whose sequence has published rows is parked with them. It is its own
// entry in the index, and serves a prompt in one of two ways: where the prompt
// continues all that it holds, the region is adopted, and nothing is mapped or
// copied; otherwise its pages are mapped under another region as well
// (kv_cache_share.cc), and it stays what it was. It is given up page by page
// from its end, or as a whole where a new sequence needs a region and memory or
// addresses are short.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {

PrefixHit KvCache::Impl::FindPrefix(std::span<const int32_t> tokens,
                                    StreamId stream) {
  MutexLock lock(&state_mutex_);
  // The last token is computed in any case.
  if (tokens.empty()) return {};
  const PrefixIndex::Found found =
      index_.Match(tokens.first(tokens.size() - 1));
  PrefixHit hit{.tokens = found.tokens, .known = found.known};
  for (const PrefixEntryId entry : found.exact) {
    KvRegion* const region = holders_.at(entry);
    if (region->parked() && IsWritableFrom(*region, found.tokens) &&
        (region->packed().empty() || stream != StreamId()) &&
        // A sequence that drops tokens leaves the prefix to others.
        tokens.size() + 1 < region->drop_at() && region->FenceIsComplete()) {
      hit.holder = region;
      hit.adoptable = true;
      break;
    }
  }
  if (!hit.adoptable && hit.tokens > 0) {
    hit.holder = holders_.at(found.holder);
    // Rows of layers with windows are copied, always.
    if (stream == StreamId())
      hit.tokens -= hit.holder->KeepsAllTokens() ? hit.tokens % AlignedTokens()
                                                 : hit.tokens;
  }
  if (hit.tokens == 0) return {.known = hit.known};
  // Whoever shares the end of another one ends elsewhere.
  if (found.at_end) index_.Touch(hit.holder->prefix());
  index_.Pin(hit.holder->prefix());
  return hit;
}

bool KvCache::Impl::IsWritableFrom(const KvRegion& region,
                                   uint64_t tokens) const {
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
    const uint64_t first = FullPages(group, tokens);
    if (shared_.AnyShared(region, group, first) ||
        !shared_.LateReaders(region, group, first).empty())
      return false;
  }
  return true;
}

void KvCache::Impl::SetPrefix(KvRegion* region, PrefixEntryId prefix) {
  Modify(region, [&](KvRegion* r) { r->set_prefix(prefix); });
  holders_[prefix] = region;
}

void KvCache::Impl::DropPrefix(KvRegion* region) {
  if (region->prefix() == PrefixEntryId()) return;
  FreeTails(region);
  index_.Remove(region->prefix());
  holders_.erase(region->prefix());
  Modify(region, [](KvRegion* r) { r->set_prefix(PrefixEntryId()); });
}

// Backing is a prefix of each part: behind a page that goes everything goes.
void KvCache::Impl::ForgetPrefix(KvRegion* region) {
  DropPrefix(region);
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
    // A refusal damages the region, which its next user sees.
    if (shared_.AnyShared(*region, group, 0))
      Decommit(region, {group, PageCount(0), region->committed(group)})
          .IgnoreError();
  }
  shared_.Strike(region);
}

void KvCache::Impl::CutPrefix(KvRegion* region) {
  if (region->prefix() == PrefixEntryId()) return;
  index_.Truncate(region->prefix(), TokensHeld(*region));
  if (region->parked())
    index_.Truncate(region->prefix(), index_.FoundTokensOf(region->prefix()));
  FreeLooseEnds(region);
  if (region->parked() && index_.TokensOf(region->prefix()) == 0) {
    ForgetPrefix(region);
    ++counted_.prefixes_evicted;
  }
}

ParkedRegions::Entry KvCache::Impl::TakeVictim(PageCount least,
                                               PageCount most) {
  for (;;) {
    const std::vector<PrefixIndex::Victim> victims = index_.Victims(
        PageCount(1),
        [&](PrefixEntryId entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
          return PageCount(holders_.at(entry)->FenceIsComplete() ? 1 : 0);
        });
    if (victims.empty()) return {};
    const PageCount pages = holders_.at(victims[0].entry)->committed();
    if (pages < least || pages > most) return {};
    // Of a prefix that is expected in part, that part stays.
    const PrefixEntryId first = victims[0].entry;
    if (index_.ExpectedTokens(first) > 0 &&
        index_.ExpectedTokens(first) < index_.TokensOf(first))
      return {};
    ParkedRegions::Entry taken = parked_.Take(holders_.at(victims[0].entry));
    ForgetPrefix(taken.region.get());
    ++counted_.prefixes_evicted;
    if (!taken.region->damaged()) return taken;
    Dispose(std::move(taken.region));
  }
}

std::vector<PageCount> KvCache::Impl::PagesOfPrefix(
    const KvRegion& region) const {
  if (region.prefix() == PrefixEntryId()) return {};
  std::vector<PageCount> pages;
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group)
    pages.push_back(geometry_.PagesOf(group, index_.TokensOf(region.prefix())));
  return pages;
}

bool KvCache::Impl::CutToExpected(const KvRegion& region) {
  const uint64_t expected = index_.ExpectedTokens(region.prefix());
  if (expected == 0 || index_.TokensOf(region.prefix()) <= expected)
    return false;
  index_.Truncate(region.prefix(), expected);
  return true;
}

// Pages that sequences need stay mapped: giving them back frees nothing. Those
// that only other parked regions have as well go region by region, and are free
// with the last one.
void KvCache::Impl::ReclaimPrefixes(PageCount wanted, bool complete_only,
                                    PageCount* given) {
  if (complete_only) PackTails(wanted, given);
  std::vector<PageCount> kept(geometry_.layout().groups());
  bool progress = true;
  while (*given < wanted && progress) {
    progress = false;
    const auto victims = index_.Victims(
        PageCount(wanted.value() - given->value()),
        [&](PrefixEntryId entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
          KvRegion* const region = holders_.at(entry);
          const bool packed = !region->packed().empty();
          const uint64_t spare = SaturatingSubtract(
              region->spare().value(), shared_.NeededElsewhere(*region));
          if (complete_only &&
              (!region->FenceIsComplete() || (packed && !tails_.IsIdle())))
            return PageCount(0);
          // A tail gives a page where it is the last one there.
          return PageCount(std::max<uint64_t>(spare, packed ? 1 : 0));
        });
    for (const PrefixIndex::Victim& victim : victims) {
      if (*given >= wanted) break;
      KvRegion* const region = holders_.at(victim.entry);
      const bool cut = CutToExpected(*region);
      const std::vector<PageCount> expected =
          cut ? PagesOfPrefix(*region) : std::vector<PageCount>(kept.size());
      for (uint32_t group = 0; group < kept.size(); ++group)
        kept[group] =
            std::max(expected[group],
                     PageCount(shared_.NeededElsewhere(*region, group)));
      const PageCount before = region->committed();
      const size_t tails = region->packed().size();
      const auto pages =
          GiveBack(region, PageCount(wanted.value() - given->value()), kept);
      if (pages.ok()) *given = Plus(*given, *pages);
      progress |= cut || region->committed() < before ||
                  region->packed().size() < tails;
    }
  }
}

// Counts the slots of every page anew.
absl::Status KvCache::Impl::CheckSharing() const {
  absl::flat_hash_map<PageHandle, SharedPages::Uses> pages;
  size_t prefixes = 0;
  const auto check = [&](const KvRegion& region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                         state_mutex_) -> absl::Status {
    for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
      const uint64_t needed =
          geometry_.PagesOf(group, region.used_tokens()).value();
      for (uint64_t slot = 0; slot < region.committed(group).value(); ++slot) {
        const PageHandle page = memory_->PageAt(
            region.range(), Plus(geometry_.FirstPage(group), PageCount(slot)));
        if (page == PageHandle()) continue;  // behind a window
        SharedPages::Uses& uses = pages[page];
        ++uses.slots;
        uses.admitted += region.parked() ? 0 : 1;
        uses.needed += slot < needed ? 1 : 0;
        if (region.shared() != nullptr &&
            slot < region.shared()->parts[group].pages.size() &&
            region.shared()->parts[group].pages[slot] != page)
          return absl::InternalError(absl::StrCat(
              "slot ", slot, " of group ", group, " is on the books with page ",
              region.shared()->parts[group].pages[slot].value(), " and has ",
              page.value()));
      }
    }
    if (region.prefix() == PrefixEntryId()) return absl::OkStatus();
    ++prefixes;
    const auto holder = holders_.find(region.prefix());
    if (holder == holders_.end() || holder->second != &region)
      return absl::InternalError(absl::StrCat(
          "prefix ", region.prefix().value(), " does not lead to its region"));
    const uint64_t tokens = index_.TokensOf(region.prefix());
    if (TokensHeld(region) < tokens ||
        (region.parked() &&
         (tokens == 0 || index_.FoundTokensOf(region.prefix()) != tokens)))
      return absl::InternalError(
          absl::StrCat("prefix ", region.prefix().value(),
                       " is not backed for its ", tokens, " tokens"));
    return absl::OkStatus();
  };
  for (const KvSequence& sequence : sequences_) {
    if (sequence.region) QUIRE_RETURN_IF_ERROR(check(*sequence.region));
  }
  for (const KvRegion* region : parked_.OldestFirst())
    QUIRE_RETURN_IF_ERROR(check(*region));
  SharedPages::Excess counted;
  for (const auto& [page, uses] : pages) {
    const SharedPages::Excess excess = uses.GetExcess();
    counted.admitted += excess.admitted;
    counted.parked += excess.parked;
    counted.spare += excess.spare;
  }
  const SharedPages::Excess& kept = shared_.excess();
  if (counted != kept || prefixes != holders_.size() ||
      prefixes != index_.entries())
    return absl::InternalError(absl::StrCat(
        "counted ", counted.admitted, " admitted, ", counted.parked,
        " parked and ", counted.spare, " spare slots too many and ", prefixes,
        " prefixes; kept ", kept.admitted, ", ", kept.parked, ", ", kept.spare,
        " and ", holders_.size(), ", indexed ", index_.entries()));
  QUIRE_RETURN_IF_ERROR(CheckTails());
  return index_.CheckInvariants();
}

}  // namespace quire
