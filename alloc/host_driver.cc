// Locking: `memory_mutex_` guards addresses, pages and pinned memory;
// `stream_mutex_` guards the tables of streams and events. Neither is held
// while work runs or is waited for, and never both at once.

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
#include "alloc/host_address_space.h"
#include "alloc/host_kernel.h"
#include "alloc/host_page_memory.h"
#include "alloc/host_stream.h"
#include "alloc/page_table.h"
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

absl::Status UnknownStream(StreamId stream) {
  return absl::NotFoundError(absl::StrFormat(
      "stream %d does not exist or was destroyed", stream.value()));
}

absl::Status UnknownEvent(EventId event) {
  return absl::NotFoundError(absl::StrFormat(
      "event %d does not exist or was destroyed", event.value()));
}

// A host function that waits for a stream may wait for itself.
absl::Status CheckMayWait(const char* call) {
  if (!HostStream::OnStreamThread()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: called from a host function on a stream", call));
}

absl::Status CheckHostPointer(const char* call, const void* host, Bytes size) {
  if (host != nullptr || size.zero()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: the host address is null", call));
}

absl::Status WrongDevice(const char* call, DeviceAddress address,
                         DeviceId memory_device, StreamId stream,
                         DeviceId stream_device) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %#x is memory of device %d, stream %d is of device %d", call,
      address.value(), memory_device.value(), stream.value(),
      stream_device.value()));
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

  DriverCallStatistics GetCallStatistics() const override {
    return recorder_.Get();
  }
  std::vector<std::string> Leaks() const override;
  VirtualClock* clock() override { return &clock_; }

 private:
  struct Event {
    DeviceId device;
    std::shared_ptr<StreamMark> mark;  // null: never recorded
  };

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

  absl::Status CheckDevice(const char* call, DeviceId device) const;
  absl::StatusOr<DeviceInfo> DoGetDeviceInfo(DeviceId device) const;
  absl::StatusOr<DeviceMemoryInfo> DoGetMemoryInfo(DeviceId device) const;
  absl::StatusOr<PageHandle> DoCreatePage(DeviceId device, Bytes size);
  absl::Status DoMap(DeviceAddress address, std::span<const PageHandle> pages);
  void DropMappings(std::span<const PageHandle> pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(memory_mutex_);

  absl::StatusOr<std::shared_ptr<HostStream>> FindStream(StreamId stream);
  absl::StatusOr<std::shared_ptr<StreamMark>> FindMark(EventId event);
  absl::StatusOr<StreamId> DoCreateStream(DeviceId device);
  absl::StatusOr<EventId> DoCreateEvent(DeviceId device);
  absl::Status DoDestroyStream(StreamId stream);
  absl::Status DoRecordEvent(EventId event, StreamId stream);
  absl::Status DoWaitEvent(StreamId stream, EventId event);

  // OK where `stream` may touch all of the range. The device of the memory.
  absl::StatusOr<DeviceId> CheckAccess(const char* call, DeviceAddress address,
                                       Bytes size);
  // Queues work that touches one range, of the stream's device. `work` is null
  // where there is nothing to do but to check.
  absl::Status QueueAccess(const char* call, DeviceAddress address, Bytes size,
                           StreamId stream, std::function<void()> work);
  absl::Status DoCopyOnDevice(DeviceAddress to, DeviceAddress from, Bytes size,
                              StreamId stream);
  absl::StatusOr<void*> DoAllocatePinned(Bytes size);
  absl::Status DoFreePinned(void* memory);

  void AppendMemoryLeaks(std::vector<std::string>* leaks) const;
  void AppendStreamLeaks(std::vector<std::string>* leaks) const;

  const HostDriverOptions options_;
  VirtualClock clock_;
  DriverCallRecorder recorder_;

  mutable Mutex memory_mutex_;
  const std::vector<std::unique_ptr<HostPageMemory>> memory_
      ABSL_GUARDED_BY(memory_mutex_);
  HostAddressSpace space_ ABSL_GUARDED_BY(memory_mutex_);
  PageTable pages_ ABSL_GUARDED_BY(memory_mutex_);
  std::map<void*, uint64_t> pinned_ ABSL_GUARDED_BY(memory_mutex_);

  mutable Mutex stream_mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(stream_mutex_) = 0;
  std::map<StreamId, std::shared_ptr<HostStream>> streams_
      ABSL_GUARDED_BY(stream_mutex_);
  std::map<EventId, Event> events_ ABSL_GUARDED_BY(stream_mutex_);
};

