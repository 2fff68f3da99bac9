// Prepare apart from commit: pages made ahead, by a caller or by a thread;
// making sure of pages and addresses, which may ask reclaimers and wait; and
// making a range from what is there, which does not.

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "alloc/device_memory_impl.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::Status DeviceMemory::Impl::Prepare(PageCount count) {
  absl::Status status;
  uint64_t wanted = 0;
  {
    Section section(this);
    PagePool& pool = backing_.pool();
    // What the limit allows; a sum of counts of existing pages cannot overflow.
    wanted = std::min(count.value(), pool.cached() + pool.growable());
    uint64_t created = 0;
    status = pool.Prepare(wanted, &created);
    if (!status.ok()) pool.Trim(pool.cached() - created);
    AfterMutation();
  }
  if (!absl::IsResourceExhausted(status)) return status;
  return OutOfMemory({kUnnamedOwner, wanted, CommitAttempt::Shortage::kDevice,
                      status, VerdictDetail::kFull});
}

absl::Status DeviceMemory::Impl::StartPreparing(uint64_t ahead) {
  if (ahead == 0) return absl::OkStatus();
  ahead_ = ahead;
  QUIRE_ASSIGN_OR_RETURN(preparer_,
                         PrepareThread::Start([this] { return PrepareOne(); }));
  return absl::OkStatus();
}

PrepareThread::Progress DeviceMemory::Impl::PrepareOne() {
  Section section(this);
  PagePool& pool = backing_.pool();
  fills_up_ = fills_up_ && pool.cached() < ahead_ && pool.growable() > 0;
  if (!fills_up_) return PrepareThread::Progress::kEnough;
  uint64_t created = 0;
  // The lock is held for one page at a time: drivers make one after another in
  // any case.
  if (!pool.Prepare(pool.cached() + 1, &created).ok()) {
    return PrepareThread::Progress::kRefused;
  }
  ++prepared_ahead_;
  fills_up_ = pool.cached() < ahead_;
  AfterMutation();
  freed_.NotifyAll();
  return PrepareThread::Progress::kMade;
}

void DeviceMemory::Impl::FillUp() {
  if (preparer_ == nullptr) return;
  fills_up_ = true;
  preparer_->Wake();
}

void DeviceMemory::Impl::FillUpAfterCommit() {
  if (backing_.commits() == commits_filled_) return;
  commits_filled_ = backing_.commits();
  if (backing_.pool().cached() < ahead_) FillUp();
}

absl::Status DeviceMemory::Impl::Gather(OwnerId owner, PageCount pages,
                                        PageCount addresses, Bytes alignment,
                                        bool wait) {
  for (int round = 0;; ++round) {
    absl::Status status =
        GatherOrExplain(owner, pages, addresses, alignment, wait);
    if (!wait || round == kOutOfMemoryRounds || !AskOutOfMemoryHooks(status)) {
      return status;
    }
  }
}

absl::Status DeviceMemory::Impl::GatherOrExplain(OwnerId owner, PageCount pages,
                                                 PageCount addresses,
                                                 Bytes alignment, bool wait) {
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  QUIRE_RETURN_IF_ERROR(CheckAlignment(alignment));
  CommitAttempt attempt;
  attempt.wanted = pages.value();
  ReliefState relief;
  relief.may_wait = wait;
  absl::Status status;
  bool found_addresses = false;
  do {
    Section section(this);
    if (addresses > PageCount(addresses_->total_pages())) break;
    // What has cooled costs less than a page that is made.
    HarvestAll();
    found_addresses = HasAddresses(addresses, alignment);
    status = backing_.TryPrepareFor(owner, &attempt);
    NoteFailure(&relief);
    AfterMutation();
    if (found_addresses && status.ok()) return absl::OkStatus();
    if (!status.ok() && !absl::IsResourceExhausted(status)) break;
    // What is never to be had is worth nobody's cache.
    if (attempt.hopeless) break;
  } while (attempt.shortage == CommitAttempt::Shortage::kOwner
               ? RelieveOwner(attempt, relief)
               : Relieve(std::max(attempt.missing,
                                  found_addresses ? 0 : addresses.value()),
                         &relief));
  GiveUp(attempt);
  const VerdictDetail detail =
      wait ? VerdictDetail::kFull : VerdictDetail::kBrief;
  if (absl::IsResourceExhausted(status)) {
    return OutOfMemory(
        {owner, attempt.requested(), attempt.shortage, status, detail});
  }
  return status.ok() ? OutOfAddresses(addresses, owner, detail) : status;
}

