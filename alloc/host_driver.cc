// Locking: `memory_mutex_` guards addresses, pages and pinned memory. It is not
// held while work runs or is waited for.

#include "quire/alloc/host_driver.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/driver_call_recorder.h"
#include "alloc/driver_checks.h"
#include "alloc/host_address_space.h"
#include "alloc/host_kernel.h"
#include "alloc/host_page_memory.h"
#include "alloc/host_stream_table.h"
#include "alloc/page_table.h"
#include "alloc/pinned_table.h"
#include "alloc/streaming_copy.h"
#include "quire/alloc/host_pages.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kKernelPage = 4096;

// Kernel mappings that the rest of the process keeps, whatever the options say.
constexpr uint64_t kMappingsForOthers = 1024;

// Unmap may exceed the limit by a sixteenth (host_address_space.h): both
// together stay below what the kernel allows.
uint64_t UsableMappingLimit(uint64_t wanted) {
  const uint64_t allowed = SystemMappingLimit();
  if (allowed <= kMappingsForOthers) return std::min(wanted, allowed / 2);
  return std::min(wanted, (allowed - kMappingsForOthers) / 17 * 16);
}

class HostDriverImpl : public HostDriver {
 public:
  HostDriverImpl(const HostDriverOptions& options,
                 std::vector<std::unique_ptr<HostPageMemory>> memory)
      : options_(options),
        memory_(std::move(memory)),
        space_(SystemHostKernel(), options.granularity.value(),
               UsableMappingLimit(options.mapping_limit), Files(memory_)) {}
  ~HostDriverImpl() override;

  std::string name() const override { return "host"; }
  bool device_memory_is_host_memory() const override { return backed(); }
  int device_count() const override { return options_.device_count; }
  absl::StatusOr<DeviceInfo> GetDeviceInfo(DeviceId device) override;
  absl::StatusOr<DeviceMemoryInfo> GetMemoryInfo(DeviceId device) override;

  absl::StatusOr<DeviceAddress> ReserveAddress(Bytes size,
                                               Bytes alignment) override;
  absl::Status ReleaseAddress(DeviceAddress address, Bytes size) override;
  absl::StatusOr<PageHandle> CreatePage(DeviceId device, Bytes size) override;
  absl::Status ReleasePage(PageHandle page) override;
  absl::Status Map(DeviceAddress address,
                   std::span<const PageHandle> pages) override;
  absl::Status Unmap(DeviceAddress address, Bytes size) override;

  absl::StatusOr<StreamId> CreateStream(DeviceId device) override;
  absl::Status DestroyStream(StreamId stream) override;
  absl::Status SynchronizeStream(StreamId stream) override;
  absl::StatusOr<EventId> CreateEvent(DeviceId device) override;
  absl::Status DestroyEvent(EventId event) override;
  absl::Status RecordEvent(EventId event, StreamId stream) override;
  absl::StatusOr<bool> QueryEvent(EventId event) override;
  absl::Status SynchronizeEvent(EventId event) override;
  absl::Status WaitEvent(StreamId stream, EventId event) override;

  absl::Status CopyToDevice(DeviceAddress to, const void* from, Bytes size,
                            StreamId stream) override;
  absl::Status CopyToHost(void* to, DeviceAddress from, Bytes size,
                          StreamId stream) override;
  absl::Status CopyOnDevice(DeviceAddress to, DeviceAddress from, Bytes size,
                            StreamId stream) override;
  absl::Status Fill(DeviceAddress to, uint8_t value, Bytes size,
                    StreamId stream) override;
  absl::Status LaunchHostFunction(StreamId stream,
                                  std::function<void()> function) override;

  absl::StatusOr<void*> AllocatePinned(Bytes size) override;
  absl::Status FreePinned(void* memory) override;
  absl::Status PinMemory(void* memory, Bytes size) override;
  absl::Status UnpinMemory(void* memory) override;