HostDriverImpl::~HostDriverImpl() {
  std::map<StreamId, std::shared_ptr<HostStream>> streams;
  {
    MutexLock lock(&stream_mutex_);
    streams.swap(streams_);
  }
  // Waits for what is queued, while the memory that it uses is still there.
  streams.clear();
  MutexLock lock(&memory_mutex_);
  for (const auto& [memory, size] : pinned_) munmap(memory, size);
}

std::vector<int> HostDriverImpl::Files(
    const std::vector<std::unique_ptr<HostPageMemory>>& memory) {
  std::vector<int> files;
  for (const auto& device : memory) files.push_back(device->fd());
  return files;
}

absl::Status HostDriverImpl::CheckDevice(const char* call,
                                         DeviceId device) const {
  if (device.value() >= 0 && device.value() < options_.device_count) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: no device %d; there are %d", call, device.value(),
                      options_.device_count));
}

absl::StatusOr<DeviceInfo> HostDriverImpl::GetDeviceInfo(DeviceId device) {
  return Finish(DriverCall::kGetDeviceInfo, DoGetDeviceInfo(device));
}

absl::StatusOr<DeviceInfo> HostDriverImpl::DoGetDeviceInfo(
    DeviceId device) const {
  QUIRE_RETURN_IF_ERROR(CheckDevice("GetDeviceInfo", device));
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
  QUIRE_RETURN_IF_ERROR(CheckDevice("GetMemoryInfo", device));
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
  QUIRE_RETURN_IF_ERROR(CheckDevice("CreatePage", device));
  if (size.zero() || size.value() % options_.granularity.value() != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "CreatePage: size %d is not a positive multiple of the granularity %d",
        size.value(), options_.granularity.value()));
  }
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
  QUIRE_ASSIGN_OR_RETURN(const std::vector<PhysicalPage> found,
                         pages_.FindRun(pages));
  std::vector<PageHandle> mapped;
  const absl::Status status = space_.Map(address.value(), found, &mapped);
  for (const PageHandle page : mapped) pages_.AddMapping(page);
  return status;
}

absl::Status HostDriverImpl::Unmap(DeviceAddress address, Bytes size) {
  absl::Status status;
  size_t count = 0;
  {
    MutexLock lock(&memory_mutex_);
    std::vector<PageHandle> unmapped;
    status = space_.Unmap(address.value(), size.value(), &unmapped);
    DropMappings(unmapped);
    count = unmapped.size();
  }
  return Finish(DriverCall::kUnmap, count * options_.costs.unmap_page,
                std::move(status));
}

// ---- Streams and events -----------------------------------------------------

absl::StatusOr<StreamId> HostDriverImpl::CreateStream(DeviceId device) {
  return Finish(DriverCall::kCreateStream, DoCreateStream(device));
}

absl::StatusOr<StreamId> HostDriverImpl::DoCreateStream(DeviceId device) {
  QUIRE_RETURN_IF_ERROR(CheckDevice("CreateStream", device));
  MutexLock lock(&stream_mutex_);
  const StreamId stream(++last_id_);
  streams_[stream] = std::make_shared<HostStream>(device);
  return stream;
}

