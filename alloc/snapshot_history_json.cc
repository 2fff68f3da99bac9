#include "alloc/snapshot_history_json.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"

namespace quire {
namespace {

using Json = nlohmann::json;

// One owner's column must fit the others.
std::vector<uint64_t> Column(const SnapshotFields& fields, const char* key,
                             size_t points) {
  std::vector<uint64_t> column = fields.Numbers(key);
  if (column.size() != points) {
    fields.Fail(key, "does not have one entry per point");
    column.resize(points);
  }
  return column;
}

}  // namespace

Json TimelineToJson(const Timeline& timeline) {
  Json owners = Json::array();
  for (const auto& [owner, columns] : timeline.owners) {
    owners.push_back({{"owner", owner},
                      {"live", columns.live},
                      {"requested", columns.requested},
                      {"cooling", columns.cooling}});
  }
  Json marks = Json::array();
  for (const Timeline::Mark& mark : timeline.marks) {
    marks.push_back({{"nanoseconds", mark.nanoseconds}, {"label", mark.label}});
  }
  Json failures = Json::array();
  for (const Timeline::Failure& failure : timeline.failures) {
    failures.push_back({{"nanoseconds", failure.nanoseconds},
                        {"owner", failure.owner},
                        {"requested", failure.requested}});
  }
  return {{"dropped", timeline.dropped}, {"nanoseconds", timeline.nanoseconds},
          {"live", timeline.live},       {"requested", timeline.requested},
          {"cooling", timeline.cooling}, {"owners", std::move(owners)},
          {"marks", std::move(marks)},   {"failures", std::move(failures)}};
}

void ReadTimeline(const SnapshotFields& fields, Timeline* timeline) {
  timeline->dropped = fields.Number("dropped");
  timeline->nanoseconds = fields.Numbers("nanoseconds");
  const size_t points = timeline->nanoseconds.size();
  timeline->live = Column(fields, "live", points);
  timeline->requested = Column(fields, "requested", points);
  timeline->cooling = Column(fields, "cooling", points);
  fields.ForEach("owners", [&](const SnapshotFields& owner) {
    timeline->owners[owner.OwnerNumber("owner")] = {
        Column(owner, "live", points), Column(owner, "requested", points),
        Column(owner, "cooling", points)};
  });
  fields.ForEach("marks", [&](const SnapshotFields& mark) {
    timeline->marks.push_back({mark.Number("nanoseconds"), mark.Text("label")});
  });
  fields.ForEach("failures", [&](const SnapshotFields& failure) {
    timeline->failures.push_back({failure.Number("nanoseconds"),
                                  failure.OwnerNumber("owner"),
                                  failure.Number("requested")});
  });
}

Json EventsToJson(const std::vector<TraceEvent>& events) {
  Json columns;
  for (const char* name : {"nanoseconds", "action", "owner", "address", "size",
                           "in_use", "stream", "thread", "label"}) {
    columns[name] = Json::array();
  }
  for (const TraceEvent& event : events) {
    columns["nanoseconds"].push_back(event.nanoseconds);
    columns["action"].push_back(TraceActionName(event.action));
    columns["owner"].push_back(event.owner.value());
    columns["address"].push_back(AddressText(event.address.value()));
    columns["size"].push_back(event.size.value());
    columns["in_use"].push_back(event.in_use.value());
    columns["stream"].push_back(event.stream.value());
    columns["thread"].push_back(event.thread);
    columns["label"].push_back(event.label);
  }
  return columns;
}

void ReadEvents(const SnapshotFields& fields, std::vector<TraceEvent>* events) {
  const std::vector<uint64_t> nanoseconds = fields.Numbers("nanoseconds");
  const size_t count = nanoseconds.size();
  const auto numbers = [&](const char* key, uint64_t most) {
    std::vector<uint64_t> column = fields.Numbers(key);
    if (column.size() != count) {
      fields.Fail(key, "does not have one entry per event");
    }
    for (const uint64_t number : column) {
      if (number > most) fields.Fail(key, "has a number that is too large");
    }
    column.resize(count);
    return column;
  };
  const auto texts = [&](const char* key) {
    std::vector<std::string> column = fields.Texts(key);
    if (column.size() != count) {
      fields.Fail(key, "does not have one entry per event");
    }
    column.resize(count);
    return column;
  };
  const std::vector<std::string> actions = texts("action");
  const std::vector<uint64_t> owners = numbers("owner", UINT32_MAX);
  const std::vector<std::string> addresses = texts("address");
  const std::vector<uint64_t> sizes = numbers("size", UINT64_MAX);
  const std::vector<uint64_t> in_use = numbers("in_use", UINT64_MAX);
  const std::vector<uint64_t> streams = numbers("stream", UINT64_MAX);
  const std::vector<uint64_t> threads = numbers("thread", UINT32_MAX);
  std::vector<std::string> labels = texts("label");
  for (size_t i = 0; i < count; ++i) {
    TraceEvent event;
    event.nanoseconds = nanoseconds[i];
    const std::optional<TraceAction> action = TraceActionFromName(actions[i]);
    if (!action) fields.Fail("action", "has a name that is no action");
    event.action = action.value_or(TraceAction::kMark);
    event.owner = OwnerId(static_cast<uint32_t>(owners[i]));
    uint64_t address = 0;
    if (!absl::SimpleHexAtoi(addresses[i], &address)) {
      fields.Fail("address", "has a text that is no hexadecimal address");
    }
    event.address = DeviceAddress(address);
    event.size = Bytes(sizes[i]);
    event.in_use = Bytes(in_use[i]);
    event.stream = StreamId(streams[i]);
    event.thread = static_cast<uint32_t>(threads[i]);
    event.label = std::move(labels[i]);
    events->push_back(std::move(event));
  }
}

Json GrowthToJson(const std::vector<MemorySnapshot::Growth>& growth) {
  Json json = Json::array();
  for (const MemorySnapshot::Growth& each : growth) {
    const MemoryGrowth& found = each.growth;
    json.push_back({{"owner", each.owner ? Json(*each.owner) : Json()},
                    {"kind", GrowthKindName(found.kind)},
                    {"from_nanoseconds", found.from_nanoseconds},
                    {"to_nanoseconds", found.to_nanoseconds},
                    {"held_from", found.held_from.value()},
                    {"held_to", found.held_to.value()},
                    {"used_from", found.used_from.value()},
                    {"used_to", found.used_to.value()},
                    {"cooling_from", found.cooling_from.value()},
                    {"cooling_to", found.cooling_to.value()}});
  }
  return json;
}

void ReadGrowth(const SnapshotFields& fields,
                std::vector<MemorySnapshot::Growth>* growth) {
  fields.ForEach("growth", [&](const SnapshotFields& each) {
    MemorySnapshot::Growth found;
    if (each.Has("owner")) found.owner = each.OwnerNumber("owner");
    const auto kind = GrowthKindFromName(each.Text("kind"));
    if (!kind) each.Fail("kind", "is not a kind of growth");
    found.growth = {kind.value_or(GrowthKind::kLeak),
                    each.Number("from_nanoseconds"),
                    each.Number("to_nanoseconds"),
                    each.Size("held_from"),
                    each.Size("held_to"),
                    each.Size("used_from"),
                    each.Size("used_to"),
                    each.Size("cooling_from"),
                    each.Size("cooling_to")};
    growth->push_back(found);
  });
}

}  // namespace quire
