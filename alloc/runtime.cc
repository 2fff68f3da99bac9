#include "quire/alloc/runtime.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/leak_report.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(
    std::unique_ptr<Driver> driver, RuntimeOptions options) {
  if (options.trace_capacity > kMostTraceEvents) {
    return absl::InvalidArgumentError(
        absl::StrCat("a trace_capacity of ", options.trace_capacity,
                     " events is more than ", kMostTraceEvents));
  }
  auto runtime = std::unique_ptr<Runtime>(new Runtime());
  runtime->driver_ = std::move(driver);
  runtime->on_leaks_ = std::move(options.on_leaks);
  runtime->trace_ = std::make_unique<EventTrace>(options.trace_capacity);
  EventTrace* const trace =
      options.trace_capacity > 0 ? runtime->trace_.get() : nullptr;
  for (int id = 0; id < runtime->driver_->device_count(); ++id) {
    DeviceMemoryOptions memory_options;
    memory_options.device = DeviceId(id);
    memory_options.page_size = options.page_size;
    memory_options.limit = options.limit;
    memory_options.headroom = options.headroom;
    memory_options.prepare_ahead = options.prepare_ahead;
    memory_options.pressure = options.pressure;
    memory_options.soft_limit = options.soft_limit;
    memory_options.trace = trace;
    Device device;
    QUIRE_ASSIGN_OR_RETURN(
        device.memory, DeviceMemory::Create(runtime->driver_.get(),
                                            &runtime->owners_, memory_options));
    DeviceAllocatorOptions allocator_options;
    allocator_options.trace = trace;
    allocator_options.seed = options.seed + static_cast<uint64_t>(id);
    allocator_options.listener = options.listener;
    allocator_options.sample_interval = options.sample_interval;
    device.allocator =
        DeviceAllocator::Create(device.memory.get(), allocator_options);
    runtime->devices_.push_back(std::move(device));
  }
  return runtime;
}

std::unique_ptr<Runtime> Runtime::CreateView(Runtime* base,
                                             const std::string& owner) {
  auto view = std::unique_ptr<Runtime>(new Runtime());
  view->base_ = base;
  view->owner_ = base->RegisterOwner(owner);
  view->on_leaks_ = base->on_leaks_;
  return view;
}

void Runtime::ReportLeaks() {
  if (on_leaks_ == nullptr) return;
  const std::vector<LeakReport> leaks = FindLeaks(*this, {.owner = owner_});
  if (!leaks.empty()) on_leaks_(leaks);
}

Runtime::~Runtime() {
  ReportLeaks();
  for (Device& device : devices_) {
    if (device.memory == nullptr || !device.memory->in_forked_child()) return;
    (void)device.allocator.release();
  }
  // The driver would wait for threads that only the parent has.
  if (!devices_.empty()) (void)driver_.release();
}

DeviceMemory* Runtime::memory(DeviceId device) const {
  if (base_ != nullptr) return base_->memory(device);
  return devices_[static_cast<size_t>(device.value())].memory.get();
}

DeviceAllocator* Runtime::allocator(DeviceId device) const {
  if (base_ != nullptr) return base_->allocator(device);
  return devices_[static_cast<size_t>(device.value())].allocator.get();
}

}  // namespace quire
