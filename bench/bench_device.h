// A software device with a pool and an allocator, for programs that measure.
//
// Pages carry no memory: no page is ever touched, and any size fits on any
// machine. Driver calls cost what HostDriver's bookkeeping does; what they
// would cost on a GPU is on its virtual clock.

#ifndef QUIRE_BENCH_BENCH_DEVICE_H_
#define QUIRE_BENCH_BENCH_DEVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/owner.h"

namespace quire {

class BenchDevice {
 public:
  static absl::StatusOr<std::unique_ptr<BenchDevice>> Create(
      Bytes memory, const DeviceAllocatorOptions& options = {});
  ~BenchDevice();

  HostDriver* driver() { return driver_.get(); }
  DeviceMemory* memory() { return memory_.get(); }
  DeviceAllocator* allocator() { return allocator_.get(); }
  // Destroyed with the device.
  absl::StatusOr<StreamId> CreateStream();
  // Of every kind, since the device was made.
  uint64_t driver_calls() const;

 private:
  BenchDevice() = default;

  std::unique_ptr<HostDriver> driver_;
  OwnerRegistry owners_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::vector<StreamId> streams_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_BENCH_DEVICE_H_
