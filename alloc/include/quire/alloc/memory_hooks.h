// What a program may hear of a device memory, and do about it.
//
// Hooks run on the thread whose call caused them, when the device memory has
// released its lock and before that call returns; each thread's in the order in
// which it caused them. They may call the device memory, also to commit and to
// release: what that causes is told after the hook has returned. They should be
// short: the caller waits.
//
// Layers above that call the device memory under locks of their own put a
// HookDeferral around those locks, so that no hook runs under them either.

#ifndef QUIRE_ALLOC_MEMORY_HOOKS_H_
#define QUIRE_ALLOC_MEMORY_HOOKS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"

namespace quire {

class DeviceMemory;
class HookScope;

enum class PressureLevel : uint8_t { kNone, kHigh, kCritical };
const char* PressureLevelName(PressureLevel level);  // "none", ...

// When pressure begins, as fractions of a limit, and how much further down it
// ends: what swings around a threshold is told once.
// REQUIRES: 0 <= hysteresis < high <= critical <= 1 and high > 0.
struct PressureThresholds {
  double high = 0.85;
  double critical = 0.95;
  double hysteresis = 0.05;
};

// Of a device memory: live, cooling and quarantined pages against its limit; of
// an owner, its live pages against its hard limit. Beyond a soft limit pressure
// is high at least.
struct PressureChange {
  std::optional<OwnerId> owner;  // none: of the device memory
  PressureLevel before;
  PressureLevel now;
  Bytes used;
  // What `used` counts against: the soft limit where pressure is high beyond
  // it, else the hard one. Where pressure has ended, the one at which it begins
  // again; 0 where there is none any more.
  Bytes limit;
};

// Slots that the driver mapped or unmapped in one call.
struct MappingChange {
  DeviceAddress address;
  PageCount pages;
  OwnerId owner;
};

// Holds back the hooks of what this thread causes, until it is destroyed; of
// nested ones, the outermost. OnOutOfMemory is not called meanwhile: who has
// released its locks asks with WithOutOfMemoryHooks (device_memory.h).
class HookDeferral {
 public:
  explicit HookDeferral(DeviceMemory* memory);
  ~HookDeferral();
  HookDeferral(const HookDeferral&) = delete;
  HookDeferral& operator=(const HookDeferral&) = delete;

 private:
  const std::unique_ptr<HookScope> scope_;
};

// How often OnOutOfMemory is asked for more before a request fails: often
// enough for hooks that give a little each time, and an end for such that
// promise.
inline constexpr int kOutOfMemoryRounds = 8;

class MemoryHooks {
 public:
  virtual ~MemoryHooks() = default;

  virtual void OnPressure(const PressureChange& /*change*/) {}
  virtual void OnPagesMapped(const MappingChange& /*change*/) {}
  // The pages are gone already: nothing used them any more.
  virtual void OnPagesUnmapped(const MappingChange& /*change*/) {}
  // Memory is short, the reclaimers have given what they had and there was
  // nothing left to wait for. Gives up memory of the program's own (releases
  // ranges, frees allocations, raises a limit) and returns how much: if that is
  // not 0, the search is made again, kOutOfMemoryRounds times at most. Not
  // called for more than a limit allows, unless the hooks are a LimitRaiser who
  // may raise it so far, nor for what is short inside a hook.
  virtual Bytes OnOutOfMemory(const OutOfMemoryVerdict& /*verdict*/) {
    return Bytes(0);
  }
};

}  // namespace quire

#endif  // QUIRE_ALLOC_MEMORY_HOOKS_H_
