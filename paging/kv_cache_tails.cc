// The partly used last pages of cached prefixes, packed together.
//
// Where pages are short, and before a prefix is given up, what prefixes have
// behind their last full pages is moved to the tail store, in the order in
// which they would be given up: each frees a page for every group of layers,
// and nothing is lost. A prompt that continues the prefix, or shares it, has
// the rows copied from there. A tail that would leave no room worth having on
// its page stays where it is, and so does one whose page others have too.
//
// A prefix is given up from its end: first the tails, then pages.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {

std::vector<KvCache::Impl::LooseTail> KvCache::Impl::LooseTails() {
  std::vector<LooseTail> tails;
  const uint64_t page = geometry_.page_size().value();
  const auto victims = index_.Victims(
      PageCount(UINT64_MAX),
      [&](PrefixEntryId entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_) {
        KvRegion* const region = holders_.at(entry);
        const bool whole = region->packed().empty() && !region->damaged();
        return PageCount(whole && region->FenceIsComplete() ? 1 : 0);
      });
  for (const PrefixIndex::Victim& victim : victims) {
    KvRegion* const region = holders_.at(victim.entry);
    const uint64_t tokens = index_.TokensOf(victim.entry);
    for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
      const uint64_t first = FullPages(group, tokens);
      const uint64_t bytes =
          geometry_.layout().RowBytes(group).value() * tokens - first * page;
      if (bytes > 0 && bytes <= page / 4 * 3 &&
          !shared_.AnyShared(*region, group, static_cast<size_t>(first)))
        tails.push_back({region, group, PageCount(first), Bytes(bytes)});
    }
  }
  return tails;
}

void KvCache::Impl::PackTails(PageCount wanted, PageCount* given) {
  if (*given >= wanted || !tails_.IsIdle()) return;
  const std::vector<LooseTail> loose = LooseTails();
  // Where this is not enough, prefixes must be given up, and packed for
  // nothing.
  uint64_t chunks = 0;
  for (const LooseTail& tail : loose) chunks += tails_.ChunksOf(tail.size);
  const uint64_t more = SaturatingSubtract(chunks, tails_.free_chunks());
  const uint64_t pages = (more + TailStore::kChunks - 1) / TailStore::kChunks;
  if (SaturatingSubtract(uint64_t{loose.size()}, pages) <
      wanted.value() - given->value())
    return;
  for (size_t i = 0; i < loose.size() && *given < wanted;) {
    // Of one region together: it waits for the copies.
    size_t end = i + 1;
    while (end < loose.size() && loose[end].region == loose[i].region) ++end;
    const uint64_t before = CountPages().spare;
    const bool packed = Pack(std::span(loose).subspan(i, end - i));
    PublishReclaimable();
    *given =
        Plus(*given, PageCount(SaturatingSubtract(before, CountPages().spare)));
    if (!packed) return;
    i = end;
  }
}

bool KvCache::Impl::Pack(std::span<const LooseTail> loose) {
  Driver* const driver = memory_->driver();
  if (tail_stream_ == StreamId()) {
    const auto stream = driver->CreateStream(memory_->device());
    if (!stream.ok()) return false;
    tail_stream_ = *stream;
  }
  KvRegion* const region = loose.front().region;
  const uint64_t page = geometry_.page_size().value();
  std::vector<PackedTail> packed;
  absl::Status status;
  for (const auto& [unused, group, slot, size] : loose) {
    if (auto tail = tails_.Take(size)) {
      for (const TailStore::Place& place :
           tails_.PlacesOf(*tail, 0, size.value())) {
        if (status.ok())
          status = driver->CopyOnDevice(
              place.address,
              AddressOf(*region, group, slot.value() * page + place.from),
              place.size, tail_stream_);
      }
      packed.push_back(
          {group, slot, Bytes(slot.value() * page), *std::move(tail)});
    } else {
      auto own = tails_.TakeOver(
          std::vector{memory_->PageAt(region->range(),
                                      Plus(geometry_.FirstPage(group), slot))},
          0, size, Fence());
      status.Update(own.status());
      if (own.ok())
        packed.push_back(
            {group, slot, Bytes(slot.value() * page), *std::move(own)});
    }
    if (!status.ok()) break;
  }
  if (status.ok()) status = driver->SynchronizeStream(tail_stream_);
  if (!status.ok()) {
    // Copies may be under way.
    const Fence fence = FenceBehind(tail_stream_);
    region->AddReader(fence);
    tails_.AddReader(fence);
    for (const PackedTail& tail : packed) tails_.Free(tail.tail);
    return false;
  }
  counted_.tails_packed += packed.size();
  for (const PackedTail& tail : packed) {
    // A refusal is the region's damage, which its next user sees.
    Decommit(region, {tail.group, tail.slot,
                      PageCount(region->committed(tail.group).value() -
                                tail.slot.value())})
        .IgnoreError();
  }
  region->set_packed(std::move(packed));
  return true;
}

