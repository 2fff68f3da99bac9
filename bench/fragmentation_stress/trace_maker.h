// Writes allocation traces event by event, and knows what is live.

#ifndef QUIRE_BENCH_FRAGMENTATION_STRESS_TRACE_MAKER_H_
#define QUIRE_BENCH_FRAGMENTATION_STRESS_TRACE_MAKER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "quire/alloc/allocation_trace.h"

namespace quire {

// A number that names an allocation of the trace.
struct TracePiece {
  uint64_t allocation = 0;
  uint64_t size = 0;
  uint64_t stream = 0;
};

class TraceMaker {
 public:
  TraceMaker(uint64_t seed, uint64_t events) : state_(seed), events_(events) {
    trace_.events.reserve(events);
  }

  bool full() const { return trace_.events.size() >= events_; }
  uint64_t events() const { return events_; }  // that are to be made, about
  uint64_t live() const { return live_; }
  AllocationTrace Take() { return std::move(trace_); }

  TracePiece Allocate(uint64_t size, uint64_t stream = 0);
  void Free(const TracePiece& piece);
  // Frees a random one of `pieces`, in O(1): the last one takes its place.
  void FreeRandom(std::vector<TracePiece>* pieces);
  void FreeAll(std::vector<TracePiece>* pieces);

  // Uniform in [0, bound). REQUIRES: bound > 0.
  uint64_t Random(uint64_t bound);
  // Each power of two as likely as the next: from `least` to `most`, both
  // powers of two.
  uint64_t RandomSize(uint64_t least, uint64_t most);

 private:
  AllocationTrace trace_;
  uint64_t state_;
  uint64_t events_;
  uint64_t live_ = 0;
  uint64_t next_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_FRAGMENTATION_STRESS_TRACE_MAKER_H_
