// The JSON of what a memory snapshot says of the past: timeline, events,
// growth. docs/memory_snapshot.md describes the fields.

#ifndef QUIRE_ALLOC_SNAPSHOT_HISTORY_JSON_H_
#define QUIRE_ALLOC_SNAPSHOT_HISTORY_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "alloc/memory_snapshot_data.h"
#include "alloc/snapshot_fields.h"
#include "alloc/snapshot_timeline.h"
#include "quire/alloc/event_trace.h"

namespace quire {

nlohmann::json TimelineToJson(const Timeline& timeline);
void ReadTimeline(const SnapshotFields& fields, Timeline* timeline);

// Columns, which take a third of the room that one object per event would.
nlohmann::json EventsToJson(const std::vector<TraceEvent>& events);
void ReadEvents(const SnapshotFields& fields, std::vector<TraceEvent>* events);

nlohmann::json GrowthToJson(const std::vector<MemorySnapshot::Growth>& growth);
// `fields` holds the array.
void ReadGrowth(const SnapshotFields& fields,
                std::vector<MemorySnapshot::Growth>* growth);

}  // namespace quire

#endif  // QUIRE_ALLOC_SNAPSHOT_HISTORY_JSON_H_