  DriverCallStatistics GetCallStatistics() const override {
    return recorder_.Get();
  }
  std::vector<std::string> Leaks() const override;
  std::vector<HostPage> ListPages() const;
  VirtualClock* clock() override { return &clock_; }

 private:
  static std::vector<int> Files(
      const std::vector<std::unique_ptr<HostPageMemory>>& memory);

  bool backed() const {
    return options_.backing == HostDriverOptions::Backing::kMemory;
  }
  // Counts the call and charges what it costs; a call that is refused is free.
  template <typename Result>
  Result Finish(DriverCall call, uint64_t cost, Result result) {
    const uint64_t spent = result.ok() ? cost : 0;
    clock_.Advance(spent);
    recorder_.Record(call, result.ok(), spent);
    return result;
  }
  template <typename Result>
  Result Finish(DriverCall call, Result result) {
    return Finish(call, options_.costs.other, std::move(result));
  }

  absl::StatusOr<DeviceInfo> DoGetDeviceInfo(DeviceId device) const;
  absl::StatusOr<DeviceMemoryInfo> DoGetMemoryInfo(DeviceId device) const;
  absl::StatusOr<PageHandle> DoCreatePage(DeviceId device, Bytes size);
  absl::Status DoMap(DeviceAddress address, std::span<const PageHandle> pages);
  void DropMappings(std::span<const PageHandle> pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(memory_mutex_);

  // Queues work that touches one range, of the stream's device. `work` is null
  // where there is nothing to do but to check.
  absl::Status QueueAccess(const char* call, DeviceAddress address, Bytes size,
                           StreamId stream, std::function<void()> work);
  absl::Status DoCopyOnDevice(DeviceAddress to, DeviceAddress from, Bytes size,
                              StreamId stream);
  absl::StatusOr<void*> DoAllocatePinned(Bytes size);
  absl::Status DoFreePinned(void* memory);
  absl::Status DoPinMemory(void* memory, Bytes size);
  absl::Status DoUnpinMemory(void* memory);

  void AppendMemoryLeaks(std::vector<std::string>* leaks) const;

  const HostDriverOptions options_;
  VirtualClock clock_;
  DriverCallRecorder recorder_;

  mutable Mutex memory_mutex_;
  const std::vector<std::unique_ptr<HostPageMemory>> memory_
      ABSL_GUARDED_BY(memory_mutex_);
  HostAddressSpace space_ ABSL_GUARDED_BY(memory_mutex_);
  PageTable pages_ ABSL_GUARDED_BY(memory_mutex_);
  // Memory for each Map and Unmap in turn.
  std::vector<PhysicalPage> run_ ABSL_GUARDED_BY(memory_mutex_);
  std::vector<PageHandle> changed_ ABSL_GUARDED_BY(memory_mutex_);
  PinnedTable pinned_ ABSL_GUARDED_BY(memory_mutex_);

  // Destroyed first: work that is queued uses the memory above.
  HostStreamTable streams_;
};

HostDriverImpl::~HostDriverImpl() {
  streams_.Synchronize();
  MutexLock lock(&memory_mutex_);
  for (const auto& [memory, range] : pinned_.ranges()) {
    if (range.origin == PinnedTable::Origin::kAllocated)
      munmap(memory, range.size.value());
  }
}

std::vector<int> HostDriverImpl::Files(
    const std::vector<std::unique_ptr<HostPageMemory>>& memory) {
  std::vector<int> files;
  for (const auto& device : memory) files.push_back(device->fd());
  return files;
}

absl::StatusOr<DeviceInfo> HostDriverImpl::GetDeviceInfo(DeviceId device) {
  return Finish(DriverCall::kGetDeviceInfo, DoGetDeviceInfo(device));
}

absl::StatusOr<DeviceInfo> HostDriverImpl::DoGetDeviceInfo(
    DeviceId device) const {
  QUIRE_RETURN_IF_ERROR(CheckDevice("GetDeviceInfo", device, device_count()));
  return DeviceInfo{absl::StrFormat("software device %d", device.value()),
                    options_.memory_per_device, options_.granularity,
                    options_.granularity};
}

absl::StatusOr<DeviceMemoryInfo> HostDriverImpl::GetMemoryInfo(
    DeviceId device) {
  return Finish(DriverCall::kGetMemoryInfo, DoGetMemoryInfo(device));
}

absl::StatusOr<DeviceMemoryInfo> HostDriverImpl::DoGetMemoryInfo(
    DeviceId device) const {
  QUIRE_RETURN_IF_ERROR(CheckDevice("GetMemoryInfo", device, device_count()));
  MutexLock lock(&memory_mutex_);
  const HostPageMemory& memory = *memory_[device.value()];
  return DeviceMemoryInfo{Bytes(memory.capacity() - memory.used()),
                          Bytes(memory.capacity())};
}

// ---- Addresses and pages ----------------------------------------------------

absl::StatusOr<DeviceAddress> HostDriverImpl::ReserveAddress(Bytes size,
                                                             Bytes alignment) {
  absl::StatusOr<uint64_t> address;
  {
    MutexLock lock(&memory_mutex_);
    address = space_.Reserve(size.value(), alignment.value());
  }
  return Finish(DriverCall::kReserveAddress, options_.costs.reserve_address,
                address.ok()
                    ? absl::StatusOr<DeviceAddress>(DeviceAddress(*address))
                    : address.status());
}

absl::Status HostDriverImpl::ReleaseAddress(DeviceAddress address, Bytes size) {
  absl::Status status;
  {
    MutexLock lock(&memory_mutex_);
    std::vector<PageHandle> unmapped;
    status = space_.Release(address.value(), size.value(), &unmapped);
    DropMappings(unmapped);
  }
  return Finish(DriverCall::kReleaseAddress, options_.costs.release_address,
                std::move(status));
}

absl::StatusOr<PageHandle> HostDriverImpl::CreatePage(DeviceId device,
                                                      Bytes size) {
  return Finish(DriverCall::kCreatePage, options_.costs.create_page,
                DoCreatePage(device, size));
}

absl::StatusOr<PageHandle> HostDriverImpl::DoCreatePage(DeviceId device,
                                                        Bytes size) {
  QUIRE_RETURN_IF_ERROR(CheckDevice("CreatePage", device, device_count()));
  QUIRE_RETURN_IF_ERROR(CheckPageSize(size, options_.granularity.value()));
  MutexLock lock(&memory_mutex_);
  QUIRE_ASSIGN_OR_RETURN(const uint64_t offset,
                         memory_[device.value()]->Allocate(size.value()));
  return pages_.Add(device, size.value(), offset);
}

absl::Status HostDriverImpl::ReleasePage(PageHandle page) {
  absl::Status status;
  {
    MutexLock lock(&memory_mutex_);
    const auto freed = pages_.Release(page);
    status = freed.status();
    if (freed.ok() && *freed) {
      memory_[(*freed)->device.value()]->Free((*freed)->backing,
                                              (*freed)->size);
    }
  }
  return Finish(DriverCall::kReleasePage, options_.costs.release_page,
                std::move(status));
}

void HostDriverImpl::DropMappings(std::span<const PageHandle> pages) {
  for (const PageHandle page : pages) {
    const auto freed = pages_.DropMapping(page);
    if (freed)
      memory_[freed->device.value()]->Free(freed->backing, freed->size);
  }
}

absl::Status HostDriverImpl::Map(DeviceAddress address,
                                 std::span<const PageHandle> pages) {
  return Finish(
      DriverCall::kMap,
      pages.size() * options_.costs.map_page + options_.costs.set_access,
      DoMap(address, pages));
}

absl::Status HostDriverImpl::DoMap(DeviceAddress address,
                                   std::span<const PageHandle> pages) {
  MutexLock lock(&memory_mutex_);
  QUIRE_RETURN_IF_ERROR(pages_.FindRun(pages, &run_));
  changed_.clear();
  const absl::Status status = space_.Map(address.value(), run_, &changed_);
  for (const PageHandle page : changed_) pages_.AddMapping(page);
  return status;
}

absl::Status HostDriverImpl::Unmap(DeviceAddress address, Bytes size) {
  absl::Status status;
  size_t count = 0;
  {
    MutexLock lock(&memory_mutex_);
    changed_.clear();
    status = space_.Unmap(address.value(), size.value(), &changed_);
    DropMappings(changed_);
    count = changed_.size();
  }
  return Finish(DriverCall::kUnmap, count * options_.costs.unmap_page,
                std::move(status));
}

// ---- Streams and events -----------------------------------------------------

absl::StatusOr<StreamId> HostDriverImpl::CreateStream(DeviceId device) {
  absl::Status status = CheckDevice("CreateStream", device, device_count());
  return Finish(DriverCall::kCreateStream,
                status.ok()
                    ? absl::StatusOr<StreamId>(streams_.CreateStream(device))
                    : std::move(status));
}

absl::Status HostDriverImpl::DestroyStream(StreamId stream) {
  return Finish(DriverCall::kDestroyStream, streams_.DestroyStream(stream));
}

absl::Status HostDriverImpl::SynchronizeStream(StreamId stream) {
  return Finish(DriverCall::kSynchronizeStream,
                streams_.SynchronizeStream(stream));
}

absl::StatusOr<EventId> HostDriverImpl::CreateEvent(DeviceId device) {
  absl::Status status = CheckDevice("CreateEvent", device, device_count());
  return Finish(DriverCall::kCreateEvent,
                status.ok()
                    ? absl::StatusOr<EventId>(streams_.CreateEvent(device))
                    : std::move(status));
}

absl::Status HostDriverImpl::DestroyEvent(EventId event) {
  return Finish(DriverCall::kDestroyEvent, streams_.DestroyEvent(event));
}

absl::Status HostDriverImpl::RecordEvent(EventId event, StreamId stream) {
  return Finish(DriverCall::kRecordEvent, streams_.RecordEvent(event, stream));
}

absl::StatusOr<bool> HostDriverImpl::QueryEvent(EventId event) {
  return Finish(DriverCall::kQueryEvent, streams_.QueryEvent(event));
}

absl::Status HostDriverImpl::SynchronizeEvent(EventId event) {
  return Finish(DriverCall::kSynchronizeEvent,
                streams_.SynchronizeEvent(event));
}

absl::Status HostDriverImpl::WaitEvent(StreamId stream, EventId event) {
  return Finish(DriverCall::kWaitEvent, streams_.WaitEvent(stream, event));
}

// ---- Work -------------------------------------------------------------------

absl::Status HostDriverImpl::QueueAccess(const char* call,
                                         DeviceAddress address, Bytes size,
                                         StreamId stream,
                                         std::function<void()> work) {
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<HostStream> target,
                         streams_.FindStream(stream));
  if (size.zero()) return absl::OkStatus();
  {
    MutexLock lock(&memory_mutex_);
    QUIRE_RETURN_IF_ERROR(CheckStreamAccess(call, space_.table(), address, size,
                                            {stream, target->device()}));
  }
  return work ? target->Enqueue(std::move(work)) : absl::OkStatus();
}