PageCount DeviceMemory::Impl::HarvestCached() {
  Section section(this);
  if (HarvestAll()) {
    AfterMutation();
    freed_.NotifyAll();
  }
  return PageCount(backing_.pool().cached());
}

bool DeviceMemory::Impl::HasAddresses(PageCount count, Bytes alignment) {
  const std::optional<uint64_t> first = TakeAddresses(count, alignment);
  if (first) addresses_->Return(*first, count.value());
  return first.has_value();
}

absl::StatusOr<ManagedRange*> DeviceMemory::Impl::TryAddRange(PageCount pages,
                                                              OwnerId owner,
                                                              Bytes alignment) {
  const std::optional<uint64_t> first = TakeAddresses(pages, alignment);
  if (first) return AddRange(*first, pages, owner);
  return absl::AbortedError(
      absl::StrCat("no run of ", pages.value(), " addresses is free"));
}

absl::Status DeviceMemory::Impl::BackFromCache(const CommitRequest& request) {
  const uint64_t fresh =
      request.pages.empty()
          ? static_cast<uint64_t>(std::count_if(
                request.range->slots.begin() +
                    static_cast<std::ptrdiff_t>(request.first),
                request.range->slots.begin() +
                    static_cast<std::ptrdiff_t>(request.first + request.count),
                IsUnbacked))
          : static_cast<uint64_t>(std::count(
                request.pages.begin(), request.pages.end(), PageHandle()));
  const uint64_t prepared = backing_.pool().cached();
  if (fresh > prepared) {
    return absl::AbortedError(
        absl::StrCat(fresh, " pages wanted, ", prepared, " are prepared"));
  }
  CommitAttempt attempt;
  const absl::Status status = backing_.TryCommit(request, &attempt);
  if (status.ok()) {
    if (attempt.became_live > 0) {
      Record(TraceAction::kCommit, request.range, request.first,
             attempt.became_live);
    }
    return status;
  }
  const bool may_be_gathered =
      absl::IsResourceExhausted(status) &&
      attempt.shortage != CommitAttempt::Shortage::kMappings;
  return may_be_gathered ? absl::AbortedError(status.message()) : status;
}

absl::StatusOr<AddressRange*> DeviceMemory::Impl::TryMakeRange(
    OwnerId owner, Bytes alignment, std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  const PageCount count(pages.size());
  Section section(this);
  QUIRE_ASSIGN_OR_RETURN(ManagedRange* const range,
                         TryAddRange(count, owner, alignment));
  const absl::Status status = BackFromCache({range, 0, count.value(), pages});
  if (!status.ok()) {
    // What the driver lost on the way lingers, and keeps the addresses.
    Retire(range);
    if (range->lingering == 0) FreeAddresses(range);
  }
  AfterMutation();
  QUIRE_RETURN_IF_ERROR(status);
  return range;
}

absl::StatusOr<AddressRange*> DeviceMemory::Impl::TryReserveRange(
    PageCount pages, OwnerId owner, Bytes alignment) {
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  QUIRE_RETURN_IF_ERROR(CheckAlignment(alignment));
  Section section(this);
  QUIRE_ASSIGN_OR_RETURN(ManagedRange* const range,
                         TryAddRange(pages, owner, alignment));
  AfterMutation();
  return range;
}

absl::Status DeviceMemory::Impl::TryBackSlots(AddressRange* range,
                                              PageCount first,
                                              PageCount count) {
  QUIRE_RETURN_IF_ERROR(CheckSlots(range, first, count));
  auto* const managed = static_cast<ManagedRange*>(range);
  Section section(this);
  AwaitTransition(managed);
  const absl::Status status =
      BackFromCache({managed, first.value(), count.value(), {}});
  AfterMutation();
  return status;
}

}  // namespace quire
