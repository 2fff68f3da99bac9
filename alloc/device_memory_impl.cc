#include "alloc/device_memory_impl.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "quire/alloc/internal_checks.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

// Batches of cooling slots that every decommit looks at, so that they do not
// pile up in a program that never runs short.
constexpr size_t kBatchesPerDecommit = 4;

// There is no driver call that waits for the first of several fences, and to
// wait for one of them would let a slow stream hold up every other: so they are
// asked in turn, at intervals that grow from the first figure to the second.
constexpr std::chrono::microseconds kFirstPollInterval(20);
constexpr std::chrono::microseconds kLastPollInterval(500);

// Checking builds walk everything after every mutation while that is cheap, and
// after one in so many beyond.
constexpr uint64_t kSlotsCheckedAlways = 4096;
constexpr uint64_t kMutationsPerCheck = 64;

absl::Status CheckOwner(OwnerId owner) {
  if (owner.value() < kMaxOwners) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("owner ", owner.value(), " is not below ", kMaxOwners));
}

}  // namespace

DeviceMemory::Impl::~Impl() {
  MutexLock lock(&mutex_);
  backing_.WaitForAll();
  for (const auto& [first_page, range] : ranges_) backing_.Clear(range.get());
}

// ---- Addresses --------------------------------------------------------------

absl::StatusOr<AddressRange*> DeviceMemory::Impl::ReserveRange(
    PageCount pages, OwnerId owner, Bytes alignment) {
  if (pages.zero()) {
    return absl::InvalidArgumentError("a range of no pages was asked for");
  }
  if (!alignment.zero() && !IsPowerOfTwo(alignment.value())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "alignment ", alignment.value(), " is not a power of two"));
  }
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  ReliefState relief;
  do {
    MutexLock lock(&mutex_);
    std::optional<uint64_t> first =
        addresses_->Take(pages.value(), std::max(alignment, Bytes(1)).value());
    if (!first && HarvestAll()) {
      first = addresses_->Take(pages.value(),
                               std::max(alignment, Bytes(1)).value());
    }
    if (!first) {
      relief.freed_before = FreedSoFar();
      continue;
    }
    auto range = std::make_shared<ManagedRange>(addresses_->AddressOf(*first),
                                                *first, pages, owner);
    addresses_->Publish(*first, pages.value(), range.get());
    AddressRange* const result = range.get();
    ranges_.emplace(*first, std::move(range));
    AfterMutation();
    return result;
  } while (pages.value() <= addresses_->total_pages() &&
           Relieve(pages.value(), &relief));
  return OutOfAddresses(pages);
}

void DeviceMemory::Impl::ReleaseRange(AddressRange* range, const Fence& fence) {
  auto* const managed = static_cast<ManagedRange*>(range);
  MutexLock lock(&mutex_);
  addresses_->Publish(managed->first_page, managed->slots.size(), nullptr);
  managed->retired = true;
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
  MutexLock lock(&mutex_);
  const OwnerId before = range->owner();
  uint64_t moved = 0;
  QUIRE_RETURN_IF_ERROR(
      backing_.SetOwner(static_cast<ManagedRange*>(range), owner, &moved));
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
                                        std::span<const PageHandle> pages,
                                        bool wait) {
  QUIRE_RETURN_IF_ERROR(CheckSlots(range, first, count));
  const CommitRequest request{static_cast<ManagedRange*>(range), first.value(),
                              count.value(), pages};
  CommitAttempt attempt;
  ReliefState relief;
  relief.may_wait = wait;
  absl::Status status;
  do {
    MutexLock lock(&mutex_);
    status = backing_.TryCommit(request, &attempt);
    if (absl::IsResourceExhausted(status) && HarvestAll()) {
      status = backing_.TryCommit(request, &attempt);
    }
    relief.freed_before = FreedSoFar();
    if (status.ok() && attempt.became_live > 0) {
      Record(TraceAction::kCommit, range, first.value(), attempt.became_live);
    }
    if (!status.ok() && !absl::IsResourceExhausted(status)) {
      backing_.AbandonCommit(attempt);
    }
    AfterMutation();
    // More than the limit is never to be had: nobody's cache is worth trying.
    if (!absl::IsResourceExhausted(status) ||
        attempt.wanted > backing_.pool().limit()) {
      break;
    }
  } while (Relieve(attempt.missing, &relief));
  if (!absl::IsResourceExhausted(status)) return status;
  {
    MutexLock lock(&mutex_);
    backing_.AbandonCommit(attempt);
    AfterMutation();
    freed_.NotifyAll();
  }
  // What does not wait is tried again by its caller: no failure to report yet.
  const bool of_mappings =
      attempt.shortage == CommitAttempt::Shortage::kMappings;
  return OutOfMemory(wait ? range : nullptr, first,
                     of_mappings ? attempt.slots : attempt.wanted, status,
                     attempt.shortage);
}

