// Clocks, processors and medians.

#ifndef QUIRE_BENCH_ALLOCATOR_BENCH_TIMING_H_
#define QUIRE_BENCH_ALLOCATOR_BENCH_TIMING_H_

#include <cstdint>
#include <vector>

namespace quire {

// Nanoseconds of this thread on a processor: what others do meanwhile on the
// machine is not in it, but for what it does to the caches.
uint64_t ThreadNanoseconds();
// Nanoseconds on the wall: for what several threads do together.
uint64_t WallNanoseconds();

// The processors that this process might use before it pinned any thread: at
// least one.
const std::vector<int>& AllowedProcessors();
// Keeps the calling thread on one of them. Nothing where that is refused.
void PinThread(int processor);

// REQUIRES: not empty.
double Median(std::vector<double> values);

}  // namespace quire

#endif  // QUIRE_BENCH_ALLOCATOR_BENCH_TIMING_H_
