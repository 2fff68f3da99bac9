// Live memory over time, from the events of a trace.

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
  // Columns of equal length: one entry per point, in order of time.
  std::vector<uint64_t> nanoseconds;
  std::vector<uint64_t> live;
  std::map<uint32_t, std::vector<uint64_t>> live_by_owner;

  std::vector<Mark> marks;
  std::vector<Failure> failures;
  // Events that the trace no longer had.
  uint64_t dropped = 0;
};

// `events` are those of one device, in order of time, and marks.
// `live_by_owner_now` is what owners hold after the last event: where the trace
// has lost its beginning, history is told backwards from there.
//
// Of more than `most_points` events, the first, the highest, the lowest and the
// last of each of equal stretches are kept, and the highest of each owner:
// peaks survive, and there are at most most_points + owners points. REQUIRES:
// most_points >= 4.
Timeline BuildTimeline(const std::vector<TraceEvent>& events, uint64_t dropped,
                       const std::vector<Bytes>& live_by_owner_now,
                       size_t most_points);

}  // namespace quire

#endif  // QUIRE_ALLOC_SNAPSHOT_TIMELINE_H_
