// Locking: `memory_mutex_` guards addresses, pages and pinned memory and is
// held over the driver's calls that change them, which the driver serialises
// anyway; `stream_mutex_` guards the tables of streams and events. Neither is
// held while anything is waited for.

#include "alloc/cuda_driver_impl.h"

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_format.h"
#include "alloc/cuda_address_space.h"
#include "alloc/cuda_context.h"
#include "alloc/cuda_devices.h"
#include "alloc/cuda_host_functions.h"
#include "alloc/cuda_status.h"
#include "alloc/driver_call_recorder.h"
#include "alloc/driver_checks.h"
#include "alloc/page_table.h"
#include "alloc/pinned_table.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

std::vector<CUdevice> DeviceNumbers(const std::vector<CudaDevice>& devices) {
  std::vector<CUdevice> numbers;
  for (const CudaDevice& device : devices) numbers.push_back(device.device);
  return numbers;
}

class CudaDriver : public Driver {
 public:
  CudaDriver(const CudaFunctionTable& cuda, std::vector<CudaDevice> devices)
      : cuda_(cuda),
        devices_(std::move(devices)),
        contexts_(&cuda_, DeviceNumbers(devices_)),
        space_(&cuda_, &devices_) {}
  ~CudaDriver() override;

  std::string name() const override { return "cuda"; }
  bool device_memory_is_host_memory() const override { return false; }
  int device_count() const override {
    return static_cast<int>(devices_.size());
  }
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
  absl::StatusOr<StreamId> AdoptStream(DeviceId device, void* stream) override;
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

 private:
  struct Stream {
    CUstream stream;
    DeviceId device;
    bool adopted = false;  // not ours to destroy
  };
  struct Event {
    CUevent event;
    DeviceId device;
  };

