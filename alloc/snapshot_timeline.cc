#include "alloc/snapshot_timeline.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace quire {
namespace {

// Which sum of its owner an event moves, and which way.
struct Change {
  uint64_t Holding::*sum = nullptr;  // null: none
  bool up = false;
};

Change ChangeOf(TraceAction action) {
  switch (action) {
    case TraceAction::kCommit:
      return {&Holding::pages, true};
    case TraceAction::kDecommit:
      return {&Holding::pages, false};
    case TraceAction::kAllocate:
      return {&Holding::requested, true};
    case TraceAction::kFree:
      return {&Holding::requested, false};
    default:
      return {};
  }
}

// Traces may have lost events, so a sum may seem to fall below zero.
void Move(uint64_t* sum, uint64_t size, bool up) {
  *sum = up ? SaturatingAdd(*sum, size) : SaturatingSubtract(*sum, size);
}

// What was freed on streams and not seen to be free since, by address: until
// the free is complete, the memory is handed out again, or its pages are given
// up.
class CoolingBlocks {
 public:
  // Calls changed(owner, size, up) for what begins or ends to cool.
  template <typename Changed>
  void Apply(const TraceEvent& event, Changed changed) {
    const uint64_t address = event.address.value();
    switch (event.action) {
      case TraceAction::kFree:
        End(address, address, changed);
        if (event.stream == StreamId() || event.size.zero()) return;
        blocks_[address] = {event.owner.value(), event.size.value()};
        changed(event.owner.value(), event.size.value(), true);
        return;
      case TraceAction::kFreeCompleted:
      case TraceAction::kAllocate:
        return End(address, address, changed);
      case TraceAction::kDecommit:
        if (event.size.zero()) return;
        return End(address, SaturatingAdd(address, event.size.value() - 1),
                   changed);
      default:
        return;
    }
  }

 private:
  struct Block {
    uint32_t owner;
    uint64_t size;
  };

  // Of what begins at `first` to `last`, and of the end of what reaches there.
  template <typename Changed>
  void End(uint64_t first, uint64_t last, Changed changed) {
    auto block = blocks_.lower_bound(first);
    if (block != blocks_.begin() && first < last) {
      auto& [address, before] = *std::prev(block);
      const uint64_t left = std::min(before.size, first - address);
      if (left < before.size) changed(before.owner, before.size - left, false);
      before.size = left;
    }
    while (block != blocks_.end() && block->first <= last) {
      changed(block->second.owner, block->second.size, false);
      block = blocks_.erase(block);
    }
  }

  std::map<uint64_t, Block> blocks_;
};

// Follows every owner, event by event.
class Ledger {
 public:
  explicit Ledger(std::map<uint32_t, Holding> owners)
      : owners_(std::move(owners)) {
    for (const auto& [id, holding] : owners_) used_ += holding.used();
  }

  // False where nothing changes.
  bool Apply(const TraceEvent& event, bool forwards = true) {
    bool changed = false;
    // What cooled before an event, that event does not say.
    if (forwards) {
      cooling_blocks_.Apply(event, [&](uint32_t owner, uint64_t size, bool up) {
        changed = true;
        Move(&owners_[owner].cooling, size, up);
        cooling_ = up ? cooling_ + size : cooling_ - size;
      });
    }
    const Change change = ChangeOf(event.action);
    if (change.sum == nullptr) return changed;
    Holding& holding = owners_[event.owner.value()];
    used_ -= holding.used();
    Move(&(holding.*change.sum), event.size.value(), change.up == forwards);
    used_ += holding.used();
    return true;
  }
  const std::map<uint32_t, Holding>& owners() const { return owners_; }
  // Sum of Holding::used. May wrap where sizes are absurd, and wraps back.
  uint64_t used() const { return used_; }
  // Sum of Holding::cooling, likewise.
  uint64_t cooling() const { return cooling_; }

