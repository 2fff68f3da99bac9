// The sections of allocator_bench, one file each. A section measures and says
// how; an error means that an allocation failed where none may.

#ifndef QUIRE_BENCH_ALLOCATOR_BENCH_SECTIONS_H_
#define QUIRE_BENCH_ALLOCATOR_BENCH_SECTIONS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "bench/allocator_bench/report.h"

namespace quire {

struct BenchOptions {
  uint64_t seed = 1;
  // Of each contender, in turn with the others. REQUIRES: at least 1.
  int repetitions = 9;
  // Divides the numbers of allocations, for a quick look.
  uint32_t divisor = 1;
};

// Allocations and frees that find everything cached, on one thread.
absl::StatusOr<Section> MeasureHits(const BenchOptions& options);
// The same where few are live at a time.
absl::StatusOr<Section> MeasureFew(const BenchOptions& options);
// Hits on two threads at once, against one.
absl::StatusOr<Section> MeasureTwoThreads(const BenchOptions& options);
// Blocks that another stream or another thread frees.
absl::StatusOr<Section> MeasureHandoff(const BenchOptions& options);
// Large allocations that re-use what was freed before, still mapped.
absl::StatusOr<Section> MeasureReuse(const BenchOptions& options);
// The cost of an operation with more and more live allocations.
absl::StatusOr<Section> MeasureScaling(const BenchOptions& options);
// Physical memory held against what is live, in cases that fragment others.
absl::StatusOr<Section> MeasureFootprint(const BenchOptions& options);
// The same after mesh, and after a relocation pass.
absl::StatusOr<Section> MeasureCompaction(const BenchOptions& options);

}  // namespace quire

#endif  // QUIRE_BENCH_ALLOCATOR_BENCH_SECTIONS_H_
