// Sequences of allocations and frees, made before anything is measured, so that
// every contender runs the very same one and nothing but its calls is timed.

#ifndef QUIRE_BENCH_ALLOCATOR_BENCH_WORKLOAD_H_
#define QUIRE_BENCH_ALLOCATOR_BENCH_WORKLOAD_H_

#include <cstdint>
#include <random>
#include <vector>

namespace quire {

// Allocates `size` bytes into a slot of a table of addresses, or frees what the
// slot holds where the size is 0.
struct Operation {
  uint32_t slot;
  uint32_t size;
};

struct SizeRange {
  uint32_t least;
  uint32_t most;
};

// One in `range`, each doubling as likely as every other.
uint32_t LogUniform(SizeRange range, std::mt19937_64* random);

// The workload that VulkanMemoryAllocator measures its virtual blocks with:
// many allocations, then allocations and frees in random order, then frees of
// all that is left, in random order.
struct PhasedWorkload {
  std::vector<Operation> allocate;
  std::vector<Operation> mixed;
  std::vector<Operation> free;
  uint32_t slots = 0;

  size_t operations() const {
    return allocate.size() + mixed.size() + free.size();
  }
};
PhasedWorkload MakePhasedWorkload(uint32_t allocations, uint32_t mixed,
                                  SizeRange sizes, uint64_t seed);
// The one of 7200 allocations and 14400 operations in random order, of 256 B to
// 1 MiB, with `divisor` times fewer of both.
PhasedWorkload MakeHitWorkload(uint32_t divisor, uint64_t seed);

// `live` allocations; then `pairs` times one of them, drawn at random, is freed
// and another takes its place; then all are freed, in random order.
struct ChurnWorkload {
  std::vector<Operation> fill;
  std::vector<Operation> churn;
  std::vector<Operation> drain;
  uint32_t slots = 0;
};
ChurnWorkload MakeChurnWorkload(uint32_t live, uint32_t pairs, SizeRange sizes,
                                uint64_t seed);

}  // namespace quire

#endif  // QUIRE_BENCH_ALLOCATOR_BENCH_WORKLOAD_H_
