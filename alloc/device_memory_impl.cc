#include "alloc/device_memory_impl.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "alloc/compaction_timer.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

// Batches of cooling slots that every decommit looks at, so that they do not
// pile up in a program that never runs short.
constexpr size_t kBatchesPerDecommit = 4;

}  // namespace

DeviceMemory::Impl::~Impl() {
  preparer_.reset();
  MutexLock lock(&mutex_);
  backing_.WaitForAll();
  for (const auto& [first_page, range] : ranges_) backing_.Clear(range.get());
}

// ---- Addresses --------------------------------------------------------------

absl::Status DeviceMemory::Impl::CheckAlignment(Bytes alignment) {
  if (alignment.zero() || IsPowerOfTwo(alignment.value())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("alignment ", alignment.value(), " is not a power of two"));
}

std::optional<uint64_t> DeviceMemory::Impl::TakeAddresses(PageCount pages,
                                                          Bytes alignment) {
  return addresses_->Take(pages.value(), std::max(alignment, Bytes(1)).value());
}

ManagedRange* DeviceMemory::Impl::AddRange(uint64_t first, PageCount pages,
                                           OwnerId owner) {
  auto range = std::make_shared<ManagedRange>(addresses_->AddressOf(first),
                                              first, pages, owner);
  ManagedRange* const result = range.get();
  addresses_->Publish(first, pages.value(), result);
  ranges_.emplace(first, std::move(range));
  return result;
}

void DeviceMemory::Impl::Retire(ManagedRange* range) {
  addresses_->Publish(range->first_page, range->slots.size(), nullptr);
  range->retired = true;
}

absl::StatusOr<AddressRange*> DeviceMemory::Impl::ReserveRange(
    PageCount pages, OwnerId owner, Bytes alignment) {
  for (int round = 0;; ++round) {
    absl::StatusOr<AddressRange*> range =
        ReserveOrExplain(pages, owner, alignment);
    if (range.ok() || round == kOutOfMemoryRounds ||
        !AskOutOfMemoryHooks(range.status())) {
      return range;
    }
  }
}

absl::StatusOr<AddressRange*> DeviceMemory::Impl::ReserveOrExplain(
    PageCount pages, OwnerId owner, Bytes alignment) {
  if (pages.zero()) {
    return absl::InvalidArgumentError("a range of no pages was asked for");
  }
  QUIRE_RETURN_IF_ERROR(CheckAlignment(alignment));
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  ReliefState relief;
  do {
    Section section(this);
    std::optional<uint64_t> first = TakeAddresses(pages, alignment);
    if (!first && HarvestAll()) first = TakeAddresses(pages, alignment);
    if (!first) {
      NoteFailure(&relief);
      continue;
    }
    AddressRange* const range = AddRange(*first, pages, owner);
    AfterMutation();
    return range;
  } while (pages.value() <= addresses_->total_pages() &&
           Relieve(pages.value(), &relief));
  return OutOfAddresses(pages, owner, VerdictDetail::kFull);
}

void DeviceMemory::Impl::ReleaseRange(AddressRange* range, const Fence& fence) {
  auto* const managed = static_cast<ManagedRange*>(range);
  Section section(this);
  AwaitTransition(managed);
  Retire(managed);
  uint64_t released = 0;
  // A refusal is visible in Health and the statistics.
  (void)backing_.Decommit(managed, 0, managed->slots.size(), fence, &released);
  if (released > 0) Record(TraceAction::kDecommit, range, 0, released);
  if (managed->lingering == 0) FreeAddresses(managed);
  Harvest(kBatchesPerDecommit);
  AfterMutation();
  freed_.NotifyAll();
}

absl::Status DeviceMemory::Impl::SetOwner(AddressRange* range, OwnerId owner) {
  if (range->owner() == owner) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  uint64_t moved = 0;
  absl::Status status;
  {
    Section section(this);
    status = MoveToOwner(range, owner, &moved);
  }
  if (!absl::IsResourceExhausted(status)) return status;
  return OutOfMemory({owner, moved, CommitAttempt::Shortage::kOwner,
                      std::move(status), VerdictDetail::kBrief});
}

