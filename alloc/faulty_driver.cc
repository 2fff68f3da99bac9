#include "quire/alloc/faulty_driver.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {

void FaultyDriver::FailCall(uint64_t n, absl::StatusCode code) {
  MutexLock lock(&mutex_);
  faults_.push_back({std::nullopt, n, code, /*once=*/true});
}

void FaultyDriver::FailCall(DriverCall call, uint64_t n,
                            absl::StatusCode code) {
  MutexLock lock(&mutex_);
  faults_.push_back({call, n, code, /*once=*/true});
}

void FaultyDriver::FailCallsFrom(DriverCall call, uint64_t n,
                                 absl::StatusCode code) {
  MutexLock lock(&mutex_);
  faults_.push_back({call, n, code, /*once=*/false});
}

void FaultyDriver::DelayCalls(DriverCall call, std::chrono::nanoseconds delay) {
  MutexLock lock(&mutex_);
  delays_[static_cast<size_t>(call)] = delay;
}

void FaultyDriver::LimitMemory(DeviceId device, Bytes limit) {
  MutexLock lock(&mutex_);
  limits_[device] = limit;
}

void FaultyDriver::ClearFaults() {
  MutexLock lock(&mutex_);
  faults_.clear();
  delays_.fill(std::chrono::nanoseconds(0));
}

uint64_t FaultyDriver::calls() const {
  MutexLock lock(&mutex_);
  return calls_;
}

uint64_t FaultyDriver::faults_fired() const {
  MutexLock lock(&mutex_);
  return faults_fired_;
}

absl::Status FaultyDriver::BeforeCall(DriverCall call) {
  std::chrono::nanoseconds delay;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    ++calls_;
    delay = delays_[static_cast<size_t>(call)];
    // Every fault counts the call, also where another one fires at it.
    for (Fault& fault : faults_) {
      if (fault.call && *fault.call != call) continue;
      if (fault.calls_left > 1) {
        --fault.calls_left;
        continue;
      }
      status = absl::Status(fault.code,
                            absl::StrFormat("%s: fault injected at call %d",
                                            DriverCallName(call), calls_));
      if (fault.once) fault.calls_left = 0;
    }
    std::erase_if(faults_, [](const Fault& f) { return f.calls_left == 0; });
    if (!status.ok()) ++faults_fired_;
  }
  if (delay > delay.zero()) std::this_thread::sleep_for(delay);
  return status;
}

template <typename Function>
auto FaultyDriver::Forward(DriverCall call, Function function)
    -> decltype(function()) {
  QUIRE_RETURN_IF_ERROR(BeforeCall(call));
  return function();
}

std::optional<Bytes> FaultyDriver::FindLimit(DeviceId device) const {
  MutexLock lock(&mutex_);
  const auto limit = limits_.find(device);
  return limit == limits_.end() ? std::nullopt : std::optional(limit->second);
}

absl::StatusOr<DeviceInfo> FaultyDriver::GetDeviceInfo(DeviceId device) {
  return Forward(
      DriverCall::kGetDeviceInfo, [&]() -> absl::StatusOr<DeviceInfo> {
        QUIRE_ASSIGN_OR_RETURN(DeviceInfo info, driver_->GetDeviceInfo(device));
        if (const auto limit = FindLimit(device)) {
          info.total_memory = std::min(info.total_memory, *limit);
        }
        return info;
      });
}

absl::StatusOr<DeviceMemoryInfo> FaultyDriver::GetMemoryInfo(DeviceId device) {
  return Forward(
      DriverCall::kGetMemoryInfo, [&]() -> absl::StatusOr<DeviceMemoryInfo> {
        QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo info,
                               driver_->GetMemoryInfo(device));
        const auto limit = FindLimit(device);
        if (!limit || *limit >= info.total) return info;
        const Bytes used = SaturatingSubtract(info.total, info.free);
        return DeviceMemoryInfo{SaturatingSubtract(*limit, used), *limit};
      });
}

absl::StatusOr<PageHandle> FaultyDriver::CreatePage(DeviceId device,
                                                    Bytes size) {
  return Forward(DriverCall::kCreatePage,
                 [&] { return CreatePageWithinLimit(device, size); });
}

absl::StatusOr<PageHandle> FaultyDriver::CreatePageWithinLimit(DeviceId device,
                                                               Bytes size) {
  const auto limit = FindLimit(device);
  if (!limit) return driver_->CreatePage(device, size);
  MutexLock lock(&create_mutex_);
  QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo info,
                         driver_->GetMemoryInfo(device));
  const Bytes used = SaturatingSubtract(info.total, info.free);
  const auto needed = CheckedAdd(used, size);
  if (!needed || *needed > *limit) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "CreatePage: out of physical memory on device %d: asked for %s, %s of "
        "a limit of %s are in use",
        device.value(), FormatBytes(size), FormatBytes(used),
        FormatBytes(*limit)));
  }
  return driver_->CreatePage(device, size);
}

