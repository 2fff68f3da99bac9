// Loads that are each bad for one policy, after what is known of it. They are
// no likely programs; they show where a policy ends.

#ifndef QUIRE_BENCH_FRAGMENTATION_STRESS_ADVERSARIES_H_
#define QUIRE_BENCH_FRAGMENTATION_STRESS_ADVERSARIES_H_

#include <cstdint>

#include "bench/fragmentation_stress/trace_maker.h"

namespace quire {

// Each writes events until the trace is full, with about `live` bytes live at
// most.
void AgainstQuire(TraceMaker& trace, uint64_t live);
void AgainstPyTorch(TraceMaker& trace, uint64_t live);
void AgainstPyTorchExpandable(TraceMaker& trace, uint64_t live);
void AgainstRmmPool(TraceMaker& trace, uint64_t live);
void AgainstBfc(TraceMaker& trace, uint64_t live);
void AgainstCudaPool(TraceMaker& trace, uint64_t live);
void AgainstGmlake(TraceMaker& trace, uint64_t live);
void AgainstCudaMalloc(TraceMaker& trace, uint64_t live);

}  // namespace quire

#endif  // QUIRE_BENCH_FRAGMENTATION_STRESS_ADVERSARIES_H_