absl::Status DeviceMemory::Impl::MoveToOwner(AddressRange* range, OwnerId owner,
                                             uint64_t* pages) {
  const OwnerId before = range->owner();
  auto* const managed = static_cast<ManagedRange*>(range);
  AwaitTransition(managed);
  QUIRE_RETURN_IF_ERROR(backing_.SetOwner(managed, owner, pages));
  const uint64_t moved = *pages;
  const uint64_t live = backing_.accounts().live();
  if (trace_ != nullptr && moved > 0) {
    // A trace knows no change of owner: to it the pages leave and come back.
    trace_->Record(TraceAction::kDecommit, before, range->address(),
                   PageBytes(moved), PageBytes(live - moved));
    trace_->Record(TraceAction::kCommit, owner, range->address(),
                   PageBytes(moved), PageBytes(live));
  }
  AfterMutation();
  return absl::OkStatus();
}

void DeviceMemory::Impl::FreeAddresses(ManagedRange* range) {
  const uint64_t first_page = range->first_page;
  addresses_->Return(first_page, range->slots.size());
  ranges_.erase(first_page);
}

void DeviceMemory::Impl::Harvest(size_t at_most) {
  std::vector<ManagedRange*> drained;
  backing_.Harvest(at_most, &drained);
  for (ManagedRange* const range : drained) FreeAddresses(range);
}

// ---- Backing ----------------------------------------------------------------

absl::Status DeviceMemory::Impl::CheckSlots(const AddressRange* range,
                                            PageCount first,
                                            PageCount count) const {
  const uint64_t pages = range->pages().value();
  if (first.value() <= pages && count.value() <= pages - first.value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      count.value(), " pages from page ", first.value(), " on, in a range of ",
      pages, " pages at ", range->address().value()));
}

absl::Status DeviceMemory::Impl::Commit(AddressRange* range, PageCount first,
                                        PageCount count,
                                        std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(CheckSlots(range, first, count));
  const CommitRequest request{static_cast<ManagedRange*>(range), first.value(),
                              count.value(), pages};
  absl::Status status;
  for (int round = 0;; ++round) {
    status = CommitOrExplain(request, /*may_wait=*/true);
    if (round == kOutOfMemoryRounds || !AskOutOfMemoryHooks(status)) break;
  }
  if (const auto verdict = OutOfMemoryVerdict::FromStatus(status)) {
    Section section(this);
    Record(TraceAction::kOutOfMemory, range, first.value(),
           verdict->requested.value() / page_size_.value());
  }
  return status;
}

absl::Status DeviceMemory::Impl::TryCommit(AddressRange* range, PageCount first,
                                           PageCount count,
                                           std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(CheckSlots(range, first, count));
  // It is tried again by its caller: no failure to tell the trace yet.
  return CommitOrExplain(
      {static_cast<ManagedRange*>(range), first.value(), count.value(), pages},
      /*may_wait=*/false);
}

absl::Status DeviceMemory::Impl::CommitOrExplain(const CommitRequest& request,
                                                 bool may_wait) {
  CommitAttempt attempt;
  absl::Status status = TryWithRelief(
      may_wait, &attempt, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        AwaitTransition(request.range);
        absl::Status tried = backing_.TryCommit(request, &attempt);
        if (tried.ok() && attempt.became_live > 0) {
          Record(TraceAction::kCommit, request.range, request.first,
                 attempt.became_live);
        }
        return tried;
      });
  if (!absl::IsResourceExhausted(status)) return status;
  return OutOfMemory({request.range->owner(), attempt.requested(),
                      attempt.shortage, std::move(status),
                      may_wait ? VerdictDetail::kFull : VerdictDetail::kBrief});
}

absl::Status DeviceMemory::Impl::TryWithRelief(
    bool may_wait, CommitAttempt* attempt,
    absl::FunctionRef<absl::Status()> try_once) {
  ReliefState relief;
  relief.may_wait = may_wait;
  absl::Status status;
  do {
    Section section(this);
    status = try_once();
    if (absl::IsResourceExhausted(status) && HarvestAll()) status = try_once();
    NoteFailure(&relief);
    if (!status.ok() && !absl::IsResourceExhausted(status)) {
      backing_.AbandonCommit(*attempt);
    }
    AfterMutation();
    if (!absl::IsResourceExhausted(status)) return status;
    // What is never to be had is worth nobody's cache.
    if (attempt->hopeless) break;
  } while (attempt->shortage == CommitAttempt::Shortage::kOwner
               ? RelieveOwner(*attempt, relief)
               : Relieve(attempt->missing, &relief));
  GiveUp(*attempt);
  return status;
}