absl::StatusOr<DeviceAddress> FaultyDriver::ReserveAddress(Bytes size,
                                                           Bytes alignment) {
  return Forward(DriverCall::kReserveAddress,
                 [&] { return driver_->ReserveAddress(size, alignment); });
}

absl::Status FaultyDriver::ReleaseAddress(DeviceAddress address, Bytes size) {
  return Forward(DriverCall::kReleaseAddress,
                 [&] { return driver_->ReleaseAddress(address, size); });
}

absl::Status FaultyDriver::ReleasePage(PageHandle page) {
  return Forward(DriverCall::kReleasePage,
                 [&] { return driver_->ReleasePage(page); });
}

absl::Status FaultyDriver::Map(DeviceAddress address,
                               std::span<const PageHandle> pages) {
  return Forward(DriverCall::kMap,
                 [&] { return driver_->Map(address, pages); });
}

absl::Status FaultyDriver::Unmap(DeviceAddress address, Bytes size) {
  return Forward(DriverCall::kUnmap,
                 [&] { return driver_->Unmap(address, size); });
}

absl::StatusOr<StreamId> FaultyDriver::CreateStream(DeviceId device) {
  return Forward(DriverCall::kCreateStream,
                 [&] { return driver_->CreateStream(device); });
}

// No call to a driver is behind it.
absl::StatusOr<StreamId> FaultyDriver::AdoptStream(DeviceId device,
                                                   void* stream) {
  return driver_->AdoptStream(device, stream);
}

absl::Status FaultyDriver::DestroyStream(StreamId stream) {
  return Forward(DriverCall::kDestroyStream,
                 [&] { return driver_->DestroyStream(stream); });
}

absl::Status FaultyDriver::SynchronizeStream(StreamId stream) {
  return Forward(DriverCall::kSynchronizeStream,
                 [&] { return driver_->SynchronizeStream(stream); });
}

absl::StatusOr<EventId> FaultyDriver::CreateEvent(DeviceId device) {
  return Forward(DriverCall::kCreateEvent,
                 [&] { return driver_->CreateEvent(device); });
}

absl::Status FaultyDriver::DestroyEvent(EventId event) {
  return Forward(DriverCall::kDestroyEvent,
                 [&] { return driver_->DestroyEvent(event); });
}

absl::Status FaultyDriver::RecordEvent(EventId event, StreamId stream) {
  return Forward(DriverCall::kRecordEvent,
                 [&] { return driver_->RecordEvent(event, stream); });
}

absl::StatusOr<bool> FaultyDriver::QueryEvent(EventId event) {
  return Forward(DriverCall::kQueryEvent,
                 [&] { return driver_->QueryEvent(event); });
}

absl::Status FaultyDriver::SynchronizeEvent(EventId event) {
  return Forward(DriverCall::kSynchronizeEvent,
                 [&] { return driver_->SynchronizeEvent(event); });
}

absl::Status FaultyDriver::WaitEvent(StreamId stream, EventId event) {
  return Forward(DriverCall::kWaitEvent,
                 [&] { return driver_->WaitEvent(stream, event); });
}

absl::Status FaultyDriver::CopyToDevice(DeviceAddress to, const void* from,
                                        Bytes size, StreamId stream) {
  return Forward(DriverCall::kCopyToDevice,
                 [&] { return driver_->CopyToDevice(to, from, size, stream); });
}

absl::Status FaultyDriver::CopyToHost(void* to, DeviceAddress from, Bytes size,
                                      StreamId stream) {
  return Forward(DriverCall::kCopyToHost,
                 [&] { return driver_->CopyToHost(to, from, size, stream); });
}

absl::Status FaultyDriver::CopyOnDevice(DeviceAddress to, DeviceAddress from,
                                        Bytes size, StreamId stream) {
  return Forward(DriverCall::kCopyOnDevice,
                 [&] { return driver_->CopyOnDevice(to, from, size, stream); });
}

absl::Status FaultyDriver::Fill(DeviceAddress to, uint8_t value, Bytes size,
                                StreamId stream) {
  return Forward(DriverCall::kFill,
                 [&] { return driver_->Fill(to, value, size, stream); });
}

absl::Status FaultyDriver::LaunchHostFunction(StreamId stream,
                                              std::function<void()> function) {
  return Forward(DriverCall::kLaunchHostFunction, [&] {
    return driver_->LaunchHostFunction(stream, std::move(function));
  });
}

absl::StatusOr<void*> FaultyDriver::AllocatePinned(Bytes size) {
  return Forward(DriverCall::kAllocatePinned,
                 [&] { return driver_->AllocatePinned(size); });
}

absl::Status FaultyDriver::FreePinned(void* memory) {
  return Forward(DriverCall::kFreePinned,
                 [&] { return driver_->FreePinned(memory); });
}

absl::Status FaultyDriver::PinMemory(void* memory, Bytes size) {
  return Forward(DriverCall::kPinMemory,
                 [&] { return driver_->PinMemory(memory, size); });
}

absl::Status FaultyDriver::UnpinMemory(void* memory) {
  return Forward(DriverCall::kUnpinMemory,
                 [&] { return driver_->UnpinMemory(memory); });
}

}  // namespace quire