absl::StatusOr<std::shared_ptr<HostStream>> HostDriverImpl::FindStream(
    StreamId stream) {
  MutexLock lock(&stream_mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return UnknownStream(stream);
  return found->second;
}

absl::Status HostDriverImpl::DestroyStream(StreamId stream) {
  return Finish(DriverCall::kDestroyStream, DoDestroyStream(stream));
}

absl::Status HostDriverImpl::DoDestroyStream(StreamId stream) {
  QUIRE_RETURN_IF_ERROR(CheckMayWait("DestroyStream"));
  std::shared_ptr<HostStream> destroyed;
  {
    MutexLock lock(&stream_mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return UnknownStream(stream);
    destroyed = std::move(found->second);
    streams_.erase(found);
  }
  destroyed->Synchronize();
  return absl::OkStatus();
}

absl::Status HostDriverImpl::SynchronizeStream(StreamId stream) {
  absl::Status status = CheckMayWait("SynchronizeStream");
  if (status.ok()) {
    const auto found = FindStream(stream);
    if (found.ok()) (*found)->Synchronize();
    status = found.status();
  }
  return Finish(DriverCall::kSynchronizeStream, std::move(status));
}

absl::StatusOr<EventId> HostDriverImpl::CreateEvent(DeviceId device) {
  return Finish(DriverCall::kCreateEvent, DoCreateEvent(device));
}

absl::StatusOr<EventId> HostDriverImpl::DoCreateEvent(DeviceId device) {
  QUIRE_RETURN_IF_ERROR(CheckDevice("CreateEvent", device));
  MutexLock lock(&stream_mutex_);
  const EventId event(++last_id_);
  events_[event] = {device, nullptr};
  return event;
}

absl::Status HostDriverImpl::DestroyEvent(EventId event) {
  absl::Status status;
  {
    MutexLock lock(&stream_mutex_);
    if (events_.erase(event) == 0) status = UnknownEvent(event);
  }
  return Finish(DriverCall::kDestroyEvent, std::move(status));
}

absl::Status HostDriverImpl::RecordEvent(EventId event, StreamId stream) {
  return Finish(DriverCall::kRecordEvent, DoRecordEvent(event, stream));
}

absl::Status HostDriverImpl::DoRecordEvent(EventId event, StreamId stream) {
  MutexLock lock(&stream_mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return UnknownEvent(event);
  const auto target = streams_.find(stream);
  if (target == streams_.end()) return UnknownStream(stream);
  if (found->second.device != target->second->device()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "RecordEvent: event %d is of device %d, stream %d of device %d",
        event.value(), found->second.device.value(), stream.value(),
        target->second->device().value()));
  }
  auto mark = std::make_shared<StreamMark>();
  QUIRE_RETURN_IF_ERROR(target->second->Enqueue([mark] { mark->Reach(); }));
  found->second.mark = std::move(mark);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<StreamMark>> HostDriverImpl::FindMark(
    EventId event) {
  MutexLock lock(&stream_mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return UnknownEvent(event);
  return found->second.mark;
}

absl::StatusOr<bool> HostDriverImpl::QueryEvent(EventId event) {
  const auto mark = FindMark(event);
  return Finish(
      DriverCall::kQueryEvent,
      mark.ok() ? absl::StatusOr<bool>(*mark == nullptr || (*mark)->reached())
                : mark.status());
}

absl::Status HostDriverImpl::SynchronizeEvent(EventId event) {
  absl::Status status = CheckMayWait("SynchronizeEvent");
  if (status.ok()) {
    const auto mark = FindMark(event);
    if (mark.ok() && *mark != nullptr) (*mark)->Wait();
    status = mark.status();
  }
  return Finish(DriverCall::kSynchronizeEvent, std::move(status));
}

absl::Status HostDriverImpl::WaitEvent(StreamId stream, EventId event) {
  return Finish(DriverCall::kWaitEvent, DoWaitEvent(stream, event));
}

absl::Status HostDriverImpl::DoWaitEvent(StreamId stream, EventId event) {
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<HostStream> target,
                         FindStream(stream));
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<StreamMark> mark,
                         FindMark(event));
  if (mark == nullptr || mark->reached()) return absl::OkStatus();
  return target->Enqueue([mark] { mark->Wait(); });
}

// ---- Work -------------------------------------------------------------------

absl::StatusOr<DeviceId> HostDriverImpl::CheckAccess(const char* call,
                                                     DeviceAddress address,
                                                     Bytes size) {
  MutexLock lock(&memory_mutex_);
  auto device = space_.table().CheckAccess(address.value(), size.value());
  if (device.ok()) return device;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s", call, std::string(device.status().message())));
}

absl::Status HostDriverImpl::QueueAccess(const char* call,
                                         DeviceAddress address, Bytes size,
                                         StreamId stream,
                                         std::function<void()> work) {
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<HostStream> target,
                         FindStream(stream));
  if (size.zero()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const DeviceId device,
                         CheckAccess(call, address, size));
  if (device != target->device()) {
    return WrongDevice(call, address, device, stream, target->device());
  }
  return work ? target->Enqueue(std::move(work)) : absl::OkStatus();
}

