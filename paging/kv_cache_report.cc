// What a KvCache tells: views, lengths, figures, and whether they hold.

#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "quire/alloc/internal_checks.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::Status KvCache::Impl::CheckLayer(uint32_t layer) const {
  const uint32_t layers = geometry_.layout().layers();
  if (layer < layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("KV cache: no layer ", layer, " of ", layers));
}

absl::StatusOr<KvLayerView> KvCache::Impl::View(SequenceId id,
                                                uint32_t layer) const {
  const KvLayout& layout = geometry_.layout();
  QUIRE_RETURN_IF_ERROR(CheckLayer(layer));
  const KvLayout::LayerPlace& place = layout.PlaceOf(layer);
  MutexLock lock(&state_mutex_);
  const auto slot = FindResident(id);
  if (!slot) return NotResident(id, "view");
  const KvRegion& rows = *sequences_[*slot].region;
  const uint64_t region = rows.range()->address().value();
  const KvLayerKind& kept = rows.kept_kind(layout.GroupKind(place.keys.group));
  const auto at = [&](const KvLayout::SidePlace& side, Bytes offset) {
    return DeviceAddress(region + geometry_.Offset(side.group).value() +
                         offset.value());
  };
  KvLayerView view;
  view.keys = at(place.keys, place.keys.offset);
  view.values = at(place.values, place.values.offset);
  view.row_stride = place.keys.row_stride;
  view.value_stride = place.values.row_stride;
  view.key_scales = at(place.keys, place.keys.scales);
  view.value_scales = at(place.values, place.values.scales);
  view.window = kept.window;
  view.sinks = kept.sinks;
  return view;
}

absl::StatusOr<uint64_t> KvCache::Impl::Length(SequenceId id) const {
  MutexLock lock(&state_mutex_);
  const auto slot = FindSlot(id);
  if (!slot) return NoSuchSequence(id, "measure");
  return sequences_[*slot].length;
}

uint64_t KvCache::Impl::AdmissibleTokens() const {
  {
    MutexLock lock(&state_mutex_);
    if (!HasFreeSlot()) return 0;
  }
  const auto pages =
      CheckedSubtract(GetSupply().in_all.value(), options_.headroom.value());
  if (!pages) return 0;
  // The longest length whose pages suffice: they grow with the length.
  uint64_t fits = 0;
  uint64_t too_long = geometry_.max_tokens() + 1;
  while (too_long - fits > 1) {
    const uint64_t middle = fits + (too_long - fits) / 2;
    (geometry_.PagesOf(middle).value() <= *pages ? fits : too_long) = middle;
  }
  return fits;
}

bool KvCache::Impl::HasRoomFor(std::span<const SequenceGrowth> growths) const {
  PageCount pages = options_.headroom;
  for (const SequenceGrowth& growth : growths)
    pages = Plus(pages, bare_.PagesToGrow(growth));
  return pages <= GetSupply().in_all;
}

CacheUse KvCache::Impl::Use() const {
  SlotTotals totals;
  {
    MutexLock lock(&state_mutex_);
    totals = CountPages();
  }
  const auto bytes = [&](uint64_t pages) {
    return Bytes(pages * geometry_.page_size().value());
  };
  CacheUse use;
  use.held = bytes(totals.admitted + totals.parked);
  use.needed = bytes(totals.needed().value());
  use.capacity = SaturatingAdd(use.needed, bytes(GetSupply().in_all.value()));
  return use;
}

absl::StatusOr<Bytes> KvCache::Impl::FreedByRelease(SequenceId id) const {
  MutexLock lock(&state_mutex_);
  const auto slot = FindSlot(id);
  if (!slot) return NoSuchSequence(id, "weigh");
  if (sequences_[*slot].swapped) return Bytes(0);
  const KvRegion& region = *sequences_[*slot].region;
  return Bytes((region.committed().value() - region.spare().value() -
                shared_.NeededElsewhere(region)) *
               geometry_.page_size().value());
}