absl::Status HostDriverImpl::CopyToDevice(DeviceAddress to, const void* from,
                                          Bytes size, StreamId stream) {
  absl::Status status = CheckHostPointer("CopyToDevice", from, size);
  if (status.ok()) {
    std::function<void()> work;
    if (backed()) {
      work = [=] {
        StreamingCopy(to.host_pointer<void>(), from, size.value());
      };
    }
    status = QueueAccess("CopyToDevice", to, size, stream, std::move(work));
  }
  return Finish(DriverCall::kCopyToDevice, std::move(status));
}

absl::Status HostDriverImpl::CopyToHost(void* to, DeviceAddress from,
                                        Bytes size, StreamId stream) {
  absl::Status status = CheckHostPointer("CopyToHost", to, size);
  if (status.ok()) {
    std::function<void()> work;
    if (backed()) {
      work = [=] { std::memcpy(to, from.host_pointer<void>(), size.value()); };
    } else {
      work = [=] { std::memset(to, 0, size.value()); };
    }
    status = QueueAccess("CopyToHost", from, size, stream, std::move(work));
  }
  return Finish(DriverCall::kCopyToHost, std::move(status));
}

absl::Status HostDriverImpl::Fill(DeviceAddress to, uint8_t value, Bytes size,
                                  StreamId stream) {
  std::function<void()> work;
  if (backed()) {
    work = [=] { std::memset(to.host_pointer<void>(), value, size.value()); };
  }
  return Finish(DriverCall::kFill,
                QueueAccess("Fill", to, size, stream, std::move(work)));
}