absl::Status DeviceMemory::Impl::Remap(AddressRange* range, PageCount first,
                                       std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(CheckSlots(range, first, PageCount(pages.size())));
  auto* const managed = static_cast<ManagedRange*>(range);
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    uint64_t released = 0;
    status = backing_.Remap(managed, first.value(), pages, &released);
    if (absl::IsResourceExhausted(status) && HarvestAll()) {
      status = backing_.Remap(managed, first.value(), pages, &released);
    }
    if (released > 0) {
      Record(TraceAction::kDecommit, range, first.value(), released);
    }
    AfterMutation();
    freed_.NotifyAll();
  }
  if (!absl::IsResourceExhausted(status)) return status;
  return OutOfMemory(nullptr, first, pages.size(), status,
                     CommitAttempt::Shortage::kMappings);
}

absl::Status DeviceMemory::Impl::Decommit(AddressRange* range, PageCount first,
                                          PageCount count, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckSlots(range, first, count));
  MutexLock lock(&mutex_);
  uint64_t released = 0;
  const absl::Status status =
      backing_.Decommit(static_cast<ManagedRange*>(range), first.value(),
                        count.value(), fence, &released);
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
  return PageCount(
      static_cast<uint64_t>(std::count_if(begin, end, [](const PageSlot& slot) {
        return slot.state == SlotState::kLive;
      })));
}

PageHandle DeviceMemory::Impl::PageAt(const AddressRange* range,
                                      PageCount slot) const {
  if (slot >= range->pages()) return PageHandle();
  MutexLock lock(&mutex_);
  const PageSlot& found =
      static_cast<const ManagedRange*>(range)->slots[slot.value()];
  return found.state == SlotState::kLive ? found.page->handle : PageHandle();
}

bool DeviceMemory::Impl::Relieve(uint64_t wanted, ReliefState* state) {
  if (!state->asked_reclaimers && AskReclaimers(wanted)) {
    state->asked_reclaimers = true;
    return true;
  }
  // What reclaimers gave may be cooling: it comes before asking for more.
  if (state->may_wait) {
    AskReclaimers(wanted, &PageReclaimer::ReclaimCooling);
    if (WaitForCooling(state->freed_before)) {
      state->asked_reclaimers = false;
      return true;
    }
  }
  return state->asked_reclaimers && AskReclaimers(wanted);
}

bool DeviceMemory::Impl::AskReclaimers(uint64_t wanted, Ask ask) {
  // Counted here and not by what reclaimers say, so that one that promises and
  // does not give cannot keep a commit going round. A page under several slots
  // comes with the last of them: each slot given up is a step on the way.
  struct GivenUp {
    uint64_t pages;
    uint64_t slots;
  };
  const auto given_up = [this]() -> GivenUp {
    MutexLock lock(&mutex_);
    return {backing_.pages_given_up(), backing_.slots_given_up()};
  };
  const GivenUp before = given_up();
  GivenUp now = before;
  reclaimers_.ForEach([&](PageReclaimer* reclaimer) {
    (reclaimer->*ask)(PageCount(wanted - (now.pages - before.pages)));
    now = given_up();
    return now.pages - before.pages < wanted;
  });
  return now.slots > before.slots;
}

bool DeviceMemory::Impl::WaitForCooling(uint64_t freed_before) {
  MutexLock lock(&mutex_);
  for (auto interval = kFirstPollInterval;;
       interval = std::min(interval * 2, kLastPollInterval)) {
    HarvestAll();
    if (FreedSoFar() != freed_before) {
      AfterMutation();
      freed_.NotifyAll();
      return true;
    }
    if (!backing_.CanCool()) return false;
    freed_.WaitFor(&mutex_, interval);
  }
}

absl::Status DeviceMemory::Impl::Prepare(PageCount count) {
  absl::Status status;
  uint64_t wanted = 0;
  {
    MutexLock lock(&mutex_);
    PagePool& pool = backing_.pool();
    // What the limit allows; a sum of counts of existing pages cannot overflow.
    wanted = std::min(count.value(), pool.cached() + pool.growable());
    uint64_t created = 0;
    status = pool.Prepare(wanted, &created);
    if (!status.ok()) pool.Trim(pool.cached() - created);
    AfterMutation();
  }
  if (!absl::IsResourceExhausted(status)) return status;
  return OutOfMemory(nullptr, PageCount(0), wanted, status,
                     CommitAttempt::Shortage::kDevice);
}

