// What a trace did before one of its events, in words: a report of an
// out-of-memory error that does not say so cannot be followed.

#ifndef QUIRE_BENCH_FRAGMENTATION_STRESS_WORKLOAD_ORDER_H_
#define QUIRE_BENCH_FRAGMENTATION_STRESS_WORKLOAD_ORDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "quire/alloc/allocation_trace.h"

namespace quire {

struct WorkloadOrder {
  // The names of the phases (the first word of a mark, "run1" of "run1 3") that
  // had begun, each once for all of its marks in a row, the last 32.
  std::vector<std::string> phases;
  // The last 16 requests and frees: "allocate 91.00 MiB", oldest first.
  std::vector<std::string> requests;
};

// Of the events before `event`, and the event itself. O(event).
WorkloadOrder DescribeWorkloadOrder(const AllocationTrace& trace,
                                    uint64_t event);

}  // namespace quire

#endif  // QUIRE_BENCH_FRAGMENTATION_STRESS_WORKLOAD_ORDER_H_
