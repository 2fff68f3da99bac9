#include "quire/alloc/device_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "alloc/address_space.h"
#include "alloc/device_memory_impl.h"
#include "alloc/pressure_gauge.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Bytes in use of a page are counted in 32 bits.
constexpr Bytes kLargestPage = GiB(2);
constexpr Bytes kLeastDefaultAddressSpace = GiB(64);
constexpr uint64_t kDefaultAddressSpaceFactor = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::Create(
    Driver* driver, OwnerRegistry* owners, DeviceMemoryOptions options) {
  QUIRE_ASSIGN_OR_RETURN(const DeviceInfo info,
                         driver->GetDeviceInfo(options.device));
  const uint64_t page_size = options.page_size.value();
  if (!IsPowerOfTwo(page_size) || info.minimum_granularity.zero() ||
      page_size % info.minimum_granularity.value() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page size ", page_size, " must be a power of two and a multiple of ",
        info.minimum_granularity.value(), ", the granularity of device ",
        options.device.value()));
  }
  QUIRE_RETURN_IF_ERROR(CheckThresholds(options.pressure));
  if (options.limit.zero()) {
    QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo now,
                           driver->GetMemoryInfo(options.device));
    QUIRE_ASSIGN_OR_RETURN(options.limit,
                           LimitFromUtilization(now, 1.0, options.headroom));
  }
  if (options.page_size > kLargestPage) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a page of ", FormatBytes(options.page_size),
        ": there are none of more than ", FormatBytes(kLargestPage)));
  }
  const uint64_t limit = options.limit.value() / page_size;
  if (limit == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a limit of ", options.limit.value(), " bytes on device ",
        options.device.value(), " does not hold one page of ", page_size));
  }
  Bytes size = options.address_space;
  Bytes minimum = size;
  if (size.zero()) {
    minimum = options.limit;
    size = std::max(kLeastDefaultAddressSpace,
                    CheckedMultiply(options.limit, kDefaultAddressSpaceFactor)
                        .value_or(Bytes(UINT64_MAX)));
    size = std::max(size, minimum);
  }
  // Down to whole pages: what is left over could not be handed out.
  size = Bytes(size.value() / page_size * page_size);
  minimum = Bytes(minimum.value() / page_size * page_size);
  if (minimum.zero()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an address space of ", options.address_space.value(),
                     " bytes does not hold one page of ", page_size));
  }
  QUIRE_ASSIGN_OR_RETURN(
      std::unique_ptr<AddressSpace> addresses,
      AddressSpace::Create(driver, size, minimum, options.page_size));
  auto impl = std::make_unique<Impl>(driver, owners, options, info.total_memory,
                                     limit, std::move(addresses));
  QUIRE_RETURN_IF_ERROR(impl->SetSoftLimit(options.soft_limit));
  QUIRE_RETURN_IF_ERROR(impl->StartPreparing(options.prepare_ahead.value()));
  return std::unique_ptr<DeviceMemory>(new DeviceMemory(std::move(impl)));
}