void DeviceMemory::Impl::GiveUp(const CommitAttempt& attempt) {
  Section section(this);
  backing_.AbandonCommit(attempt);
  AfterMutation();
  freed_.NotifyAll();
}

absl::Status DeviceMemory::Impl::Remap(AddressRange* range, PageCount first,
                                       std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(CheckSlots(range, first, PageCount(pages.size())));
  auto* const managed = static_cast<ManagedRange*>(range);
  Section section(this);
  AwaitTransition(managed);
  uint64_t released = 0;
  absl::Status status =
      backing_.Remap(managed, first.value(), pages, &released);
  if (absl::IsResourceExhausted(status) && HarvestAll()) {
    status = backing_.Remap(managed, first.value(), pages, &released);
  }
  if (released > 0) {
    Record(TraceAction::kDecommit, range, first.value(), released);
  }
  AfterMutation();
  freed_.NotifyAll();
  return status;
}

absl::Status DeviceMemory::Impl::Decommit(AddressRange* range, PageCount first,
                                          PageCount count, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckSlots(range, first, count));
  auto* const managed = static_cast<ManagedRange*>(range);
  Section section(this);
  AwaitTransition(managed);
  uint64_t released = 0;
  const absl::Status status = backing_.Decommit(
      managed, first.value(), count.value(), fence, &released);
  if (released > 0) {
    Record(TraceAction::kDecommit, range, first.value(), released);
  }
  Harvest(kBatchesPerDecommit);
  AfterMutation();
  freed_.NotifyAll();
  return status;
}

PageCount DeviceMemory::Impl::CommittedPages(const AddressRange* range,
                                             PageCount first,
                                             PageCount count) const {
  if (!CheckSlots(range, first, count).ok()) return PageCount(0);
  MutexLock lock(&mutex_);
  const auto& slots = static_cast<const ManagedRange*>(range)->slots;
  const auto begin = slots.begin() + static_cast<std::ptrdiff_t>(first.value());
  const auto end = begin + static_cast<std::ptrdiff_t>(count.value());
  return PageCount(static_cast<uint64_t>(std::count_if(begin, end, IsLive)));
}

PageHandle DeviceMemory::Impl::PageAt(const AddressRange* range,
                                      PageCount slot) const {
  std::vector<PageHandle> page;
  AppendPages(range, slot, PageCount(1), &page);
  return page.empty() ? PageHandle() : page.front();
}

void DeviceMemory::Impl::AppendPages(const AddressRange* range, PageCount first,
                                     PageCount count,
                                     std::vector<PageHandle>* pages) const {
  if (!CheckSlots(range, first, count).ok()) return;
  MutexLock lock(&mutex_);
  const auto& slots = static_cast<const ManagedRange*>(range)->slots;
  for (uint64_t i = first.value(); i < first.value() + count.value(); ++i) {
    pages->push_back(IsLive(slots[i]) ? slots[i].page->handle : PageHandle());
  }
}

CompactionReport DeviceMemory::Impl::Trim(PageCount keep) {
  CompactionReport report;
  const CompactionTimer timer(*driver_);
  const PageCount reclaimable = ReclaimablePages();
  uint64_t beyond = 0;
  {
    Section section(this);
    Harvest(SIZE_MAX);
    beyond = SaturatingSubtract(
        SaturatingAdd(backing_.pool().cached(), reclaimable.value()),
        keep.value());
  }
  const uint64_t wanted = std::min(beyond, reclaimable.value());
  if (wanted > 0) AskReclaimers(wanted, /*cooling=*/false, ReliefState());
  {
    Section section(this);
    Harvest(SIZE_MAX);
    // What is not wanted now is not made again before the next commit.
    fills_up_ = false;
    const uint64_t given_back = backing_.pool().Trim(keep.value());
    RecordOfDevice(TraceAction::kTrim, given_back);
    AfterMutation();
    freed_.NotifyAll();
    report.pages_freed = PageCount(given_back);
  }
  timer.Report(&report);
  return report;
}

void DeviceMemory::Impl::Record(TraceAction action, const AddressRange* range,
                                uint64_t first, uint64_t pages) const {
  if (trace_ == nullptr) return;
  trace_->Record(
      action, range->owner(),
      static_cast<const ManagedRange*>(range)->SlotAddress(first, page_size_),
      PageBytes(pages), PageBytes(backing_.accounts().live()));
}

}  // namespace quire