template <typename Predicate>
void KvCache::Impl::FreeTailsIf(KvRegion* region, Predicate predicate) {
  if (region->packed().empty()) return;
  std::vector<PackedTail> left;
  for (const PackedTail& tail : region->packed()) {
    if (predicate(tail)) {
      tails_.Free(tail.tail);
    } else {
      left.push_back(tail);
    }
  }
  region->set_packed(std::move(left));
  PublishReclaimable();
}

void KvCache::Impl::FreeTails(KvRegion* region,
                              std::span<const PageCount> kept) {
  FreeTailsIf(region, [&](const PackedTail& tail) {
    return kept.empty() || kept[tail.group] <= tail.slot;
  });
}

void KvCache::Impl::FreeLooseEnds(KvRegion* region) {
  const uint64_t tokens = index_.TokensOf(region->prefix());
  FreeTailsIf(region, [&](const PackedTail& tail) {
    return region->committed(tail.group) != tail.slot ||
           geometry_.PagesOf(tail.group, tokens) <= tail.slot;
  });
}

const PackedTail* KvCache::Impl::FindTail(const KvRegion& region,
                                          uint32_t group) {
  for (const PackedTail& tail : region.packed()) {
    if (tail.group == group) return &tail;
  }
  return nullptr;
}

uint64_t KvCache::Impl::TokensHeld(const KvRegion& region) const {
  uint64_t held = geometry_.max_tokens();
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
    const PageCount pages = region.committed(group);
    uint64_t bytes = pages.value() * geometry_.page_size().value();
    const PackedTail* const tail = FindTail(region, group);
    if (tail != nullptr && tail->slot == pages)
      bytes = tail->begin.value() + tail->tail.size.value();
    held = std::min(held, bytes / geometry_.layout().RowBytes(group).value());
  }
  return held;
}

absl::Status KvCache::Impl::UnpackTails(KvRegion* region, StreamId stream) {
  std::vector<RowCopy> copies;
  {
    MutexLock lock(&state_mutex_);
    if (region->packed().empty()) return absl::OkStatus();
    for (const PackedTail& tail : region->packed())
      AppendRows(*region, *region, tail.group, tail.begin.value(),
                 tail.begin.value() + tail.tail.size.value(), &copies);
  }
  const absl::Status status = QueueCopies(copies, region, region, stream);
  MutexLock lock(&state_mutex_);
  if (!status.ok()) {
    // Its pages are there, and what is on them is not.
    uint64_t tokens = index_.TokensOf(region->prefix());
    for (const PackedTail& tail : region->packed())
      tokens = std::min(tokens, geometry_.TokensWithin(tail.group, tail.slot));
    index_.Truncate(region->prefix(), tokens);
  }
  FreeTails(region);
  return status;
}

absl::Status KvCache::Impl::CheckTails() const {
  std::vector<const TailStore::Tail*> tails;
  for (const KvRegion* const region : parked_.OldestFirst()) {
    if (!region->packed().empty() && region->prefix() == PrefixEntryId())
      return absl::InternalError("a region without a prefix has packed tails");
    for (const PackedTail& tail : region->packed()) {
      if (tail.slot != region->committed(tail.group))
        return absl::InternalError(absl::StrCat(
            "a tail of group ", tail.group, " is packed behind page ",
            tail.slot.value(), " of ", region->committed(tail.group).value()));
      tails.push_back(&tail.tail);
    }
  }
  for (const KvSequence& sequence : sequences_) {
    if (sequence.region && !sequence.region->packed().empty())
      return absl::InternalError("a sequence has packed tails");
  }
  return tails_.CheckInvariants(tails);
}

}  // namespace quire
