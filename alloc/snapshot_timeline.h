// Memory over time, from the events of a trace: what was held, and how much of
// it was asked for.

#ifndef QUIRE_ALLOC_SNAPSHOT_TIMELINE_H_
#define QUIRE_ALLOC_SNAPSHOT_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "quire/alloc/event_trace.h"
#include "quire/alloc/units.h"

namespace quire {

struct Timeline {
  struct Mark {
    uint64_t nanoseconds = 0;
    std::string label;
  };
  struct Failure {
    uint64_t nanoseconds = 0;
    uint32_t owner = 0;
    uint64_t requested = 0;
  };
  // Of one owner; one entry per point.
  struct OwnerColumns {
    std::vector<uint64_t> live;
    std::vector<uint64_t> requested;
    std::vector<uint64_t> cooling;
  };
  // Columns of equal length: one entry per point, in order of time.
  std::vector<uint64_t> nanoseconds;
  std::vector<uint64_t> live;       // pages held by owners
  std::vector<uint64_t> requested;  // of these; see Holding::requested
  std::vector<uint64_t> cooling;    // and Holding::cooling
  std::map<uint32_t, OwnerColumns> owners;

  std::vector<Mark> marks;
  std::vector<Failure> failures;
  // Events that the trace no longer had.
  uint64_t dropped = 0;
};

// What an owner holds.
struct Holding {
  uint64_t pages = 0;      // bytes of its live pages
  uint64_t requested = 0;  // sum of its live allocations
  // Whether it asks an allocator for memory. One that does not maps pages
  // itself, and has use for all of them.
  bool allocates = false;
  // Freed on streams that have not been seen to be done since. What was freed
  // before the first event is not known.
  uint64_t cooling = 0;

  uint64_t used() const { return allocates ? requested : pages; }
};

// `events` are those of one device, in order of time, and marks. `now` is what
// owners hold after the last event: where the trace has lost its beginning,
// history is told backwards from there.
//
// Points are the events that change what is held or asked for. Of more than
// `most_points`, the first, the last, and the highest and the lowest of both
// sums in each of equal stretches are kept, and the highest of each owner:
// peaks survive, and there are at most most_points + owners points. REQUIRES:
// most_points >= 6.
Timeline BuildTimeline(const std::vector<TraceEvent>& events, uint64_t dropped,
                       const std::map<uint32_t, Holding>& now,
                       size_t most_points);

}  // namespace quire

#endif  // QUIRE_ALLOC_SNAPSHOT_TIMELINE_H_
