#include "bench/policies/policy_run.h"

#include <memory>

#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// A policy and the device that it is on.
struct Setup {
  std::unique_ptr<SimulatedDevice> device;
  std::unique_ptr<AllocatorPolicy> policy;
};

absl::StatusOr<Setup> Create(Bytes device_memory, const PolicySpec& spec) {
  Setup setup;
  QUIRE_ASSIGN_OR_RETURN(setup.device, SimulatedDevice::Create(device_memory));
  QUIRE_ASSIGN_OR_RETURN(setup.policy, spec.Create(setup.device.get()));
  return setup;
}

}  // namespace

absl::StatusOr<PolicyRun> RunPolicy(const AllocationTrace& trace,
                                    Bytes device_memory, const PolicySpec& spec,
                                    const PolicyRunOptions& options) {
  const bool look = options.iterations > 1 || options.timeline_points > 0 ||
                    options.page_map_points > 0;
  const uint64_t events = trace.events.size();
  const uint64_t total = events * (options.iterations + (look ? 1 : 0));
  PolicyRun run;
  {
    QUIRE_ASSIGN_OR_RETURN(const Setup setup, Create(device_memory, spec));
    PolicyReplayOptions replay;
    replay.iterations = options.iterations;
    if (options.progress) {
      replay.progress = [&](uint64_t done, uint64_t) {
        options.progress(done, total);
      };
    }
    QUIRE_ASSIGN_OR_RETURN(
        run.result,
        ReplayOnPolicy(trace, setup.device.get(), setup.policy.get(), replay));
  }
  if (!look) {
    run.looks.largest_at_end = run.result.largest_at_end.value();
    return run;
  }
  QUIRE_ASSIGN_OR_RETURN(const Setup setup, Create(device_memory, spec));
  PolicyLookOptions looks;
  looks.timeline_points = options.timeline_points;
  looks.page_map_points = options.page_map_points;
  if (options.page_map_points > 0) {
    looks.page_map_event = run.result.at_peak_requested.event;
  }
  if (options.progress) {
    looks.progress = [&](uint64_t done, uint64_t) {
      options.progress(events * options.iterations + done, total);
    };
  }
  QUIRE_ASSIGN_OR_RETURN(run.looks, LookIntoPolicy(trace, setup.device.get(),
                                                   setup.policy.get(), looks));
  return run;
}

}  // namespace quire
