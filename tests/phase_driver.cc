#include "tests/phase_driver.h"

#include <utility>

#include "quire/alloc/status_macros.h"

namespace quire {

PhaseDriver::Counts PhaseDriver::meanwhile() const {
  MutexLock lock(&mutex_);
  return meanwhile_;
}
PhaseDriver::Counts PhaseDriver::otherwise() const {
  MutexLock lock(&mutex_);
  return otherwise_;
}
void PhaseDriver::Reset() {
  MutexLock lock(&mutex_);
  meanwhile_ = otherwise_ = {};
}
void PhaseDriver::HoldKernels(bool hold) {
  MutexLock lock(&mutex_);
  hold_ = hold;
}
void PhaseDriver::RefuseMeanwhile(uint64_t n) {
  MutexLock lock(&mutex_);
  refuse_in_ = n;
  has_refused_ = false;
}
bool PhaseDriver::has_refused() const {
  MutexLock lock(&mutex_);
  return has_refused_;
}

absl::Status PhaseDriver::Begin(Kind kind) {
  MutexLock lock(&mutex_);
  Counts& counts = queued_ ? meanwhile_ : otherwise_;
  if (kind == Kind::kMapping) ++counts.mapping;
  if (kind == Kind::kToDevice) ++counts.to_device;
  if (!queued_ || refuse_in_ == 0 || --refuse_in_ > 0) return absl::OkStatus();
  has_refused_ = true;
  return absl::InternalError("refused while a batch is on its way");
}

absl::StatusOr<DeviceAddress> PhaseDriver::ReserveAddress(Bytes size,
                                                          Bytes alignment) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kMapping));
  return FaultyDriver::ReserveAddress(size, alignment);
}
absl::Status PhaseDriver::ReleaseAddress(DeviceAddress address, Bytes size) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kMapping));
  return FaultyDriver::ReleaseAddress(address, size);
}
absl::StatusOr<PageHandle> PhaseDriver::CreatePage(DeviceId device,
                                                   Bytes size) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kMapping));
  return FaultyDriver::CreatePage(device, size);
}
absl::Status PhaseDriver::ReleasePage(PageHandle page) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kMapping));
  return FaultyDriver::ReleasePage(page);
}
absl::Status PhaseDriver::Map(DeviceAddress address,
                              std::span<const PageHandle> pages) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kMapping));
  return FaultyDriver::Map(address, pages);
}
absl::Status PhaseDriver::Unmap(DeviceAddress address, Bytes size) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kMapping));
  return FaultyDriver::Unmap(address, size);
}
absl::StatusOr<EventId> PhaseDriver::CreateEvent(DeviceId device) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kOther));
  return FaultyDriver::CreateEvent(device);
}
absl::Status PhaseDriver::RecordEvent(EventId event, StreamId stream) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kOther));
  return FaultyDriver::RecordEvent(event, stream);
}
absl::Status PhaseDriver::WaitEvent(StreamId stream, EventId event) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kOther));
  return FaultyDriver::WaitEvent(stream, event);
}
absl::Status PhaseDriver::CopyToDevice(DeviceAddress to, const void* from,
                                       Bytes size, StreamId stream) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kToDevice));
  return FaultyDriver::CopyToDevice(to, from, size, stream);
}
absl::Status PhaseDriver::CopyOnDevice(DeviceAddress to, DeviceAddress from,
                                       Bytes size, StreamId stream) {
  QUIRE_RETURN_IF_ERROR(Begin(Kind::kOther));
  return FaultyDriver::CopyOnDevice(to, from, size, stream);
}

absl::Status PhaseDriver::LaunchHostFunction(StreamId stream,
                                             std::function<void()> function) {
  {
    MutexLock lock(&mutex_);
    queued_ = true;
  }
  return FaultyDriver::LaunchHostFunction(
      stream, [this, function = std::move(function)] {
        {
          MutexLock lock(&mutex_);
          while (hold_ && queued_) begun_.Wait(&mutex_);
        }
        function();
      });
}

absl::Status PhaseDriver::SynchronizeStream(StreamId stream) {
  {
    MutexLock lock(&mutex_);
    queued_ = false;
    begun_.NotifyAll();
  }
  return FaultyDriver::SynchronizeStream(stream);
}

}  // namespace quire
