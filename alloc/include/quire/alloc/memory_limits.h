// How much memory somebody may have: a device memory, and each of its owners.

#ifndef QUIRE_ALLOC_MEMORY_LIMITS_H_
#define QUIRE_ALLOC_MEMORY_LIMITS_H_

#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/units.h"

namespace quire {

// Of one owner and all below it, in live pages: physical memory, each page
// once. What a stream may still use after it was given up is nobody's, and
// counts only for the limit of the device memory.
struct OwnerLimits {
  // Beyond it the owner is under pressure: hooks hear of it, and when memory is
  // short its caches are the first to go. 0: none.
  Bytes soft;
  // Growth beyond it is refused. 0: none. Rounded down to whole pages; what is
  // less than a page allows nothing.
  Bytes hard;
  // Kept for the owner: others cannot have what it uses less than this. Rounded
  // up to whole pages, also where the hard limit of an owner above it is less.
  // 0: nothing.
  Bytes reserved_minimum;

  friend bool operator==(const OwnerLimits&, const OwnerLimits&) = default;
};

struct OwnerStatistics {
  OwnerId owner;
  // Accounted to this owner itself, and to it and all below it.
  Bytes own_live;
  Bytes live;
  Bytes peak_live;  // largest `live` so far
  // Of it and all below it: pages that were given up, and come back with Wake.
  Bytes asleep;
  OwnerLimits limits;
  // `live` may still grow by this much under the hard limits of this owner and
  // of those above it; Bytes(UINT64_MAX) where there are none.
  Bytes hard_room;
  // The same with what others use or have reserved left to them: never more
  // than the device memory has for it.
  Bytes allowance;
  PressureLevel pressure = PressureLevel::kNone;
  // `live` beyond the limits: of the hard one, after it was lowered.
  Bytes over_soft;
  Bytes over_hard;
};

// The limit of a device memory as a fraction of the device, for settings such
// as gpu_memory_utilization of vLLM:
//
//   min(fraction * total, free + held - headroom)
//
// `fraction` is of everything the device has, not of what is free, and for this
// process alone: two processes with 0.45 each share a device. What others use
// when asked (other processes, the display, and contexts and memory of this
// process outside of Quire) cannot be had, so it is never counted on: the
// result is at most what is free now, less the `headroom` to be left to them.
// `held` is what the device memory has already, when its limit is set anew:
// DeviceMemoryStatistics::in_use, or nothing before there is one. (vLLM refuses
// to start where fraction * total is not free; here the limit is lower.)
//
// Errors: kInvalidArgument for a fraction that is not above 0 and at most 1,
// NaN included; kResourceExhausted where nothing is left.
absl::StatusOr<Bytes> LimitFromUtilization(const DeviceMemoryInfo& info,
                                           double fraction,
                                           Bytes headroom = Bytes(0),
                                           Bytes held = Bytes(0));

}  // namespace quire

#endif  // QUIRE_ALLOC_MEMORY_LIMITS_H_