PageCount DeviceMemory::Impl::Trim(PageCount keep) {
  const PageCount reclaimable = reclaimers_.Reclaimable();
  uint64_t beyond = 0;
  {
    MutexLock lock(&mutex_);
    HarvestAll();
    beyond = CheckedSubtract(
                 CheckedAdd(backing_.pool().cached(), reclaimable.value())
                     .value_or(UINT64_MAX),
                 keep.value())
                 .value_or(0);
  }
  const uint64_t wanted = std::min(beyond, reclaimable.value());
  if (wanted > 0) AskReclaimers(wanted);
  MutexLock lock(&mutex_);
  HarvestAll();
  const uint64_t given_back = backing_.pool().Trim(keep.value());
  AfterMutation();
  freed_.NotifyAll();
  return PageCount(given_back);
}

// ---- Errors -----------------------------------------------------------------

OutOfMemoryVerdict DeviceMemory::Impl::DescribeShortage(PageCount pages) {
  ShortageFacts facts;
  facts.requested = PageBytes(pages.value());
  facts.reclaimable = PageBytes(reclaimers_.Reclaimable().value());
  facts.device_total = device_total_;
  // Where the driver does not say, the device is taken to have what the pool
  // may still grow by: the verdict then rests on the pool's own numbers.
  const absl::StatusOr<DeviceMemoryInfo> info = driver_->GetMemoryInfo(device_);
  {
    MutexLock lock(&mutex_);
    const PagePool& pool = backing_.pool();
    facts.limit = PageBytes(pool.limit());
    facts.in_use = PageBytes(pool.in_use());
    facts.cached = PageBytes(pool.cached());
    facts.cooling = PageBytes(backing_.accounts().cooling());
    // Less than a page of free memory is none.
    facts.device_free = PageBytes(
        info.ok() ? info->free.value() / page_size_.value() : pool.growable());
    const std::vector<uint64_t>& by_owner = backing_.accounts().live_by_owner();
    for (uint32_t owner = 0; owner < by_owner.size(); ++owner) {
      if (by_owner[owner] == 0) continue;
      facts.owners.emplace_back(owners_->Name(OwnerId(owner)),
                                PageBytes(by_owner[owner]));
    }
  }
  return DiagnoseShortage(std::move(facts));
}

absl::Status DeviceMemory::Impl::OutOfMemory(AddressRange* range,
                                             PageCount first,
                                             uint64_t pages_wanted,
                                             const absl::Status& cause,
                                             CommitAttempt::Shortage shortage) {
  if (range != nullptr) {
    MutexLock lock(&mutex_);
    Record(TraceAction::kOutOfMemory, range, first.value(), pages_wanted);
  }
  OutOfMemoryVerdict verdict = DescribeShortage(PageCount(pages_wanted));
  if (shortage == CommitAttempt::Shortage::kMappings) {
    verdict.kind = ShortageKind::kMappings;
    verdict.advice = absl::StrCat(
        "use larger pages, or allow the process more mappings; the driver "
        "says: ",
        cause.message());
  }
  return verdict.ToStatus();
}

absl::Status DeviceMemory::Impl::OutOfAddresses(PageCount pages) const {
  OutOfMemoryVerdict verdict;
  verdict.kind = ShortageKind::kAddressSpace;
  verdict.requested = PageBytes(pages.value());
  verdict.device_total = device_total_;
  MutexLock lock(&mutex_);
  verdict.limit = PageBytes(addresses_->total_pages());
  verdict.free = PageBytes(addresses_->free_pages());
  verdict.largest_possible = PageBytes(addresses_->largest_free_run());
  verdict.cooling = PageBytes(backing_.accounts().cooling());
  verdict.advice =
      "reserve more addresses at start (address_space), or shorter ranges; "
      "this is not lack of memory";
  return verdict.ToStatus();
}

void DeviceMemory::Impl::Record(TraceAction action, const AddressRange* range,
                                uint64_t first, uint64_t pages) const {
  if (trace_ == nullptr) return;
  trace_->Record(
      action, range->owner(),
      static_cast<const ManagedRange*>(range)->SlotAddress(first, page_size_),
      PageBytes(pages), PageBytes(backing_.accounts().live()));
}

// ---- Figures ----------------------------------------------------------------

