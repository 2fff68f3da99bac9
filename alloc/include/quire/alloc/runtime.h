// One process's devices: the driver, and for each device its page pool and its
// allocator. What a program creates first and destroys last.

#ifndef QUIRE_ALLOC_RUNTIME_H_
#define QUIRE_ALLOC_RUNTIME_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/owner.h"

namespace quire {

struct LeakReport;

// Of one trace: 13 GiB of events, and for each thread that records an index of
// 8 MiB.
inline constexpr size_t kMostTraceEvents = size_t{1} << 28;

struct RuntimeOptions {
  Bytes page_size = MiB(2);
  // Physical memory that Quire may use on each device; 0: what is free there.
  Bytes limit;
  // Of what is free on each device, left to others: DeviceMemoryOptions.
  Bytes headroom;
  // Pages that a thread per device keeps prepared; 0: there is none.
  PageCount prepare_ahead;
  // Events kept for reports, of all devices together; 0 switches the trace off.
  // REQUIRES: at most kMostTraceEvents.
  size_t trace_capacity = 16384;
  // Of each device: when its pressure and that of owners begins and ends, and
  // DeviceMemory::SetSoftLimit.
  PressureThresholds pressure;
  Bytes soft_limit;
  // DeviceAllocatorOptions: the random order in which allocators place what is
  // small; each has another.
  uint64_t seed = 1;
  // Told of the compactions of the allocators; null: nobody. Outlives the
  // runtime.
  CompactionListener* listener = nullptr;
  // DeviceAllocatorOptions: callers of one allocation in so many bytes; 0: of
  // none.
  Bytes sample_interval;
  // Called where anything is still held when a runtime ends, with all of it
  // (leak_report.h), and when a view ends, with what its owners hold. By the
  // thread that ends it, without a lock, while everything is still there. Null:
  // nobody looks.
  std::function<void(const std::vector<LeakReport>&)> on_leaks;
};

class Runtime {
 public:
  // Takes the driver. Every device of it gets a pool and an allocator.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(
      std::unique_ptr<Driver> driver, RuntimeOptions options);
  // The same devices for one of several users of them, say a model: what
  // registers its owners with RegisterOwner has them below `owner`, so that
  // they can be limited, or put to sleep, as one. `base` outlives it.
  static std::unique_ptr<Runtime> CreateView(Runtime* base,
                                             const std::string& owner);
  // What is still held is told to RuntimeOptions::on_leaks. In a forked child
  // nothing is told, and the devices are left to the parent.
  ~Runtime();

  Driver* driver() const {
    return base_ == nullptr ? driver_.get() : base_->driver();
  }
  int device_count() const {
    return base_ == nullptr ? static_cast<int>(devices_.size())
                            : base_->device_count();
  }
  // REQUIRES: device < device_count.
  DeviceMemory* memory(DeviceId device = DeviceId(0)) const;
  DeviceAllocator* allocator(DeviceId device = DeviceId(0)) const;
  OwnerRegistry* owners() {
    return base_ == nullptr ? &owners_ : base_->owners();
  }
  EventTrace* trace() {
    return base_ == nullptr ? trace_.get() : base_->trace();
  }
  // Of a view: what all its owners are below. Else none.
  std::optional<OwnerId> owner() const { return owner_; }
  // The owner of this name at the top, or below owner().
  OwnerId RegisterOwner(const std::string& name) {
    return owner_ ? owners()->Register(name, *owner_)
                  : owners()->Register(name);
  }

 private:
  struct Device {
    std::unique_ptr<DeviceMemory> memory;
    std::unique_ptr<DeviceAllocator> allocator;  // destroyed first
  };
  Runtime() = default;
  void ReportLeaks();

  // Destroyed from the bottom up: the devices before the driver under them.
  std::unique_ptr<Driver> driver_;
  OwnerRegistry owners_;
  std::unique_ptr<EventTrace> trace_;
  std::vector<Device> devices_;
  std::function<void(const std::vector<LeakReport>&)> on_leaks_;

  // Of a view, which has nothing else.
  Runtime* base_ = nullptr;
  std::optional<OwnerId> owner_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_RUNTIME_H_