 private:
  std::map<uint32_t, Holding> owners_;
  CoolingBlocks cooling_blocks_;
  uint64_t used_ = 0;
  uint64_t cooling_ = 0;
};

// What owners held before the first event.
std::map<uint32_t, Holding> Beginning(const std::vector<TraceEvent>& events,
                                      uint64_t dropped,
                                      const std::map<uint32_t, Holding>& now) {
  Ledger ledger(now);
  if (dropped > 0) {
    for (auto event = events.rbegin(); event != events.rend(); ++event) {
      ledger.Apply(*event, /*forwards=*/false);
    }
  }
  std::map<uint32_t, Holding> beginning = ledger.owners();
  for (auto& [id, holding] : beginning) {
    if (dropped == 0) holding.pages = holding.requested = 0;
  }
  for (const TraceEvent& event : events) {
    if (event.action != TraceAction::kAllocate) continue;
    beginning[event.owner.value()].allocates = true;
  }
  return beginning;
}

// The columns of all events that change something.
struct TimelineColumns {
  std::vector<const TraceEvent*> changes;
  std::vector<uint64_t> live;
  std::vector<uint64_t> requested;
  std::map<uint32_t, size_t> highest_of_owner;  // index of its highest point
};

TimelineColumns Follow(const std::vector<TraceEvent>& events, uint64_t live,
                       Ledger ledger) {
  TimelineColumns columns;
  std::map<uint32_t, uint64_t> highest;
  for (const TraceEvent& event : events) {
    if (!ledger.Apply(event)) continue;
    if (ChangeOf(event.action).sum == &Holding::pages) {
      live = event.in_use.value();
      const uint32_t owner = event.owner.value();
      const uint64_t pages = ledger.owners().at(owner).pages;
      if (pages >= highest[owner]) {
        highest[owner] = pages;
        columns.highest_of_owner[owner] = columns.changes.size();
      }
    }
    columns.changes.push_back(&event);
    columns.live.push_back(live);
    columns.requested.push_back(ledger.used());
  }
  return columns;
}

// The indices to keep, in order.
std::set<size_t> ChoosePoints(const TimelineColumns& columns,
                              size_t most_points) {
  std::set<size_t> kept;
  const size_t count = columns.changes.size();
  const size_t stretches = std::min(count, most_points / 6);
  for (size_t i = 0; i < stretches; ++i) {
    const size_t begin = count * i / stretches;
    const size_t end = count * (i + 1) / stretches;
    kept.insert({begin, end - 1});
    for (const std::vector<uint64_t>* column :
         {&columns.live, &columns.requested}) {
      const auto [lowest, highest] = std::minmax_element(
          column->begin() + static_cast<std::ptrdiff_t>(begin),
          column->begin() + static_cast<std::ptrdiff_t>(end));
      kept.insert({static_cast<size_t>(lowest - column->begin()),
                   static_cast<size_t>(highest - column->begin())});
    }
  }
  for (const auto& [owner, index] : columns.highest_of_owner) {
    kept.insert(index);
  }
  return kept;
}

// Live bytes before the first event, as the first one that knows says.
uint64_t LiveBefore(const std::vector<TraceEvent>& events) {
  for (const TraceEvent& event : events) {
    if (ChangeOf(event.action).sum != &Holding::pages) continue;
    uint64_t live = event.in_use.value();
    Move(&live, event.size.value(), event.action == TraceAction::kDecommit);
    return live;
  }
  return 0;
}

}  // namespace

Timeline BuildTimeline(const std::vector<TraceEvent>& events, uint64_t dropped,
                       const std::map<uint32_t, Holding>& now,
                       size_t most_points) {
  Timeline timeline;
  timeline.dropped = dropped;
  for (const TraceEvent& event : events) {
    if (event.action == TraceAction::kMark) {
      timeline.marks.push_back({event.nanoseconds, event.label});
    } else if (event.action == TraceAction::kOutOfMemory) {
      timeline.failures.push_back(
          {event.nanoseconds, event.owner.value(), event.size.value()});
    }
  }

  Ledger ledger(Beginning(events, dropped, now));
  const TimelineColumns columns = Follow(events, LiveBefore(events), ledger);
  const std::set<size_t> kept = ChoosePoints(columns, most_points);
  for (size_t i = 0; i < columns.changes.size(); ++i) {
    ledger.Apply(*columns.changes[i]);
    if (kept.count(i) == 0) continue;
    for (const auto& [id, holding] : ledger.owners()) {
      Timeline::OwnerColumns& owner = timeline.owners[id];
      // An owner that comes later held nothing before.
      owner.live.resize(timeline.nanoseconds.size());
      owner.requested.resize(timeline.nanoseconds.size());
      owner.cooling.resize(timeline.nanoseconds.size());
      owner.live.push_back(holding.pages);
      owner.requested.push_back(holding.used());
      owner.cooling.push_back(holding.cooling);
    }
    timeline.nanoseconds.push_back(columns.changes[i]->nanoseconds);
    timeline.live.push_back(columns.live[i]);
    timeline.requested.push_back(columns.requested[i]);
    timeline.cooling.push_back(ledger.cooling());
  }
  return timeline;
}

}  // namespace quire