  // Counts the call and the time that it takes.
  template <typename Function>
  auto Timed(DriverCall call, Function function) -> decltype(function());
  absl::Status Check(const char* function, CUresult result) const {
    return CudaStatus(cuda_, function, result);
  }
  absl::StatusOr<Stream> FindStream(StreamId stream) const;
  absl::StatusOr<Event> FindEvent(EventId event) const;
  // Calls `function` with the stream, in its device's context.
  template <typename Function>
  absl::Status OnStream(const char* name, StreamId stream, Function function);
  // The same for work on one range of the device, once that is checked.
  template <typename Function>
  absl::Status OnRange(const char* call, const char* name,
                       DeviceAddress address, Bytes size, StreamId stream,
                       Function function);
  absl::Status DropMappings(std::span<const PageHandle> pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(memory_mutex_);
  // Gives the range up, unless `release` fails.
  absl::Status Unpin(void* memory, PinnedTable::Origin origin,
                     absl::FunctionRef<absl::Status()> release);

  const CudaFunctionTable cuda_;
  const std::vector<CudaDevice> devices_;
  DriverCallRecorder recorder_;
  CudaContexts contexts_;

  mutable Mutex memory_mutex_;
  CudaAddressSpace space_ ABSL_GUARDED_BY(memory_mutex_);
  PageTable pages_ ABSL_GUARDED_BY(memory_mutex_);
  PinnedTable pinned_ ABSL_GUARDED_BY(memory_mutex_);

  mutable Mutex stream_mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(stream_mutex_) = 0;
  std::map<StreamId, Stream> streams_ ABSL_GUARDED_BY(stream_mutex_);
  std::map<EventId, Event> events_ ABSL_GUARDED_BY(stream_mutex_);

  CudaHostFunctions host_functions_;
};

CudaDriver::~CudaDriver() {
  // Best effort: at the end of the process the driver may be gone already.
  const ScopedRelaxedCapture relaxed(&cuda_);
  {
    MutexLock lock(&stream_mutex_);
    for (const auto& [id, stream] : streams_) {
      const auto context = contexts_.Enter(stream.device);
      // An adopted stream may be gone: its owner has had to wait for it.
      if (stream.adopted) continue;
      (void)cuda_.StreamSynchronize(stream.stream);
      (void)cuda_.StreamDestroy(stream.stream);
    }
    for (const auto& [id, event] : events_) {
      const auto context = contexts_.Enter(event.device);
      (void)cuda_.EventDestroy(event.event);
    }
  }
  MutexLock lock(&memory_mutex_);
  // The memory itself goes with the last mapping, at the end of `space_`.
  pages_.ForEach([this](const PageTable::Entry& entry) {
    (void)cuda_.MemRelease(entry.page.backing);
  });
  if (pinned_.ranges().empty()) return;
  const auto context = contexts_.EnterAny();
  for (const auto& [memory, range] : pinned_.ranges()) {
    if (range.origin == PinnedTable::Origin::kAllocated) {
      (void)cuda_.MemFreeHost(memory);
    } else {
      (void)cuda_.MemHostUnregister(memory);
    }
  }
}

template <typename Function>
auto CudaDriver::Timed(DriverCall call, Function function)
    -> decltype(function()) {
  const auto start = std::chrono::steady_clock::now();
  const ScopedRelaxedCapture relaxed(&cuda_);
  auto result = function();
  const auto spent = std::chrono::steady_clock::now() - start;
  recorder_.Record(
      call, result.ok(),
      std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
  return result;
}

absl::StatusOr<DeviceInfo> CudaDriver::GetDeviceInfo(DeviceId device) {
  return Timed(DriverCall::kGetDeviceInfo, [&]() -> absl::StatusOr<DeviceInfo> {
    QUIRE_RETURN_IF_ERROR(CheckDevice("GetDeviceInfo", device, device_count()));
    return devices_[device.value()].info;
  });
}

absl::StatusOr<DeviceMemoryInfo> CudaDriver::GetMemoryInfo(DeviceId device) {
  return Timed(DriverCall::kGetMemoryInfo,
               [&]() -> absl::StatusOr<DeviceMemoryInfo> {
                 QUIRE_RETURN_IF_ERROR(
                     CheckDevice("GetMemoryInfo", device, device_count()));
                 QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                                        contexts_.Enter(device));
                 size_t free = 0;
                 size_t total = 0;
                 QUIRE_RETURN_IF_ERROR(
                     Check("cuMemGetInfo", cuda_.MemGetInfo(&free, &total)));
                 return DeviceMemoryInfo{Bytes(free), Bytes(total)};
               });
}

// ---- Addresses and pages ----------------------------------------------------

absl::StatusOr<DeviceAddress> CudaDriver::ReserveAddress(Bytes size,
                                                         Bytes alignment) {
  return Timed(
      DriverCall::kReserveAddress, [&]() -> absl::StatusOr<DeviceAddress> {
        MutexLock lock(&memory_mutex_);
        QUIRE_ASSIGN_OR_RETURN(const uint64_t address,
                               space_.Reserve(size.value(), alignment.value()));
        return DeviceAddress(address);
      });
}

absl::Status CudaDriver::ReleaseAddress(DeviceAddress address, Bytes size) {
  return Timed(DriverCall::kReleaseAddress, [&] {
    MutexLock lock(&memory_mutex_);
    return space_.Release(address.value(), size.value());
  });
}

absl::StatusOr<PageHandle> CudaDriver::CreatePage(DeviceId device, Bytes size) {
  return Timed(DriverCall::kCreatePage, [&]() -> absl::StatusOr<PageHandle> {
    QUIRE_RETURN_IF_ERROR(CheckDevice("CreatePage", device, device_count()));
    const CudaDevice& target = devices_[device.value()];
    QUIRE_RETURN_IF_ERROR(
        CheckPageSize(size, target.info.minimum_granularity.value()));
    const CUmemAllocationProp properties = CudaPageProperties(target.device);
    MutexLock lock(&memory_mutex_);
    CUmemGenericAllocationHandle handle = 0;
    QUIRE_RETURN_IF_ERROR(CudaStatus(
        cuda_, "cuMemCreate",
        cuda_.MemCreate(&handle, size.value(), &properties, /*flags=*/0),
        absl::StrFormat("%s of physical memory on device %d", FormatBytes(size),
                        device.value())));
    return pages_.Add(device, size.value(), handle);
  });
}

absl::Status CudaDriver::ReleasePage(PageHandle page) {
  return Timed(DriverCall::kReleasePage, [&]() -> absl::Status {
    MutexLock lock(&memory_mutex_);
    QUIRE_ASSIGN_OR_RETURN(const PhysicalPage found, pages_.Find(page));
    // A mapped page keeps its handle in the driver, so that an unmap can be
    // undone; the last unmap releases it.
    if (pages_.MappingCount(page) == 0) {
      QUIRE_RETURN_IF_ERROR(
          Check("cuMemRelease", cuda_.MemRelease(found.backing)));
    }
    return pages_.Release(page).status();
  });
}

absl::Status CudaDriver::DropMappings(std::span<const PageHandle> pages) {
  absl::Status status;
  for (const PageHandle page : pages) {
    const auto freed = pages_.DropMapping(page);
    if (!freed) continue;
    const absl::Status released =
        Check("cuMemRelease", cuda_.MemRelease(freed->backing));
    if (released.ok()) continue;
    status = absl::DataLossError(
        absl::StrFormat("%s: page %d is unmapped, but its memory is lost",
                        std::string(released.message()), page.value()));
  }
  return status;
}

absl::Status CudaDriver::Map(DeviceAddress address,
                             std::span<const PageHandle> pages) {
  return Timed(DriverCall::kMap, [&]() -> absl::Status {
    MutexLock lock(&memory_mutex_);
    std::vector<PhysicalPage> found;
    QUIRE_RETURN_IF_ERROR(pages_.FindRun(pages, &found));
    std::vector<PageHandle> mapped;
    const absl::Status status = space_.Map(address.value(), found, &mapped);
    for (const PageHandle page : mapped) pages_.AddMapping(page);
    return status;
  });
}

absl::Status CudaDriver::Unmap(DeviceAddress address, Bytes size) {
  return Timed(DriverCall::kUnmap, [&]() -> absl::Status {
    MutexLock lock(&memory_mutex_);
    std::vector<PageHandle> unmapped;
    QUIRE_RETURN_IF_ERROR(
        space_.Unmap(address.value(), size.value(), &unmapped));
    return DropMappings(unmapped);
  });
}

// ---- Streams and events -----------------------------------------------------

absl::StatusOr<CudaDriver::Stream> CudaDriver::FindStream(
    StreamId stream) const {
  MutexLock lock(&stream_mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return UnknownStream(stream);
  return found->second;
}

absl::StatusOr<CudaDriver::Event> CudaDriver::FindEvent(EventId event) const {
  MutexLock lock(&stream_mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return UnknownEvent(event);
  return found->second;
}

template <typename Function>
absl::Status CudaDriver::OnStream(const char* name, StreamId stream,
                                  Function function) {
  QUIRE_ASSIGN_OR_RETURN(const Stream target, FindStream(stream));
  QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                         contexts_.Enter(target.device));
  return Check(name, function(target.stream));
}

absl::StatusOr<StreamId> CudaDriver::CreateStream(DeviceId device) {
  return Timed(DriverCall::kCreateStream, [&]() -> absl::StatusOr<StreamId> {
    QUIRE_RETURN_IF_ERROR(CheckDevice("CreateStream", device, device_count()));
    QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                           contexts_.Enter(device));
    CUstream stream = nullptr;
    // Without ties to the null stream, which other code in the process uses.
    QUIRE_RETURN_IF_ERROR(Check(
        "cuStreamCreate", cuda_.StreamCreate(&stream, CU_STREAM_NON_BLOCKING)));
    MutexLock lock(&stream_mutex_);
    const StreamId id(++last_id_);
    streams_[id] = {stream, device, /*adopted=*/false};
    return id;
  });
}

absl::StatusOr<StreamId> CudaDriver::AdoptStream(DeviceId device,
                                                 void* stream) {
  QUIRE_RETURN_IF_ERROR(CheckDevice("AdoptStream", device, device_count()));
  // Null means the default stream of whatever context is current: by its own
  // name it is that of the device, whose context is entered for each call.
  CUstream native =
      stream == nullptr ? CU_STREAM_LEGACY : static_cast<CUstream>(stream);
  MutexLock lock(&stream_mutex_);
  for (const auto& [id, known] : streams_) {
    if (known.adopted && known.stream == native && known.device == device) {
      return id;
    }
  }
  const StreamId id(++last_id_);
  streams_[id] = {native, device, /*adopted=*/true};
  return id;
}

absl::Status CudaDriver::DestroyStream(StreamId stream) {
  return Timed(DriverCall::kDestroyStream, [&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        OnStream("cuStreamSynchronize", stream,
                 [&](CUstream s) { return cuda_.StreamSynchronize(s); }));
    QUIRE_ASSIGN_OR_RETURN(const Stream found, FindStream(stream));
    if (!found.adopted) {
      QUIRE_RETURN_IF_ERROR(
          OnStream("cuStreamDestroy", stream,
                   [&](CUstream s) { return cuda_.StreamDestroy(s); }));
    }
    MutexLock lock(&stream_mutex_);
    streams_.erase(stream);
    return absl::OkStatus();
  });
}

