// What a day of switching took, step by step.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_SWITCHING_RESULT_H_
#define QUIRE_BENCH_MODEL_SWITCHING_SWITCHING_RESULT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"

namespace quire {

// What it takes until models are ready: bytes at the rates of the disk and of
// the host's link, and driver calls on the virtual clock.
struct SwitchCost {
  Bytes loaded;      // from disk
  Bytes copied_out;  // to host memory
  Bytes copied_in;
  uint64_t nanoseconds = 0;

  void Add(const SwitchCost& other);
};

// A request that could not be served.
struct SwitchFailure {
  std::string dropped;  // the model whose it was
  Bytes request;
  // What was live and the request came to more than the device.
  bool over_device = false;
};

struct StepResult {
  Bytes peak_requested;
  Bytes peak_reserved;
  Bytes host_memory;  // that sleeping models hold, at the end
  uint64_t driver_calls = 0;
  uint64_t virtual_nanoseconds = 0;
  // Models were loaded, unloaded, put to sleep or woken up, or should have
  // been.
  bool is_switch = false;
  SwitchCost cost;  // of that
  // Of `cost`, the driver calls of waking up alone.
  uint64_t wake_nanoseconds = 0;
  // From the decision to switch to a model until its first result: the switch,
  // be it in an earlier step, and driver calls of the run until then. One for
  // each part of the step that runs for the first time after a switch to it.
  std::vector<SwitchCost> first_tokens;
  // Of the device, what neither models nor balloons had after the step, in
  // [0, 1]; only where there is a balloon.
  std::optional<double> idle;
  // Where memory ran out, and of the first of them, why. kCapacity: the device
  // has less than was live and asked for, or than the step needs at its worst,
  // after what was dropped in steps before; else kFragmentation.
  std::vector<SwitchFailure> failures;
  std::optional<ShortageKind> failure;
  bool passed_over = false;
};

// Driver calls, and what they cost on the virtual clock.
struct DayCost {
  uint64_t driver_calls = 0;
  uint64_t virtual_nanoseconds = 0;
};

// Of the first day, unless it is said otherwise.
struct ScenarioResult {
  std::vector<StepResult> steps;
  uint64_t switches = 0;
  uint64_t switches_survived = 0;  // of these, those that did not fail
  std::optional<uint64_t> first_failed_step;
  Bytes peak_requested;
  Bytes peak_reserved;
  Bytes peak_host_memory;
  uint64_t capacity_failures = 0;
  uint64_t fragmentation_failures = 0;
  std::optional<DayCost> last_day;  // where there are two or more
  bool owners = false;  // each model was an owner of its own to the policy

  SwitchCost cost() const;
  uint64_t wake_nanoseconds() const;
  uint64_t driver_calls() const;
  uint64_t virtual_nanoseconds() const;
};

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_SWITCHING_RESULT_H_
