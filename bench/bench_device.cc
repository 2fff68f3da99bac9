#include "bench/bench_device.h"

#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<BenchDevice>> BenchDevice::Create(
    Bytes memory, const DeviceAllocatorOptions& options) {
  auto device = std::unique_ptr<BenchDevice>(new BenchDevice());
  HostDriverOptions driver_options;
  driver_options.memory_per_device = memory;
  driver_options.backing = HostDriverOptions::Backing::kNone;
  QUIRE_ASSIGN_OR_RETURN(device->driver_, HostDriver::Create(driver_options));
  QUIRE_ASSIGN_OR_RETURN(
      device->memory_,
      DeviceMemory::Create(device->driver_.get(), &device->owners_,
                           DeviceMemoryOptions()));
  device->allocator_ = DeviceAllocator::Create(device->memory_.get(), options);
  return device;
}

BenchDevice::~BenchDevice() {
  allocator_.reset();
  memory_.reset();
  // What fails here leaks a queue of a device that is gone in a moment.
  for (const StreamId stream : streams_) (void)driver_->DestroyStream(stream);
}

absl::StatusOr<StreamId> BenchDevice::CreateStream() {
  QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                         driver_->CreateStream(DeviceId(0)));
  streams_.push_back(stream);
  return stream;
}

uint64_t BenchDevice::driver_calls() const {
  return driver_->GetCallStatistics().total_count();
}

}  // namespace quire
