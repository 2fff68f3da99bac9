// The C interface of hooks.

#include <memory>
#include <string>
#include <utility>

#include "alloc/c_api_internal.h"
#include "quire/alloc/memory_hooks.h"

namespace quire::c_api {

quire_pressure_level PressureOf(PressureLevel level) {
  switch (level) {
    case PressureLevel::kNone:
      return QUIRE_PRESSURE_NONE;
    case PressureLevel::kHigh:
      return QUIRE_PRESSURE_HIGH;
    case PressureLevel::kCritical:
      return QUIRE_PRESSURE_CRITICAL;
  }
  return -1;
}

namespace {

// The callbacks that the calling thread is in, innermost first: those of
// another device's memory may run inside of this one's.
struct RunningCallback {
  const void* hooks;
  const RunningCallback* enclosing;
};
thread_local const RunningCallback* running = nullptr;

class Hooks final : public MemoryHooks {
 public:
  Hooks(const quire_memory_hooks& callbacks, uint64_t page_size)
      : callbacks_(callbacks), page_size_(page_size) {}

  // Whether this thread is in one of the callbacks.
  bool IsRunning() const {
    for (auto callback = running; callback != nullptr;
         callback = callback->enclosing) {
      if (callback->hooks == this) return true;
    }
    return false;
  }

  void OnPressure(const PressureChange& change) override {
    if (callbacks_.on_pressure == nullptr) return;
    quire_pressure_change values{};
    values.size = sizeof(values);
    values.before = PressureOf(change.before);
    values.now = PressureOf(change.now);
    values.used = change.used.value();
    values.limit = change.limit.value();
    values.of_one_owner = change.owner.has_value() ? 1 : 0;
    values.owner = change.owner.value_or(kUnnamedOwner).value();
    const Running scope(this);
    callbacks_.on_pressure(callbacks_.context, &values);
  }
  void OnPagesMapped(const MappingChange& change) override {
    Tell(callbacks_.on_pages_mapped, change);
  }
  void OnPagesUnmapped(const MappingChange& change) override {
    Tell(callbacks_.on_pages_unmapped, change);
  }
  Bytes OnOutOfMemory(const OutOfMemoryVerdict& verdict) override {
    if (callbacks_.on_out_of_memory == nullptr) return Bytes(0);
    const quire_shortage shortage = ShortageOf(verdict);
    const std::string text = verdict.ToString();
    const Running scope(this);
    return Bytes(callbacks_.on_out_of_memory(callbacks_.context, &shortage,
                                             text.c_str()));
  }

 private:
  class Running {
   public:
    explicit Running(const Hooks* hooks) : callback_{hooks, running} {
      running = &callback_;
    }
    ~Running() { running = callback_.enclosing; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    const RunningCallback callback_;
  };

  void Tell(void (*callback)(void*, const quire_mapping_change*),
            const MappingChange& change) const {
    if (callback == nullptr) return;
    quire_mapping_change values{};
    values.size = sizeof(values);
    values.address = change.address.value();
    values.bytes = change.pages.value() * page_size_;
    values.owner = change.owner.value();
    const Running scope(this);
    callback(callbacks_.context, &values);
  }

  const quire_memory_hooks callbacks_;
  const uint64_t page_size_;
};

}  // namespace
}  // namespace quire::c_api

struct quire_hook_registration {
  std::shared_ptr<quire::DeviceMemory> memory;
  quire::c_api::Hooks hooks;
};

using quire::c_api::Call;
using quire::c_api::CheckArguments;

quire_status quire_memory_add_hooks(
    quire_memory* memory, const quire_memory_hooks* hooks,
    quire_hook_registration** registration) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"memory", memory},
                                          {"hooks", hooks},
                                          {"registration", registration}}));
    QUIRE_ASSIGN_OR_RETURN(
        const quire_memory_hooks known,
        quire::c_api::ReadOptions("quire_memory_hooks", hooks));
    auto added =
        std::unique_ptr<quire_hook_registration>(new quire_hook_registration{
            memory->memory,
            quire::c_api::Hooks(known, memory->memory->page_size().value())});
    memory->memory->AddHooks(&added->hooks);
    *registration = added.release();
    return absl::OkStatus();
  });
}

quire_status quire_memory_remove_hooks(
    quire_hook_registration* registration) noexcept {
  if (registration == nullptr) return QUIRE_OK;
  return Call([&]() -> absl::Status {
    if (registration->hooks.IsRunning()) {
      return absl::FailedPreconditionError(
          "hooks cannot be removed by one of their own callbacks, which the "
          "removal waits for");
    }
    registration->memory->RemoveHooks(&registration->hooks);
    delete registration;
    return absl::OkStatus();
  });
}