absl::Status HostDriverImpl::CopyToDevice(DeviceAddress to, const void* from,
                                          Bytes size, StreamId stream) {
  absl::Status status = CheckHostPointer("CopyToDevice", from, size);
  if (status.ok()) {
    std::function<void()> work;
    if (backed()) {
      work = [=] { std::memcpy(to.host_pointer<void>(), from, size.value()); };
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
                         FindStream(stream));
  if (size.zero()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const DeviceId to_device,
                         CheckAccess("CopyOnDevice", to, size));
  QUIRE_ASSIGN_OR_RETURN(const DeviceId from_device,
                         CheckAccess("CopyOnDevice", from, size));
  if (to_device != target->device() && from_device != target->device()) {
    return WrongDevice("CopyOnDevice", to, to_device, stream, target->device());
  }
  const uint64_t distance =
      std::max(to.value(), from.value()) - std::min(to.value(), from.value());
  if (distance < size.value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("CopyOnDevice: %s and %s overlap",
                        FormatRange(to.value(), size.value()),
                        FormatRange(from.value(), size.value())));
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
    const auto target = FindStream(stream);
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
  const auto rounded = CheckedAlignUp(size.value(), kKernelPage);
  if (size.zero() || !rounded) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "AllocatePinned: %d bytes cannot be allocated", size.value()));
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
  pinned_[memory] = *rounded;
  return memory;
}

absl::Status HostDriverImpl::FreePinned(void* memory) {
  return Finish(DriverCall::kFreePinned, DoFreePinned(memory));
}

absl::Status HostDriverImpl::DoFreePinned(void* memory) {
  MutexLock lock(&memory_mutex_);
  const auto found = pinned_.find(memory);
  if (found == pinned_.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("FreePinned: %p is not pinned memory", memory));
  }
  munmap(memory, found->second);
  pinned_.erase(found);
  return absl::OkStatus();
}

// ---- Teardown check ---------------------------------------------------------

std::vector<std::string> HostDriverImpl::Leaks() const {
  std::vector<std::string> leaks;
  AppendMemoryLeaks(&leaks);
  AppendStreamLeaks(&leaks);
  return leaks;
}

void HostDriverImpl::AppendMemoryLeaks(std::vector<std::string>* leaks) const {
  MutexLock lock(&memory_mutex_);
  for (const auto& [address, size] : space_.table().reservations()) {
    leaks->push_back(absl::StrFormat("address range %s is still reserved",
                                     FormatRange(address, size)));
  }
  for (const auto& [address, mapping] : space_.table().mappings()) {
    leaks->push_back(
        mapping.quarantined
            ? absl::StrFormat("%s is in quarantine",
                              FormatRange(address, mapping.page.size))
            : absl::StrFormat("page %d is still mapped at %s",
                              mapping.page.handle.value(),
                              FormatRange(address, mapping.page.size)));
  }
  std::vector<PageTable::Entry> held;
  for (const auto& [handle, entry] : pages_.entries()) {
    if (!entry.released) held.push_back(entry);
  }
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
    return a.page.handle < b.page.handle;
  });
  for (const PageTable::Entry& entry : held) {
    leaks->push_back(absl::StrFormat(
        "page %d of %s on device %d is not released", entry.page.handle.value(),
        FormatBytes(Bytes(entry.page.size)), entry.page.device.value()));
  }
  for (const auto& [memory, size] : pinned_) {
    leaks->push_back(absl::StrFormat("pinned host memory of %s at %p",
                                     FormatBytes(Bytes(size)), memory));
  }
}

void HostDriverImpl::AppendStreamLeaks(std::vector<std::string>* leaks) const {
  MutexLock lock(&stream_mutex_);
  for (const auto& [stream, unused] : streams_) {
    leaks->push_back(
        absl::StrFormat("stream %d is not destroyed", stream.value()));
  }
  for (const auto& [event, unused] : events_) {
    leaks->push_back(
        absl::StrFormat("event %d is not destroyed", event.value()));
  }
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

}  // namespace quire
