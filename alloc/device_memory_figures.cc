// Statistics, reports and invariants of DeviceMemory.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "alloc/device_memory_impl.h"
#include "quire/alloc/internal_checks.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Address slots that a checking build walks after every mutation.
constexpr uint64_t kSlotsCheckedAlways = 4096;

}  // namespace

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
  statistics.asleep = PageBytes(backing_.saved().count());
  statistics.asleep_on_host = Bytes(archive_use_.host.load());
  statistics.asleep_on_disk = Bytes(archive_use_.disk.load());
  statistics.peak_in_use = PageBytes(pool.peak_in_use());
  statistics.peak_live = PageBytes(accounts.peak_live());
  statistics.over_limit =
      PageBytes(SaturatingSubtract(pool.in_use(), pool.limit()));
  statistics.soft_limit = LimitBytes(soft_limit_);
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
  for (const OwnerAccount& account : backing_.accounts().owners().accounts()) {
    live.push_back(PageBytes(account.own));
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
      if (!IsLive(slot) && !IsCooling(slot)) continue;
      entries.push_back({range->SlotAddress(i, page_size_), slot.page->handle,
                         range->owner(), IsCooling(slot)});
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
  RecordPhysicalMemory();
  UpdatePressure();
  FillUpAfterCommit();
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

void DeviceMemory::Impl::RecordPhysicalMemory() {
  const uint64_t now = backing_.pool().in_use();
  const uint64_t before = std::exchange(traced_pages_, now);
  if (now > before) {
    RecordOfDevice(TraceAction::kReserve, now - before);
  } else if (now < before) {
    RecordOfDevice(TraceAction::kRelease, before - now);
  }
}

void DeviceMemory::Impl::RecordOfDevice(TraceAction action, uint64_t pages,
                                        OwnerId owner) const {
  if (trace_ == nullptr) return;
  trace_->Record(action, owner, first_address(), PageBytes(pages),
                 PageBytes(backing_.pool().in_use()));
}

absl::Status DeviceMemory::Impl::CheckInvariantsLocked() const {
  QUIRE_RETURN_IF_ERROR(addresses_->CheckInvariants());
  // Ranges and free runs must tile the reservation.
  std::map<uint64_t, uint64_t> pieces;  // address, bytes
  for (const auto& [begin, run] : addresses_->free_runs().runs()) {
    pieces.emplace(begin, run.length);
  }
  std::vector<const ManagedRange*> ranges;
  for (const auto& [first_page, range] : ranges_) {
    ranges.push_back(range.get());
    pieces.emplace(addresses_->AddressOf(first_page).value(),
                   PageBytes(range->slots.size()).value());
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
  uint64_t reached = first_address().value();
  for (const auto& [begin, bytes] : pieces) {
    if (begin != reached) break;
    reached += bytes;
  }
  if (reached != addresses_->AddressOf(addresses_->total_pages()).value()) {
    return absl::InternalError(absl::StrFormat(
        "reserved = mapped + unmapped does not hold: ranges and free runs are "
        "not side by side at %#x",
        reached));
  }
  return backing_.CheckInvariants(ranges);
}

}  // namespace quire