absl::Status HostDriverImpl::CopyOnDevice(DeviceAddress to, DeviceAddress from,
                                          Bytes size, StreamId stream) {
  return Finish(DriverCall::kCopyOnDevice,
                DoCopyOnDevice(to, from, size, stream));
}

absl::Status HostDriverImpl::DoCopyOnDevice(DeviceAddress to,
                                            DeviceAddress from, Bytes size,
                                            StreamId stream) {
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<HostStream> target,
                         streams_.FindStream(stream));
  if (size.zero()) return absl::OkStatus();
  {
    MutexLock lock(&memory_mutex_);
    QUIRE_RETURN_IF_ERROR(CheckDeviceCopy(space_.table(), to, from, size,
                                          {stream, target->device()}));
  }
  if (!backed()) return absl::OkStatus();
  return target->Enqueue([=] {
    std::memcpy(to.host_pointer<void>(), from.host_pointer<void>(),
                size.value());
  });
}

absl::Status HostDriverImpl::LaunchHostFunction(
    StreamId stream, std::function<void()> function) {
  absl::Status status;
  if (function == nullptr) {
    status = absl::InvalidArgumentError("LaunchHostFunction: no function");
  } else {
    const auto target = streams_.FindStream(stream);
    status =
        target.ok() ? (*target)->Enqueue(std::move(function)) : target.status();
  }
  return Finish(DriverCall::kLaunchHostFunction, std::move(status));
}

