// Plays an allocation trace against a policy, and says what that took.
//
// Streams of the trace are streams of the device, and no work is queued on
// them: what is free is free. The first request that cannot be had would end
// most programs; here it is told, and the trace goes on without that
// allocation, so that the worst of a policy is seen as well. Requests of no
// bytes take no memory of any policy, and alignments beyond 256 bytes, which
// not all have, are not asked for. Memory is O(live allocations), the trace
// apart.
//
// Figures come from a replay that nobody looks into, looks from one of their
// own: to say what one request could have, a policy may put back what its
// caches hold, and behave otherwise from there on.

#ifndef QUIRE_BENCH_POLICIES_POLICY_REPLAY_H_
#define QUIRE_BENCH_POLICIES_POLICY_REPLAY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/policies/page_map.h"
#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"
#include "quire/alloc/allocation_trace.h"
#include "quire/alloc/verdict.h"

namespace quire {

struct PolicyReplayOptions {
  // The trace is played so often, one time after the other, what it leaves live
  // freed between: what caches learn is seen from the second time on.
  uint64_t iterations = 1;
  // Called now and then with the events done and all of them; may be null.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

struct PolicyLookOptions {
  // So many looks at the memory, evenly over the events.
  uint64_t timeline_points = 0;
  // So many looks at how full each page is, in the same way, and one at the
  // first failure and at the end. Each takes O(n log n) of what is live.
  uint64_t page_map_points = 0;
  // And one after this event: at_peak_requested.event of an earlier replay.
  std::optional<uint64_t> page_map_event;
  std::function<void(uint64_t done, uint64_t total)> progress;  // as above
};

// Driver calls, cudaMalloc one each, and what they cost on the virtual clock.
struct PolicyCost {
  uint64_t driver_calls = 0;
  uint64_t virtual_nanoseconds = 0;
};

// What was true at one moment.
struct PolicyMoment {
  uint64_t event = 0;  // of the trace, counted from 0
  Bytes requested;     // live, as asked for
  PolicyUse use;

  // (allocated - requested) / allocated: lost to rounding.
  double internal_fragmentation() const;
  // (reserved - allocated) / reserved: taken from the driver and not in use.
  double external_fragmentation() const;
};

// A look at the memory over time.
struct PolicyLook {
  PolicyMoment moment;
  Bytes largest;    // what one request could have had
  PolicyCost cost;  // so far
};

// How full each page was then.
struct PolicyPageMap {
  PolicyMoment moment;
  PageMap pages;
};

// What was seen in a replay that was looked into.
struct PolicyLooks {
  std::vector<PolicyLook> timeline;
  std::vector<PolicyPageMap> page_maps;
  std::optional<PolicyPageMap> page_map_at_event;
  std::optional<PolicyPageMap> page_map_at_failure;  // the first one
  std::optional<PolicyPageMap> page_map_at_end;
  Bytes largest_at_end;  // before anything is freed
};

struct PolicyFailure {
  PolicyMoment moment;
  Bytes size;
  Bytes largest;  // what could have been had
  // kCapacity where live requests and this one are more than the device has: no
  // policy can serve it. Else kFragmentation.
  ShortageKind kind = ShortageKind::kCapacity;
  std::string message;  // of the policy
};

struct PolicyReplayResult {
  uint64_t allocations = 0;  // that were served
  uint64_t frees = 0;
  uint64_t failures = 0;
  std::optional<PolicyFailure> first_failure;

  // Of what was served.
  Bytes peak_requested;
  Bytes peak_mapped;
  Bytes peak_reserved;
  PolicyMoment at_peak_requested;
  PolicyMoment at_end;  // of the first iteration, before anything is freed
  // As in PolicyLooks; only of one iteration, where nothing comes after it.
  std::optional<Bytes> largest_at_end;

  PolicyCost total;
  PolicyCost first_iteration;
  PolicyCost last_iteration;  // where there are two or more: the steady state
  double seconds = 0;         // of this machine's processors

  // peak_reserved / peak_requested: 1 is what no policy can better.
  double ratio() const;
};

// `policy` is on `device`, and nobody else uses either. Lack of memory is part
// of the result. Errors: those of CheckAllocationTrace, and what the driver or
// the policy refuse for other reasons.
absl::StatusOr<PolicyReplayResult> ReplayOnPolicy(
    const AllocationTrace& trace, SimulatedDevice* device,
    AllocatorPolicy* policy, const PolicyReplayOptions& options = {});

// Plays the trace once and looks into it. The same of `device` and `policy`,
// and the same errors.
absl::StatusOr<PolicyLooks> LookIntoPolicy(const AllocationTrace& trace,
                                           SimulatedDevice* device,
                                           AllocatorPolicy* policy,
                                           const PolicyLookOptions& options);

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_POLICY_REPLAY_H_