absl::Status CudaDriver::SynchronizeStream(StreamId stream) {
  return Timed(DriverCall::kSynchronizeStream, [&] {
    return OnStream("cuStreamSynchronize", stream,
                    [&](CUstream s) { return cuda_.StreamSynchronize(s); });
  });
}

absl::StatusOr<EventId> CudaDriver::CreateEvent(DeviceId device) {
  return Timed(DriverCall::kCreateEvent, [&]() -> absl::StatusOr<EventId> {
    QUIRE_RETURN_IF_ERROR(CheckDevice("CreateEvent", device, device_count()));
    QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                           contexts_.Enter(device));
    CUevent event = nullptr;
    QUIRE_RETURN_IF_ERROR(Check(
        "cuEventCreate", cuda_.EventCreate(&event, CU_EVENT_DISABLE_TIMING)));
    MutexLock lock(&stream_mutex_);
    const EventId id(++last_id_);
    events_[id] = {event, device};
    return id;
  });
}

absl::Status CudaDriver::DestroyEvent(EventId event) {
  return Timed(DriverCall::kDestroyEvent, [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const Event found, FindEvent(event));
    QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                           contexts_.Enter(found.device));
    QUIRE_RETURN_IF_ERROR(
        Check("cuEventDestroy", cuda_.EventDestroy(found.event)));
    MutexLock lock(&stream_mutex_);
    events_.erase(event);
    return absl::OkStatus();
  });
}

