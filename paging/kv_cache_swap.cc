// Sequences that wait on the host.
//
// Out: the rows are copied behind the fence of the caller, on a stream of the
// cache, and the pages are given up under a fence behind the copies: they cool
// until the last byte is on the host. In: pages are committed as for a step,
// and the kernels that come next wait for the copies; the addresses were kept.
//
// Copies in both directions run on one stream. So a block of host memory, or a
// page, that changes hands between two of them needs no fence of its own.
//
// What of the sequence is shared: see swapped_rows.h.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "paging/kv_cache_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Later work on `stream` waits for the fence: for what is recorded on its
// streams now, which is no earlier.
absl::Status OrderBehind(Driver* driver, DeviceId device, const Fence& fence,
                         StreamId stream) {
  const absl::StatusOr<bool> complete = fence.IsComplete();
  if (complete.ok() && *complete) return absl::OkStatus();
  for (const StreamId other : fence.streams()) {
    QUIRE_ASSIGN_OR_RETURN(const EventId event, driver->CreateEvent(device));
    // Nothing can be done about an event that the driver will not take back.
    const absl::Cleanup destroy = [&] { (void)driver->DestroyEvent(event); };
    QUIRE_RETURN_IF_ERROR(driver->RecordEvent(event, other));
    QUIRE_RETURN_IF_ERROR(driver->WaitEvent(stream, event));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status KvCache::Impl::StartSwap() {
  QUIRE_ASSIGN_OR_RETURN(copy_stream_,
                         memory_->driver()->CreateStream(memory_->device()));
  swap_space_ = std::make_unique<SwapSpace>(
      memory_->driver(), geometry_.page_size(), options_.swap_space);
  return absl::OkStatus();
}

std::optional<size_t> KvCache::Impl::FindResident(SequenceId id) const {
  const auto slot = FindSlot(id);
  return slot && !sequences_[*slot].swapped ? slot : std::nullopt;
}

absl::Status KvCache::Impl::NotResident(SequenceId id,
                                        const char* purpose) const {
  if (!FindSlot(id)) return NoSuchSequence(id, purpose);
  return absl::FailedPreconditionError(
      absl::StrCat("KV cache: sequence ", id.value(), " is swapped out: no ",
                   purpose, " before it is swapped in"));
}

// ---- Out --------------------------------------------------------------------

absl::Status KvCache::Impl::SwapOut(SequenceId id, const Fence& fence) {
  if (swap_space_ == nullptr)
    return absl::FailedPreconditionError(
        "KV cache: no swap space, KvCacheOptions::swap_space is 0");
  for (;;) {
    uint64_t unpinned = 0;
    const absl::Status status = SwapOutToPinned(id, fence, &unpinned);
    if (unpinned == 0) return status;
    // Without the locks: other sequences are stepped meanwhile.
    QUIRE_RETURN_IF_ERROR(swap_space_->Pin(unpinned));
  }
}

absl::Status KvCache::Impl::SwapOutToPinned(SequenceId id, const Fence& fence,
                                            uint64_t* unpinned) {
  MutexLock operation(&operation_mutex_);
  MutexLock lock(&state_mutex_);
  const auto slot = FindResident(id);
  if (!slot) return NotResident(id, "swap out");
  KvSequence& sequence = sequences_[*slot];
  KvRegion* const region = sequence.region.get();
  if (region->damaged())
    return absl::FailedPreconditionError(
        absl::StrCat("KV cache: sequence ", id.value(),
                     " has lost pages that the driver did not unmap, and would "
                     "not come back to its addresses"));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<SwappedRows> rows,
                         SetAside(*region, unpinned));
  if (rows == nullptr) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(SetFence(region, fence));
  QUIRE_RETURN_IF_ERROR(OrderBehind(memory_->driver(), memory_->device(),
                                    region->fence(), copy_stream_));
  const absl::Status status = CopyBlocks(*region, *rows, SwapDirection::kOut);
  // Of what is under way where a copy was refused, too.
  region->AddReader(FenceBehind(copy_stream_));
  QUIRE_RETURN_IF_ERROR(status);

  DropPrefix(region);
  std::vector<PageCount> kept;
  for (const SwappedRows::Part& part : rows->parts) {
    kept.emplace_back(part.kept.size());
    for (const std::shared_ptr<KeptPage>& page : part.kept) {
      kept_pages_[page->page] = page;
      ++page->mapped;
    }
  }
  Retreat(region, kept);
  tokens_ -= sequence.length;
  sequence.swapped = std::move(rows);
  ++counted_.swaps_out;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SwappedRows>> KvCache::Impl::SetAside(
    const KvRegion& region, uint64_t* unpinned) {
  auto rows = std::make_unique<SwappedRows>();
  rows->used_tokens = region.used_tokens();
  uint64_t blocks = 0;
  std::vector<std::pair<std::shared_ptr<KeptPage>*, PageHandle>> unknown;
  rows->parts.resize(geometry_.layout().groups());
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
    SwappedRows::Part& part = rows->parts[group];
    part.behind = region.behind(group);
    const uint64_t shared = std::min<uint64_t>(
        shared_.SharedFirst(region, group),
        geometry_.PagesOf(group, region.used_tokens()).value());
    part.kept.resize(shared);
    for (uint64_t slot = 0; slot < shared; ++slot) {
      const PageHandle page = region.shared()->parts[group].pages[slot];
      const auto known = kept_pages_.find(page);
      if (known != kept_pages_.end()) {
        part.kept[slot] = known->second;
      } else {
        unknown.emplace_back(&part.kept[slot], page);
      }
    }
    for (PageRun run : region.NeededRuns(group)) {
      if (run.first.value() < shared) {  // then there is one run, from 0 on
        run.first = PageCount(shared);
        run.count = PageCount(run.count.value() - shared);
      }
      if (run.count.zero()) continue;
      rows->runs.push_back(run);
      blocks += run.count.value();
    }
  }
  const uint64_t needed = blocks + unknown.size();
  QUIRE_ASSIGN_OR_RETURN(std::optional<SwapBlocks> taken,
                         swap_space_->Take(needed));
  if (!taken) {
    *unpinned = needed;
    return nullptr;
  }
  rows->blocks = *std::move(taken);
  for (const auto& [kept, page] : unknown)
    *kept = std::make_shared<KeptPage>(page, rows->blocks.TakeLast());
  return rows;
}

void KvCache::Impl::Retreat(KvRegion* region, std::span<const PageCount> kept) {
  Forget(region);
  for (uint32_t group = 0; group < kept.size(); ++group) {
    const uint64_t beyond = SaturatingSubtract(region->committed(group).value(),
                                               kept[group].value());
    // A refusal is the region's damage, which SwapIn sees.
    if (beyond > 0)
      Decommit(region, {group, kept[group], PageCount(beyond)}).IgnoreError();
  }
}

// ---- Copies -----------------------------------------------------------------

absl::Status KvCache::Impl::CopyPages(DeviceAddress pages, std::byte* host,
                                      Bytes size, SwapDirection direction) {
  Driver* const driver = memory_->driver();
  if (direction == SwapDirection::kOut) {
    counted_.bytes_swapped_out =
        SaturatingAdd(counted_.bytes_swapped_out, size);
    return driver->CopyToHost(host, pages, size, copy_stream_);
  }
  counted_.bytes_swapped_in = SaturatingAdd(counted_.bytes_swapped_in, size);
  return driver->CopyToDevice(pages, host, size, copy_stream_);
}

// One copy for pages whose blocks lie side by side; of the last page only what
// is in use.
absl::Status KvCache::Impl::CopyBlocks(const KvRegion& region,
                                       const SwappedRows& rows,
                                       SwapDirection direction) {
  const uint64_t page = geometry_.page_size().value();
  size_t block = 0;
  for (const PageRun& run : rows.runs) {
    const uint64_t end =
        geometry_.layout().RowBytes(run.group).value() * rows.used_tokens;
    const size_t run_end = block + static_cast<size_t>(run.count.value());
    uint64_t offset = run.first.value() * page;
    while (block < run_end) {
      size_t count = 1;
      while (block + count < run_end &&
             rows.blocks[block + count] == rows.blocks[block] + count * page)
        ++count;
      QUIRE_RETURN_IF_ERROR(
          CopyPages(AddressOf(region, run.group, offset), rows.blocks[block],
                    Bytes(std::min(count * page, end - offset)), direction));
      block += count;
      offset += count * page;
    }
  }
  return absl::OkStatus();
}

absl::Status KvCache::Impl::WriteOut(const KvRegion& region,
                                     const SwappedRows& rows,
                                     std::span<const PageRun> runs) {
  const uint64_t page_size = geometry_.page_size().value();
  for (const PageRun& run : runs) {
    for (uint64_t i = 0; i < run.count.value(); ++i) {
      const uint64_t slot = run.first.value() + i;
      KeptPage& page = *rows.parts[run.group].kept[slot];
      if (page.written) continue;
      QUIRE_RETURN_IF_ERROR(
          CopyPages(AddressOf(region, run.group, slot * page_size),
                    page.block[0], geometry_.page_size(), SwapDirection::kOut));
      page.written = true;
    }
  }
  return absl::OkStatus();
}

// ---- In ---------------------------------------------------------------------

absl::Status KvCache::Impl::SwapIn(SequenceId id) {
  waiting_.fetch_add(1, std::memory_order_relaxed);
  MutexLock operation(&operation_mutex_);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  size_t index = 0;
  KvRegion* region = nullptr;
  const SwappedRows* rows = nullptr;
  std::vector<PageCount> mapped;
  {
    MutexLock lock(&state_mutex_);
    const auto slot = FindSlot(id);
    if (!slot) return NoSuchSequence(id, "swap in");
    index = *slot;
    region = sequences_[index].region.get();
    rows = sequences_[index].swapped.get();
    if (rows == nullptr)
      return absl::FailedPreconditionError(absl::StrCat(
          "KV cache: sequence ", id.value(), " is not swapped out"));
    if (region->damaged())
      return absl::DataLossError(absl::StrCat(
          "KV cache: sequence ", id.value(),
          " has addresses that the driver did not unmap, and cannot come back "
          "to them: release it"));
    mapped = MappedPages(*region);
    // From here on nobody takes the pages that it still has.
    Modify(region, [&](KvRegion* r) { r->set_used_tokens(rows->used_tokens); });
  }
  absl::Status status = MapReturned(region, *rows);
  std::vector<PageCount> present;
  std::vector<PageCount> behind;
  {
    MutexLock lock(&state_mutex_);
    present = MappedPages(*region);
    for (const SwappedRows::Part& part : rows->parts)
      behind.push_back(part.behind);
  }
  if (status.ok())
    status = BackBehindGaps(region, behind, rows->used_tokens, PageCount(0));
  if (status.ok()) status = ReadIn(region, *rows, present);
  MutexLock lock(&state_mutex_);
  if (!status.ok()) {
    Retreat(region, mapped);
    return status;
  }
  KvSequence& sequence = sequences_[index];
  ShowReturned(id, region, *rows);
  EndSwap(&sequence, mapped);
  sequence.batch = batch_;
  ++counted_.swaps_in;
  return absl::OkStatus();
}

PageHandle KvCache::Impl::FindReturned(const KeptPage& page, uint32_t group,
                                       size_t slot) const {
  const auto found = FindResident(page.back_in);
  if (!found) return PageHandle();
  const SharedSlots* const shared = sequences_[*found].region->shared();
  if (shared == nullptr) return PageHandle();
  const SharedSlots::Part& part = shared->parts[group];
  return slot < part.pages.size() && part.stamps[slot] == page.stamp
             ? part.pages[slot]
             : PageHandle();
}

absl::Status KvCache::Impl::MapReturned(KvRegion* region,
                                        const SwappedRows& rows) {
  for (uint32_t group = 0; group < rows.parts.size(); ++group) {
    const auto& kept = rows.parts[group].kept;
    std::vector<PageHandle> pages;
    PageCount first;
    {
      MutexLock lock(&state_mutex_);
      first = region->committed(group);
      for (auto slot = static_cast<size_t>(first.value()); slot < kept.size();
           ++slot) {
        const PageHandle page = FindReturned(*kept[slot], group, slot);
        if (page == PageHandle()) break;
        pages.push_back(page);
      }
    }
    if (pages.empty()) continue;
    QUIRE_RETURN_IF_ERROR(AwaitUnsharing(region));
    const absl::Status status = memory_->CommitPages(
        region->range(), Plus(geometry_.FirstPage(group), first), pages);
    MutexLock lock(&state_mutex_);
    if (absl::IsDataLoss(status)) region->set_damaged();
    QUIRE_RETURN_IF_ERROR(status);
    Modify(region, [&](KvRegion* r) {
      r->set_committed(group, Plus(first, PageCount(pages.size())));
    });
    EnterFirst(region, group, first.value() + pages.size());
  }
  return absl::OkStatus();
}

void KvCache::Impl::ShowReturned(SequenceId id, KvRegion* region,
                                 const SwappedRows& rows) {
  for (uint32_t group = 0; group < rows.parts.size(); ++group) {
    const auto& kept = rows.parts[group].kept;
    const bool others = std::any_of(
        kept.begin(), kept.end(), [](const std::shared_ptr<KeptPage>& page) {
          return page->written && page.use_count() > 1;
        });
    if (!others) continue;
    EnterFirst(region, group, kept.size());
    for (size_t slot = 0; slot < kept.size(); ++slot) {
      kept[slot]->back_in = id;
      kept[slot]->stamp = region->shared()->parts[group].stamps[slot];
    }
  }
}

void KvCache::Impl::EnterFirst(KvRegion* region, uint32_t group,
                               uint64_t slots) {
  std::vector<PageHandle> pages;
  memory_->AppendPages(region->range(), geometry_.FirstPage(group),
                       PageCount(slots), &pages);
  shared_.Enter(region, group, pages);
  PublishReclaimable();
}

absl::Status KvCache::Impl::ReadIn(KvRegion* region, const SwappedRows& rows,
                                   std::span<const PageCount> mapped) {
  const uint64_t page_size = geometry_.page_size().value();
  Fence fence;
  {
    MutexLock lock(&state_mutex_);
    absl::Status status = CopyBlocks(*region, rows, SwapDirection::kIn);
    for (uint32_t group = 0; group < rows.parts.size(); ++group) {
      const auto& kept = rows.parts[group].kept;
      for (uint64_t slot = mapped[group].value();
           slot < kept.size() && status.ok(); ++slot)
        status = CopyPages(AddressOf(*region, group, slot * page_size),
                           kept[slot]->block[0], geometry_.page_size(),
                           SwapDirection::kIn);
    }
    fence = FenceBehind(copy_stream_);
    region->AddReader(fence);
    QUIRE_RETURN_IF_ERROR(status);
    if (options_.stream != StreamId())
      return OrderBehind(memory_->driver(), memory_->device(), fence,
                         options_.stream);
  }
  return fence.Wait();
}

void KvCache::Impl::EndSwap(KvSequence* sequence,
                            std::span<const PageCount> mapped) {
  for (uint32_t group = 0; group < mapped.size(); ++group) {
    for (uint64_t slot = 0; slot < mapped[group].value(); ++slot)
      Unkeep(*sequence->swapped->parts[group].kept[slot]);
  }
  sequence->swapped = nullptr;
  tokens_ += sequence->length;
}

std::vector<PageCount> KvCache::Impl::MappedPages(
    const KvRegion& region) const {
  std::vector<PageCount> pages;
  for (uint32_t group = 0; group < geometry_.layout().groups(); ++group)
    pages.push_back(region.committed(group));
  return pages;
}

// The page lies under one swapped-out sequence less. With none left its handle
// may soon name another one.
void KvCache::Impl::Unkeep(KeptPage& page) {
  if (--page.mapped == 0) kept_pages_.erase(page.page);
}

// ---- Pressure ---------------------------------------------------------------

void KvCache::Impl::ReclaimSwapped(PageCount wanted, PageCount* given) {
  if (swap_space_ == nullptr) return;
  std::vector<PageCount> kept(geometry_.layout().groups());
  // A page that several have is free with the last of them.
  for (bool progress = true; progress && *given < wanted;) {
    progress = false;
    for (KvSequence& sequence : sequences_) {
      if (*given >= wanted) return;
      KvRegion* const region = sequence.region.get();
      if (!sequence.swapped || region->spare().zero()) continue;
      for (uint32_t group = 0; group < kept.size(); ++group)
        kept[group] = PageCount(shared_.NeededElsewhere(*region, group));
      const std::vector<PageRun> runs =
          region->SpareRuns(PageCount(wanted.value() - given->value()), kept);
      if (runs.empty()) continue;
      const absl::Status status = WriteOut(*region, *sequence.swapped, runs);
      region->AddReader(FenceBehind(copy_stream_));
      // Nothing of it can go; another one may serve.
      if (!status.ok()) continue;
      const uint64_t before = CountPages().spare;
      for (const PageRun& run : runs) {
        for (uint64_t i = 0; i < run.count.value(); ++i)
          Unkeep(
              *sequence.swapped->parts[run.group].kept[run.first.value() + i]);
        // A refusal is the region's damage, which SwapIn sees.
        Decommit(region, run).IgnoreError();
      }
      *given = Plus(*given, PageCount(before - CountPages().spare));
      progress = true;
    }
  }
}

absl::Status KvCache::Impl::CheckSwapped() const {
  absl::flat_hash_map<PageHandle, uint64_t> mapped;
  for (size_t slot = 0; slot < sequences_.size(); ++slot) {
    const KvSequence& sequence = sequences_[slot];
    if (!sequence.swapped) continue;
    const KvRegion& region = *sequence.region;
    if (region.parked() || region.used_tokens() != 0 ||
        region.prefix() != PrefixEntryId() ||
        sequence.length > sequence.swapped->used_tokens)
      return absl::InternalError(absl::StrCat("sequence ", IdOf(slot).value(),
                                              " is swapped out and in use"));
    for (uint32_t group = 0; group < geometry_.layout().groups(); ++group) {
      const auto& kept = sequence.swapped->parts[group].kept;
      const uint64_t committed = region.committed(group).value();
      if (committed > kept.size())
        return absl::InternalError(absl::StrCat("sequence ", IdOf(slot).value(),
                                                " keeps ", kept.size(),
                                                " pages and has ", committed));
      for (uint64_t i = 0; i < kept.size(); ++i) {
        if (i >= committed && !kept[i]->written)
          return absl::InternalError(absl::StrCat(
              "sequence ", IdOf(slot).value(), " has lost page ", i));
        if (i >= committed) continue;
        ++mapped[kept[i]->page];
        const auto known = kept_pages_.find(kept[i]->page);
        if (known == kept_pages_.end() || known->second != kept[i] ||
            memory_->PageAt(region.range(),
                            Plus(geometry_.FirstPage(group), PageCount(i))) !=
                kept[i]->page)
          return absl::InternalError(absl::StrCat(
              "sequence ", IdOf(slot).value(), " keeps another page ", i));
      }
    }
  }
  for (const auto& [page, kept] : kept_pages_) {
    const auto counted = mapped.find(page);
    if (counted == mapped.end() || counted->second != kept->mapped)
      return absl::InternalError(
          absl::StrCat("kept page ", page.value(), " is counted wrong"));
  }
  return absl::OkStatus();
}

}  // namespace quire
