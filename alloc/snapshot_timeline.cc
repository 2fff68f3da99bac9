#include "alloc/snapshot_timeline.h"

#include <algorithm>
#include <set>

namespace quire {
namespace {

bool ChangesLive(const TraceEvent& event) {
  return event.action == TraceAction::kCommit ||
         event.action == TraceAction::kDecommit;
}

// Traces may have lost events, so a sum may seem to fall below zero.
uint64_t Apply(uint64_t live, const TraceEvent& event) {
  if (event.action == TraceAction::kCommit) {
    return CheckedAdd(live, event.size.value()).value_or(UINT64_MAX);
  }
  return CheckedSubtract(live, event.size.value()).value_or(0);
}
uint64_t Undo(uint64_t live, const TraceEvent& event) {
  TraceEvent opposite = event;
  opposite.action = event.action == TraceAction::kCommit
                        ? TraceAction::kDecommit
                        : TraceAction::kCommit;
  return Apply(live, opposite);
}

// The indices of `live` to keep, in order.
std::set<size_t> ChoosePoints(
    const std::vector<uint64_t>& live,
    const std::map<uint32_t, size_t>& highest_of_owner, size_t most_points) {
  std::set<size_t> kept;
  const size_t count = live.size();
  const size_t stretches = std::min(count, most_points / 4);
  for (size_t i = 0; i < stretches; ++i) {
    const size_t begin = count * i / stretches;
    const size_t end = count * (i + 1) / stretches;
    const auto [lowest, highest] =
        std::minmax_element(live.begin() + static_cast<std::ptrdiff_t>(begin),
                            live.begin() + static_cast<std::ptrdiff_t>(end));
    kept.insert({begin, static_cast<size_t>(lowest - live.begin()),
                 static_cast<size_t>(highest - live.begin()), end - 1});
  }
  for (const auto& [owner, index] : highest_of_owner) kept.insert(index);
  return kept;
}

}  // namespace

Timeline BuildTimeline(const std::vector<TraceEvent>& events, uint64_t dropped,
                       const std::vector<Bytes>& live_by_owner_now,
                       size_t most_points) {
  Timeline timeline;
  timeline.dropped = dropped;
  // What owners held before the first event that is left.
  std::map<uint32_t, uint64_t> held;
  if (dropped > 0) {
    for (uint32_t owner = 0; owner < live_by_owner_now.size(); ++owner) {
      if (live_by_owner_now[owner].zero()) continue;
      held[owner] = live_by_owner_now[owner].value();
    }
    for (auto event = events.rbegin(); event != events.rend(); ++event) {
      if (!ChangesLive(*event)) continue;
      uint64_t& live = held[event->owner.value()];
      live = Undo(live, *event);
    }
  }

  std::vector<const TraceEvent*> changes;
  std::vector<uint64_t> live;
  std::map<uint32_t, size_t> highest_of_owner;
  std::map<uint32_t, uint64_t> highest;
  std::map<uint32_t, uint64_t> running = held;
  for (const TraceEvent& event : events) {
    if (event.action == TraceAction::kMark) {
      timeline.marks.push_back({event.nanoseconds, event.label});
    } else if (event.action == TraceAction::kOutOfMemory) {
      timeline.failures.push_back(
          {event.nanoseconds, event.owner.value(), event.size.value()});
    }
    if (!ChangesLive(event)) continue;
    const uint32_t owner = event.owner.value();
    const uint64_t now = running[owner] = Apply(running[owner], event);
    if (now >= highest[owner]) {
      highest[owner] = now;
      highest_of_owner[owner] = changes.size();
    }
    changes.push_back(&event);
    live.push_back(event.in_use.value());
  }

  const std::set<size_t> kept =
      ChoosePoints(live, highest_of_owner, most_points);
  for (const auto& [owner, bytes] : running) timeline.live_by_owner[owner];
  for (size_t i = 0; i < changes.size(); ++i) {
    const uint32_t owner = changes[i]->owner.value();
    held[owner] = Apply(held[owner], *changes[i]);
    if (kept.count(i) == 0) continue;
    timeline.nanoseconds.push_back(changes[i]->nanoseconds);
    timeline.live.push_back(live[i]);
    for (auto& [id, column] : timeline.live_by_owner) {
      column.push_back(held[id]);
    }
  }
  return timeline;
}

}  // namespace quire