// ---- Pinned host memory -----------------------------------------------------

absl::StatusOr<void*> HostDriverImpl::AllocatePinned(Bytes size) {
  return Finish(DriverCall::kAllocatePinned, DoAllocatePinned(size));
}

absl::StatusOr<void*> HostDriverImpl::DoAllocatePinned(Bytes size) {
  QUIRE_RETURN_IF_ERROR(CheckPinnedSize(size));
  const auto rounded = CheckedAlignUp(size.value(), kKernelPage);
  if (!rounded) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "AllocatePinned: out of host memory: asked for %s", FormatBytes(size)));
  }
  // Anonymous, so that it counts as what it is: host memory of the process.
  void* const memory = mmap(nullptr, *rounded, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("AllocatePinned: out of host memory: asked for %s: %s",
                        FormatBytes(size), std::strerror(errno)));
  }
  MutexLock lock(&memory_mutex_);
  pinned_.Add(memory, Bytes(*rounded), PinnedTable::Origin::kAllocated);
  return memory;
}

absl::Status HostDriverImpl::FreePinned(void* memory) {
  return Finish(DriverCall::kFreePinned, DoFreePinned(memory));
}

absl::Status HostDriverImpl::DoFreePinned(void* memory) {
  MutexLock lock(&memory_mutex_);
  QUIRE_ASSIGN_OR_RETURN(
      const Bytes size,
      pinned_.Remove(memory, PinnedTable::Origin::kAllocated));
  munmap(memory, size.value());
  return absl::OkStatus();
}

absl::Status HostDriverImpl::PinMemory(void* memory, Bytes size) {
  return Finish(DriverCall::kPinMemory, DoPinMemory(memory, size));
}