absl::Status CudaDriver::RecordEvent(EventId event, StreamId stream) {
  return Timed(DriverCall::kRecordEvent, [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const Event found, FindEvent(event));
    QUIRE_ASSIGN_OR_RETURN(const Stream target, FindStream(stream));
    QUIRE_RETURN_IF_ERROR(
        CheckRecord({event, found.device}, {stream, target.device}));
    return OnStream("cuEventRecord", stream, [&](CUstream s) {
      return cuda_.EventRecord(found.event, s);
    });
  });
}

absl::StatusOr<bool> CudaDriver::QueryEvent(EventId event) {
  return Timed(DriverCall::kQueryEvent, [&]() -> absl::StatusOr<bool> {
    QUIRE_ASSIGN_OR_RETURN(const Event found, FindEvent(event));
    QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                           contexts_.Enter(found.device));
    const CUresult result = cuda_.EventQuery(found.event);
    if (result == CUDA_ERROR_NOT_READY) return false;
    QUIRE_RETURN_IF_ERROR(Check("cuEventQuery", result));
    return true;
  });
}

absl::Status CudaDriver::SynchronizeEvent(EventId event) {
  return Timed(DriverCall::kSynchronizeEvent, [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const Event found, FindEvent(event));
    QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                           contexts_.Enter(found.device));
    return Check("cuEventSynchronize", cuda_.EventSynchronize(found.event));
  });
}

absl::Status CudaDriver::WaitEvent(StreamId stream, EventId event) {
  return Timed(DriverCall::kWaitEvent, [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const Event found, FindEvent(event));
    return OnStream("cuStreamWaitEvent", stream, [&](CUstream s) {
      return cuda_.StreamWaitEvent(s, found.event, CU_EVENT_WAIT_DEFAULT);
    });
  });
}

// ---- Work -------------------------------------------------------------------

template <typename Function>
absl::Status CudaDriver::OnRange(const char* call, const char* name,
                                 DeviceAddress address, Bytes size,
                                 StreamId stream, Function function) {
  QUIRE_ASSIGN_OR_RETURN(const Stream target, FindStream(stream));
  if (size.zero()) return absl::OkStatus();
  {
    MutexLock lock(&memory_mutex_);
    QUIRE_RETURN_IF_ERROR(CheckStreamAccess(call, space_.table(), address, size,
                                            {stream, target.device}));
  }
  return OnStream(name, stream, function);
}

absl::Status CudaDriver::CopyToDevice(DeviceAddress to, const void* from,
                                      Bytes size, StreamId stream) {
  return Timed(DriverCall::kCopyToDevice, [&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckHostPointer("CopyToDevice", from, size));
    return OnRange(
        "CopyToDevice", "cuMemcpyHtoDAsync", to, size, stream, [&](CUstream s) {
          return cuda_.MemcpyHtoDAsync(to.value(), from, size.value(), s);
        });
  });
}

absl::Status CudaDriver::CopyToHost(void* to, DeviceAddress from, Bytes size,
                                    StreamId stream) {
  return Timed(DriverCall::kCopyToHost, [&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckHostPointer("CopyToHost", to, size));
    return OnRange(
        "CopyToHost", "cuMemcpyDtoHAsync", from, size, stream, [&](CUstream s) {
          return cuda_.MemcpyDtoHAsync(to, from.value(), size.value(), s);
        });
  });
}