DeviceMemoryStatistics DeviceMemory::Impl::GetStatistics() const {
  MutexLock lock(&mutex_);
  const PagePool& pool = backing_.pool();
  const PageAccounts& accounts = backing_.accounts();
  const uint64_t reserved =
      addresses_->total_pages() - addresses_->free_pages();
  const uint64_t mapped = accounts.mapped_slots();
  DeviceMemoryStatistics statistics;
  statistics.page_size = page_size_;
  statistics.limit = PageBytes(pool.limit());
  statistics.address_space = PageBytes(addresses_->total_pages());
  statistics.reserved = PageBytes(reserved);
  statistics.mapped = PageBytes(mapped);
  statistics.unmapped = PageBytes(reserved - mapped);
  statistics.shared = PageBytes(mapped - accounts.live() - accounts.cooling() -
                                accounts.quarantined());
  statistics.in_use = PageBytes(pool.in_use());
  statistics.live = PageBytes(accounts.live());
  statistics.cooling = PageBytes(accounts.cooling());
  statistics.cached = PageBytes(pool.cached());
  statistics.quarantined = PageBytes(backing_.quarantined());
  statistics.peak_in_use = PageBytes(pool.peak_in_use());
  statistics.peak_live = PageBytes(accounts.peak_live());
  statistics.growable = PageBytes(pool.growable());
  statistics.pages_created = pool.created();
  statistics.pages_released = pool.released();
  statistics.commits = backing_.commits();
  statistics.commits_from_cache = backing_.commits_from_cache();
  return statistics;
}

absl::Status DeviceMemory::Impl::Health() const {
  MutexLock lock(&mutex_);
  return backing_.health();
}

std::vector<Bytes> DeviceMemory::Impl::GetLiveByOwner() const {
  MutexLock lock(&mutex_);
  std::vector<Bytes> live;
  live.reserve(backing_.accounts().live_by_owner().size());
  for (const uint64_t pages : backing_.accounts().live_by_owner()) {
    live.push_back(PageBytes(pages));
  }
  return live;
}

std::vector<DeviceMemory::PageMapEntry> DeviceMemory::Impl::CalculatePageMap()
    const {
  MutexLock lock(&mutex_);
  std::vector<PageMapEntry> entries;
  for (const auto& [first_page, range] : ranges_) {
    for (uint64_t i = 0; i < range->slots.size(); ++i) {
      const PageSlot& slot = range->slots[i];
      if (slot.state != SlotState::kLive && slot.state != SlotState::kCooling) {
        continue;
      }
      entries.push_back({range->SlotAddress(i, page_size_), slot.page->handle,
                         range->owner(), slot.state == SlotState::kCooling});
    }
  }
  return entries;
}

absl::Status DeviceMemory::Impl::CheckInvariants() const {
  MutexLock lock(&mutex_);
  return CheckInvariantsLocked();
}

void DeviceMemory::Impl::AfterMutation() {
  live_pages_.store(backing_.accounts().live(), std::memory_order_relaxed);
  if constexpr (kInternalChecks) {
    const uint64_t reserved =
        addresses_->total_pages() - addresses_->free_pages();
    if (reserved > kSlotsCheckedAlways &&
        ++mutations_ % kMutationsPerCheck != 0) {
      return;
    }
    RequireInvariant(CheckInvariantsLocked());
  }
}

absl::Status DeviceMemory::Impl::CheckInvariantsLocked() const {
  QUIRE_RETURN_IF_ERROR(addresses_->CheckInvariants());
  // Ranges and free runs must tile the reservation.
  std::map<uint64_t, uint64_t> pieces = addresses_->free_runs();
  std::vector<const ManagedRange*> ranges;
  for (const auto& [first_page, range] : ranges_) {
    ranges.push_back(range.get());
    pieces.emplace(first_page, range->slots.size());
    const AddressRange* const expected = range->retired ? nullptr : range.get();
    for (uint64_t i = 0; i < range->slots.size(); ++i) {
      const DeviceAddress address = range->SlotAddress(i, page_size_);
      if (addresses_->Find(address) != expected) {
        return absl::InternalError(absl::StrCat(
            "Find gives another range for address ", address.value()));
      }
    }
    if (range->retired && range->lingering == 0) {
      return absl::InternalError(absl::StrCat(
          "the range at ", range->address().value(),
          " was released, has nothing left, and keeps its addresses"));
    }
  }
  uint64_t end = 0;
  for (const auto& [first, pages] : pieces) {
    if (first != end) break;
    end += pages;
  }
  if (end != addresses_->total_pages()) {
    return absl::InternalError(absl::StrCat(
        "reserved = mapped + unmapped does not hold: ranges and free runs are "
        "not side by side at page ",
        end, " of ", addresses_->total_pages()));
  }
  return backing_.CheckInvariants(ranges);
}

}  // namespace quire