absl::Status HostDriverImpl::DoPinMemory(void* memory, Bytes size) {
  MutexLock lock(&memory_mutex_);
  return pinned_.AddOfCaller(memory, size);
}

absl::Status HostDriverImpl::UnpinMemory(void* memory) {
  return Finish(DriverCall::kUnpinMemory, DoUnpinMemory(memory));
}

absl::Status HostDriverImpl::DoUnpinMemory(void* memory) {
  MutexLock lock(&memory_mutex_);
  return pinned_.Remove(memory, PinnedTable::Origin::kCaller).status();
}

// ---- Teardown check ---------------------------------------------------------

std::vector<HostPage> HostDriverImpl::ListPages() const {
  MutexLock lock(&memory_mutex_);
  std::map<std::pair<int, uint64_t>, HostPage> pages;
  pages_.ForEach([&](const PageTable::Entry& entry) {
    const PhysicalPage& page = entry.page;
    pages[{page.device.value(), page.backing}] = {
        page.device, Bytes(page.backing), Bytes(page.size), {}};
  });
  space_.table().ForEachMapping([&](const PageMapping& mapping) {
    if (mapping.addresses_lost()) return;
    const PhysicalPage& page = mapping.page;
    pages.at({page.device.value(), page.backing})
        .addresses.push_back(DeviceAddress(mapping.address));
  });
  std::vector<HostPage> result;
  result.reserve(pages.size());
  for (auto& [place, page] : pages) result.push_back(std::move(page));
  return result;
}

std::vector<std::string> HostDriverImpl::Leaks() const {
  std::vector<std::string> leaks;
  AppendMemoryLeaks(&leaks);
  streams_.AppendLeaks(&leaks);
  return leaks;
}

void HostDriverImpl::AppendMemoryLeaks(std::vector<std::string>* leaks) const {
  MutexLock lock(&memory_mutex_);
  for (const auto& [address, size] : space_.table().reservations()) {
    leaks->push_back(absl::StrFormat("address range %s is still reserved",
                                     FormatRange(address, size)));
  }
  space_.table().ForEachMapping([leaks](const PageMapping& mapping) {
    const std::string range = FormatRange(mapping.address, mapping.page.size);
    leaks->push_back(mapping.quarantined
                         ? absl::StrFormat("%s is in quarantine", range)
                         : absl::StrFormat("page %d is still mapped at %s",
                                           mapping.page.handle.value(), range));
  });
  pages_.ForEach([leaks](const PageTable::Entry& entry) {
    if (entry.released) return;
    leaks->push_back(absl::StrFormat(
        "page %d of %s on device %d is not released", entry.page.handle.value(),
        FormatBytes(Bytes(entry.page.size)), entry.page.device.value()));
  });
  pinned_.AppendLeaks(leaks);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostDriver>> HostDriver::Create(
    const HostDriverOptions& options) {
  if (options.device_count < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "device_count %d: at least one is needed", options.device_count));
  }
  if (options.memory_per_device.zero()) {
    return absl::InvalidArgumentError("memory_per_device is 0");
  }
  const uint64_t granularity = options.granularity.value();
  if (granularity < kKernelPage || !IsPowerOfTwo(granularity)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "granularity %d: a power of two, at least %d, is needed", granularity,
        kKernelPage));
  }
  std::vector<std::unique_ptr<HostPageMemory>> memory;
  for (int i = 0; i < options.device_count; ++i) {
    QUIRE_ASSIGN_OR_RETURN(
        std::unique_ptr<HostPageMemory> device,
        HostPageMemory::Create(
            DeviceId(i), options.memory_per_device.value(),
            options.backing == HostDriverOptions::Backing::kMemory));
    memory.push_back(std::move(device));
  }
  return std::make_unique<HostDriverImpl>(options, std::move(memory));
}

std::vector<HostPage> ListHostPages(const HostDriver& driver) {
  return static_cast<const HostDriverImpl&>(driver).ListPages();
}

}  // namespace quire