absl::Status CudaDriver::CopyOnDevice(DeviceAddress to, DeviceAddress from,
                                      Bytes size, StreamId stream) {
  return Timed(DriverCall::kCopyOnDevice, [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const Stream target, FindStream(stream));
    if (size.zero()) return absl::OkStatus();
    {
      MutexLock lock(&memory_mutex_);
      QUIRE_RETURN_IF_ERROR(CheckDeviceCopy(space_.table(), to, from, size,
                                            {stream, target.device}));
    }
    return OnStream("cuMemcpyDtoDAsync", stream, [&](CUstream s) {
      return cuda_.MemcpyDtoDAsync(to.value(), from.value(), size.value(), s);
    });
  });
}

absl::Status CudaDriver::Fill(DeviceAddress to, uint8_t value, Bytes size,
                              StreamId stream) {
  return Timed(DriverCall::kFill, [&] {
    return OnRange(
        "Fill", "cuMemsetD8Async", to, size, stream, [&](CUstream s) {
          return cuda_.MemsetD8Async(to.value(), value, size.value(), s);
        });
  });
}

absl::Status CudaDriver::LaunchHostFunction(StreamId stream,
                                            std::function<void()> function) {
  return Timed(DriverCall::kLaunchHostFunction, [&]() -> absl::Status {
    if (function == nullptr) {
      return absl::InvalidArgumentError("LaunchHostFunction: no function");
    }
    return host_functions_.Add(
        std::move(function), [&](CUhostFn run, void* argument) {
          return OnStream("cuLaunchHostFunc", stream, [&](CUstream s) {
            return cuda_.LaunchHostFunc(s, run, argument);
          });
        });
  });
}

// ---- Pinned host memory -----------------------------------------------------

absl::StatusOr<void*> CudaDriver::AllocatePinned(Bytes size) {
  return Timed(DriverCall::kAllocatePinned, [&]() -> absl::StatusOr<void*> {
    QUIRE_RETURN_IF_ERROR(CheckPinnedSize(size));
    QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                           contexts_.EnterAny());
    void* memory = nullptr;
    QUIRE_RETURN_IF_ERROR(CudaStatus(
        cuda_, "cuMemHostAlloc",
        cuda_.MemHostAlloc(&memory, size.value(), CU_MEMHOSTALLOC_PORTABLE),
        absl::StrFormat("%s of pinned host memory", FormatBytes(size))));
    MutexLock lock(&memory_mutex_);
    pinned_.Add(memory, size, PinnedTable::Origin::kAllocated);
    return memory;
  });
}

absl::Status CudaDriver::FreePinned(void* memory) {
  return Timed(DriverCall::kFreePinned, [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                           contexts_.EnterAny());
    return Unpin(memory, PinnedTable::Origin::kAllocated, [&] {
      return Check("cuMemFreeHost", cuda_.MemFreeHost(memory));
    });
  });
}

absl::Status CudaDriver::PinMemory(void* memory, Bytes size) {
  return Timed(DriverCall::kPinMemory, [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                           contexts_.EnterAny());
    {
      MutexLock lock(&memory_mutex_);
      QUIRE_RETURN_IF_ERROR(pinned_.AddOfCaller(memory, size));
    }
    // Not under the lock: it brings every page of the memory.
    const absl::Status status =
        CudaStatus(cuda_, "cuMemHostRegister",
                   cuda_.MemHostRegister(memory, size.value(),
                                         CU_MEMHOSTREGISTER_PORTABLE),
                   absl::StrFormat("%s of host memory", FormatBytes(size)));
    if (!status.ok()) {
      MutexLock lock(&memory_mutex_);
      pinned_.Remove(memory, PinnedTable::Origin::kCaller).IgnoreError();
    }
    return status;
  });
}

absl::Status CudaDriver::UnpinMemory(void* memory) {
  return Timed(DriverCall::kUnpinMemory, [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const ScopedCudaContext context,
                           contexts_.EnterAny());
    return Unpin(memory, PinnedTable::Origin::kCaller, [&] {
      return Check("cuMemHostUnregister", cuda_.MemHostUnregister(memory));
    });
  });
}

absl::Status CudaDriver::Unpin(void* memory, PinnedTable::Origin origin,
                               absl::FunctionRef<absl::Status()> release) {
  Bytes size;
  {
    MutexLock lock(&memory_mutex_);
    QUIRE_ASSIGN_OR_RETURN(size, pinned_.Remove(memory, origin));
  }
  // Not under the lock: it may wait for the device.
  const absl::Status status = release();
  if (!status.ok()) {
    MutexLock lock(&memory_mutex_);
    pinned_.Add(memory, size, origin);
  }
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> CreateCudaDriverOn(
    const CudaFunctionTable& cuda) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<CudaDevice> devices,
                         FindCudaDevices(cuda));
  return std::make_unique<CudaDriver>(cuda, std::move(devices));
}

}  // namespace quire
