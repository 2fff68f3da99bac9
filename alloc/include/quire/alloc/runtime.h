// One process's devices: the driver, and for each device its page pool and its
// allocator. What a program creates first and destroys last.

#ifndef QUIRE_ALLOC_RUNTIME_H_
#define QUIRE_ALLOC_RUNTIME_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/owner.h"

namespace quire {

struct RuntimeOptions {
  Bytes page_size = MiB(2);
  // Physical memory that Quire may use on each device; 0: what is free there.
  Bytes limit;
  // Of what is free on each device, left to others: DeviceMemoryOptions.
  Bytes headroom;
  // Pages that a thread per device keeps prepared; 0: there is none.
  PageCount prepare_ahead;
  // Events kept for reports; 0 switches the trace off.
  size_t trace_capacity = 16384;
  // Told of the compactions of the allocators; null: nobody. Outlives the
  // runtime.
  CompactionListener* listener = nullptr;
  // DeviceAllocatorOptions: callers of one allocation in so many bytes; 0: of
  // none.
  Bytes sample_interval;
};

class Runtime {
 public:
  // Takes the driver. Every device of it gets a pool and an allocator.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(
      std::unique_ptr<Driver> driver, RuntimeOptions options);
  // In a forked child the devices are left to the parent.
  ~Runtime();

  Driver* driver() const { return driver_.get(); }
  int device_count() const { return static_cast<int>(devices_.size()); }
  // REQUIRES: device < device_count.
  DeviceMemory* memory(DeviceId device = DeviceId(0)) const;
  DeviceAllocator* allocator(DeviceId device = DeviceId(0)) const;
  OwnerRegistry* owners() { return &owners_; }
  EventTrace* trace() { return trace_.get(); }

 private:
  struct Device {
    std::unique_ptr<DeviceMemory> memory;
    std::unique_ptr<DeviceAllocator> allocator;  // destroyed first
  };
  Runtime() = default;

  // Destroyed from the bottom up: the devices before the driver under them.
  std::unique_ptr<Driver> driver_;
  OwnerRegistry owners_;
  std::unique_ptr<EventTrace> trace_;
  std::vector<Device> devices_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_RUNTIME_H_