KvCacheStatistics KvCache::Impl::GetStatistics() const {
  MutexLock lock(&state_mutex_);
  const auto bytes = [&](uint64_t pages) {
    return Bytes(pages * geometry_.page_size().value());
  };
  KvCacheStatistics statistics = counted_;
  statistics.sequences =
      static_cast<uint32_t>(sequences_.size() - free_slots_.size());
  statistics.parked_regions = static_cast<uint32_t>(parked_.size());
  statistics.tokens = tokens_;
  for (const KvSequence& sequence : sequences_) {
    if (sequence.swapped) ++statistics.swapped_sequences;
    if (sequence.region && !sequence.swapped)
      statistics.used = SaturatingAdd(statistics.used, KeptBytes(sequence));
  }
  if (swap_space_ != nullptr) {
    statistics.swap_space = swap_space_->limit();
    statistics.swap_taken = swap_space_->taken();
    statistics.swap_pinned = swap_space_->pinned();
  }
  const SlotTotals pages = CountPages();
  statistics.committed = bytes(pages.admitted);
  statistics.parked = bytes(pages.parked);
  statistics.cached_prefixes = bytes(pages.cached);
  statistics.reclaimable = bytes(pages.spare);
  statistics.shared =
      bytes(shared_.excess().admitted + shared_.excess().parked);
  statistics.reserved = bytes((statistics.sequences + parked_.size()) *
                              geometry_.pages().value());
  statistics.steps_ahead = horizon_.steps();
  statistics.packed_tails = bytes(tails_.pages().value());
  return statistics;
}

absl::Status KvCache::Impl::CheckRegion(const KvRegion& region, bool asleep,
                                        SlotTotals* counted) const {
  QUIRE_RETURN_IF_ERROR(region.CheckInvariants());
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
    const PageCount live = memory_->CommittedPages(
        region.range(), geometry_.FirstPage(group),
        geometry_.PagesOf(group, geometry_.max_tokens()));
    if (asleep ? live > region.live(group) : live != region.live(group))
      return absl::InternalError(
          absl::StrCat("group ", group, " has ", live.value(),
                       " live pages, kept ", region.live(group).value()));
    const PageRun gap = region.Gap(group);
    if (!memory_->CommittedPages(region.range(), SlotInRange(gap), gap.count)
             .zero())
      return absl::InternalError(
          absl::StrCat("group ", group, " has pages in its gap"));
  }
  counted->Add(region);
  return absl::OkStatus();
}

absl::Status KvCache::Impl::CheckInvariants() const {
  MutexLock operation(&operation_mutex_);
  MutexLock lock(&state_mutex_);
  SlotTotals counted;
  uint64_t tokens = 0;
  size_t free = 0;
  // While its owner sleeps, the pages of a region are not live, but what it has
  // all the same.
  const bool asleep =
      !memory_->GetOwnerStatistics(options_.owner).asleep.zero();
  for (size_t slot = 0; slot < sequences_.size(); ++slot) {
    const KvSequence& sequence = sequences_[slot];
    if (!sequence.region) {
      ++free;
      continue;
    }
    const KvRegion& region = *sequence.region;
    QUIRE_RETURN_IF_ERROR(CheckRegion(region, asleep, &counted));
    if (sequence.swapped) continue;  // CheckSwapped
    if (region.parked() || sequence.length > region.used_tokens() ||
        region.MappingWork(region.used_tokens()) != PageCount(0))
      return absl::InternalError(
          absl::StrCat("sequence ", IdOf(slot).value(), " of ", sequence.length,
                       " tokens is not backed for ", region.used_tokens()));
    tokens += sequence.length;
  }
  for (const KvRegion* region : parked_.OldestFirst()) {
    QUIRE_RETURN_IF_ERROR(CheckRegion(*region, asleep, &counted));
    if (!region->parked() || region->used_tokens() != 0)
      return absl::InternalError("a parked region is in use");
  }
  if (free != free_slots_.size() || tokens != tokens_ || counted != totals_ ||
      CountPages().spare != reclaimable_.load(std::memory_order_relaxed))
    return absl::InternalError(absl::StrCat(
        "counted ", free, " free slots, ", tokens, " tokens and ",
        counted.admitted, " admitted, ", counted.parked, " parked, ",
        counted.spare, " spare pages; kept ", free_slots_.size(), ", ", tokens_,
        ", ", totals_.admitted, ", ", totals_.parked, ", ", totals_.spare));
  QUIRE_RETURN_IF_ERROR(CheckSwapped());
  return CheckSharing();
}

void KvCache::Impl::CheckAfterMutation() const {
  if constexpr (kInternalChecks) RequireInvariant(CheckInvariants());
}

}  // namespace quire