DeviceMemory::DeviceMemory(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
DeviceMemory::~DeviceMemory() {
  // Its locks, its thread and its driver are the parent's.
  if (in_forked_child()) (void)impl_.release();
}

Driver* DeviceMemory::driver() const { return impl_->driver(); }
DeviceId DeviceMemory::device() const { return impl_->device(); }
Bytes DeviceMemory::page_size() const { return impl_->page_size(); }
DeviceAddress DeviceMemory::first_address() const {
  return impl_->first_address();
}

OwnerRegistry* DeviceMemory::owners() const { return impl_->owners(); }
bool DeviceMemory::in_forked_child() const {
  return impl_->fork_guard().in_child();
}

absl::StatusOr<AddressRange*> DeviceMemory::ReserveRange(PageCount pages,
                                                         OwnerId owner,
                                                         Bytes alignment) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->ReserveRange(pages, owner, alignment);
}
void DeviceMemory::ReleaseRange(AddressRange* range, const Fence& fence) {
  if (in_forked_child()) return;
  impl_->ReleaseRange(range, fence);
}
absl::Status DeviceMemory::SetOwner(AddressRange* range, OwnerId owner) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->SetOwner(range, owner);
}
AddressRange* DeviceMemory::Find(DeviceAddress address) const {
  return impl_->Find(address);
}
bool DeviceMemory::Contains(DeviceAddress address) const {
  return impl_->Contains(address);
}
absl::Status DeviceMemory::Commit(AddressRange* range, PageCount first,
                                  PageCount count) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->Commit(range, first, count, {});
}
absl::Status DeviceMemory::TryCommit(AddressRange* range, PageCount first,
                                     PageCount count) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->TryCommit(range, first, count, {});
}
absl::Status DeviceMemory::CommitPages(AddressRange* range, PageCount first,
                                       std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->Commit(range, first, PageCount(pages.size()), pages);
}
absl::Status DeviceMemory::TryCommitPages(AddressRange* range, PageCount first,
                                          std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->TryCommit(range, first, PageCount(pages.size()), pages);
}
absl::Status DeviceMemory::Remap(AddressRange* range, PageCount first,
                                 std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->Remap(range, first, pages);
}
absl::Status DeviceMemory::Decommit(AddressRange* range, PageCount first,
                                    PageCount count, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->Decommit(range, first, count, fence);
}
PageCount DeviceMemory::CommittedPages(const AddressRange* range,
                                       PageCount first, PageCount count) const {
  if (in_forked_child()) return PageCount(0);
  return impl_->CommittedPages(range, first, count);
}
PageHandle DeviceMemory::PageAt(const AddressRange* range,
                                PageCount slot) const {
  if (in_forked_child()) return PageHandle();
  return impl_->PageAt(range, slot);
}
void DeviceMemory::AppendPages(const AddressRange* range, PageCount first,
                               PageCount count,
                               std::vector<PageHandle>* pages) const {
  if (!in_forked_child()) impl_->AppendPages(range, first, count, pages);
}
absl::Status DeviceMemory::Gather(OwnerId owner, PageCount pages,
                                  PageCount addresses, Bytes alignment,
                                  bool wait) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->Gather(owner, pages, addresses, alignment, wait);
}
absl::StatusOr<AddressRange*> DeviceMemory::TryMakeRange(
    OwnerId owner, Bytes alignment, std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->TryMakeRange(owner, alignment, pages);
}
absl::StatusOr<AddressRange*> DeviceMemory::TryReserveRange(PageCount pages,
                                                            OwnerId owner,
                                                            Bytes alignment) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->TryReserveRange(pages, owner, alignment);
}
absl::Status DeviceMemory::TryBackSlots(AddressRange* range, PageCount first,
                                        PageCount count) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->TryBackSlots(range, first, count);
}
PageCount DeviceMemory::Harvest() {
  if (in_forked_child()) return PageCount(0);
  return impl_->HarvestCached();
}
absl::Status DeviceMemory::Prepare(PageCount count) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->Prepare(count);
}
CompactionReport DeviceMemory::Trim(PageCount keep) {
  if (in_forked_child()) return CompactionReport();
  return impl_->Trim(keep);
}
absl::Status DeviceMemory::SetLimit(Bytes limit) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->SetLimit(limit);
}
absl::Status DeviceMemory::SetSoftLimit(Bytes limit) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->SetSoftLimit(limit);
}
absl::Status DeviceMemory::SetOwnerLimits(OwnerId owner,
                                          const OwnerLimits& limits) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->SetOwnerLimits(owner, limits);
}
OwnerStatistics DeviceMemory::GetOwnerStatistics(OwnerId owner) const {
  if (in_forked_child()) return OwnerStatistics{.owner = owner};
  return impl_->GetOwnerStatistics(owner);
}
std::vector<OwnerStatistics> DeviceMemory::GetOwnerStatistics() const {
  if (in_forked_child()) return {};
  return impl_->GetOwnerStatistics();
}
void DeviceMemory::AddReclaimer(PageReclaimer* reclaimer) {
  if (in_forked_child()) return;
  impl_->reclaimers().Add(reclaimer);
}
void DeviceMemory::RemoveReclaimer(PageReclaimer* reclaimer) {
  if (in_forked_child()) return;
  impl_->reclaimers().Remove(reclaimer);
}
void DeviceMemory::AddHooks(MemoryHooks* hooks) {
  if (in_forked_child()) return;
  impl_->AddHooks(hooks);
}
void DeviceMemory::RemoveHooks(MemoryHooks* hooks) {
  if (in_forked_child()) return;
  impl_->RemoveHooks(hooks);
}
bool DeviceMemory::AskOutOfMemoryHooks(const absl::Status& status) {
  if (in_forked_child()) return false;
  return impl_->AskOutOfMemoryHooks(status);
}
PageCount DeviceMemory::CalculateLargestCommit(
    OwnerId owner, std::span<const uint64_t> idle) const {
  if (in_forked_child()) return PageCount(0);
  return impl_->CalculateLargestCommit(owner, idle);
}
PageCount DeviceMemory::ReclaimablePages() const {
  if (in_forked_child()) return PageCount(0);
  return impl_->ReclaimablePages();
}
absl::Status DeviceMemory::DescribeShortage(PageCount pages, OwnerId owner,
                                            VerdictDetail detail) const {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->DescribeShortage(pages, owner, detail).ToStatus();
}
absl::Status DeviceMemory::DescribeMappingShortage(
    PageCount pages, OwnerId owner, const absl::Status& refusal) const {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->OutOfMemory({owner, pages.value(),
                             CommitAttempt::Shortage::kMappings, refusal,
                             VerdictDetail::kFull});
}
absl::StatusOr<SleepReport> DeviceMemory::Sleep(const QuiescentSection& section,
                                                OwnerId owner,
                                                const SleepOptions& options) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  QUIRE_RETURN_IF_ERROR(section.CheckOpen(*this, "sleep"));
  return impl_->Sleep(owner, options);
}
absl::StatusOr<SleepReport> DeviceMemory::Wake(OwnerId owner,
                                               const WakeOptions& options) {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->Wake(owner, options);
}
bool DeviceMemory::in_quiescence() const { return impl_->in_quiescence(); }
absl::Status DeviceMemory::BeginQuiescence() {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  if (impl_->TryBeginQuiescence()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a quiescent section of this memory is open already");
}
void DeviceMemory::EndQuiescence() { impl_->EndQuiescence(); }
DeviceMemoryStatistics DeviceMemory::GetStatistics() const {
  if (in_forked_child()) return DeviceMemoryStatistics();
  return impl_->GetStatistics();
}
Bytes DeviceMemory::live_bytes() const { return impl_->live_bytes(); }
PressureLevel DeviceMemory::pressure() const { return impl_->pressure(); }
Bytes DeviceMemory::limit() const { return impl_->limit(); }
absl::Status DeviceMemory::Health() const {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->Health();
}
std::vector<Bytes> DeviceMemory::GetLiveByOwner() const {
  if (in_forked_child()) return {};
  return impl_->GetLiveByOwner();
}
std::vector<DeviceMemory::PageMapEntry> DeviceMemory::CalculatePageMap() const {
  if (in_forked_child()) return {};
  return impl_->CalculatePageMap();
}
absl::Status DeviceMemory::CheckInvariants() const {
  QUIRE_RETURN_IF_ERROR(impl_->fork_guard().Check());
  return impl_->CheckInvariants();
}

}  // namespace quire
