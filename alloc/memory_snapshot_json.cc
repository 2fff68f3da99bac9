// The JSON of a memory snapshot, both ways. docs/memory_snapshot.md describes
// the fields.

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "alloc/memory_snapshot_data.h"
#include "alloc/snapshot_fields.h"
#include "alloc/snapshot_history_json.h"
#include "quire/alloc/utf8.h"

namespace quire {
namespace {

using Json = nlohmann::json;

// Statistics are written by name, whatever the type of the field.
uint64_t ToNumber(Bytes bytes) { return bytes.value(); }
uint64_t ToNumber(uint64_t number) { return number; }
void FromNumber(uint64_t number, Bytes* bytes) { *bytes = Bytes(number); }
void FromNumber(uint64_t number, uint64_t* value) { *value = number; }

// ---- Parts ------------------------------------------------------------------

Json StatisticsToJson(const DeviceMemoryStatistics& statistics) {
  Json json;
#define QUIRE_WRITE_STATISTIC(type, name, help) \
  json[#name] = ToNumber(statistics.name);
  QUIRE_DEVICE_MEMORY_STATISTICS(QUIRE_WRITE_STATISTIC)
#undef QUIRE_WRITE_STATISTIC
  return json;
}

Json StatisticsToJson(const AllocatorStatistics& statistics) {
  Json json;
#define QUIRE_WRITE_STATISTIC(name, help) \
  json[#name] = ToNumber(statistics.name);
  QUIRE_ALLOCATOR_STATISTICS(QUIRE_WRITE_STATISTIC)
#undef QUIRE_WRITE_STATISTIC
  json["internal_fragmentation"] = statistics.internal_fragmentation();
  json["external_fragmentation"] = statistics.external_fragmentation();
  return json;
}

void ReadStatistics(const SnapshotFields& fields,
                    DeviceMemoryStatistics* statistics) {
#define QUIRE_READ_STATISTIC(type, name, help) \
  FromNumber(fields.Number(#name), &statistics->name);
  QUIRE_DEVICE_MEMORY_STATISTICS(QUIRE_READ_STATISTIC)
#undef QUIRE_READ_STATISTIC
}

void ReadStatistics(const SnapshotFields& fields,
                    AllocatorStatistics* statistics) {
#define QUIRE_READ_STATISTIC(name, help) \
  FromNumber(fields.Number(#name), &statistics->name);
  QUIRE_ALLOCATOR_STATISTICS(QUIRE_READ_STATISTIC)
#undef QUIRE_READ_STATISTIC
}

// A row of each kind: what it is of, its figures, and its ratios.
#define QUIRE_WRITE_STATISTIC(name, help) json[#name] = row.name;
Json RowToJson(const SizeClassStatistics& row) {
  Json json;
  QUIRE_SIZE_CLASS_STATISTICS(QUIRE_WRITE_STATISTIC)
  json["internal_fragmentation"] = row.internal_fragmentation();
  json["external_fragmentation"] = row.external_fragmentation();
  return json;
}

Json RowToJson(const StreamStatistics& row) {
  Json json = {{"stream", row.stream.value()}};
  QUIRE_STREAM_STATISTICS(QUIRE_WRITE_STATISTIC)
  return json;
}

Json RowToJson(const OwnerUseStatistics& row) {
  Json json = {{"owner", row.owner.value()}};
  QUIRE_OWNER_USE_STATISTICS(QUIRE_WRITE_STATISTIC)
  json["internal_fragmentation"] = row.internal_fragmentation();
  json["external_fragmentation"] = row.external_fragmentation();
  return json;
}
#undef QUIRE_WRITE_STATISTIC

template <typename Row>
Json RowsToJson(const std::vector<Row>& rows) {
  Json json = Json::array();
  for (const Row& row : rows) json.push_back(RowToJson(row));
  return json;
}

Json BreakdownToJson(const AllocatorBreakdown& breakdown) {
  return {{"version", AllocatorBreakdown::kVersion},
          {"classes", RowsToJson(breakdown.classes)},
          {"streams", RowsToJson(breakdown.streams)},
          {"owners", RowsToJson(breakdown.owners)}};
}

// What the ratios of rows rest on.
template <typename Row>
void CheckRow(const SnapshotFields& fields, const Row& row) {
  if (row.live_bytes < row.requested_bytes ||
      row.mapped_bytes < row.live_bytes) {
    fields.Fail("", "has more requested than live, or live than mapped");
  }
}

void ReadBreakdown(const SnapshotFields& fields,
                   AllocatorBreakdown* breakdown) {
  if (fields.Number("version") != AllocatorBreakdown::kVersion) {
    fields.Fail("version", "is not one that this program reads");
  }
#define QUIRE_READ_STATISTIC(name, help) row.name = each.Number(#name);
  fields.ForEach("classes", [&](const SnapshotFields& each) {
    SizeClassStatistics& row = breakdown->classes.emplace_back();
    QUIRE_SIZE_CLASS_STATISTICS(QUIRE_READ_STATISTIC)
    CheckRow(each, row);
  });
  fields.ForEach("streams", [&](const SnapshotFields& each) {
    StreamStatistics& row = breakdown->streams.emplace_back();
    row.stream = StreamId(each.Number("stream"));
    QUIRE_STREAM_STATISTICS(QUIRE_READ_STATISTIC)
  });
  fields.ForEach("owners", [&](const SnapshotFields& each) {
    OwnerUseStatistics& row = breakdown->owners.emplace_back();
    row.owner = OwnerId(each.OwnerNumber("owner"));
    QUIRE_OWNER_USE_STATISTICS(QUIRE_READ_STATISTIC)
    CheckRow(each, row);
  });
#undef QUIRE_READ_STATISTIC
}

// The terms of the equations that a reader can check without knowing more.
Json EquationsToJson(const MemorySnapshot& snapshot) {
  const DeviceMemoryStatistics& memory = snapshot.memory;
  const AllocatorStatistics& allocator = snapshot.allocator;
  return {{"addresses",
           {{"reserved", memory.reserved.value()},
            {"mapped", memory.mapped.value()},
            {"unmapped", memory.unmapped.value()}}},
          {"pages",
           {{"in_use", memory.in_use.value()},
            {"live", memory.live.value()},
            {"cooling", memory.cooling.value()},
            {"cached", memory.cached.value()},
            {"quarantined", memory.quarantined.value()}}},
          {"allocator",
           {{"mapped", allocator.mapped_bytes},
            {"live", allocator.live_bytes},
            {"cached", allocator.cached_bytes},
            {"cooling", allocator.cooling_bytes},
            {"slack", allocator.slack_bytes}}}};
}

Json AllocationsToJson(const std::vector<AllocationInfo>& allocations) {
  Json json = Json::array();
  for (const AllocationInfo& allocation : allocations) {
    json.push_back({{"address", AddressText(allocation.address.value())},
                    {"requested", allocation.requested.value()},
                    {"allocated", allocation.allocated.value()},
                    {"stream", allocation.stream.value()},
                    {"owner", allocation.owner.value()}});
  }
  return json;
}

Json SamplesToJson(const std::vector<MemorySnapshot::Sample>& samples) {
  Json json = Json::array();
  for (const MemorySnapshot::Sample& sample : samples) {
    json.push_back({{"address", AddressText(sample.address)},
                    {"size", sample.size.value()},
                    {"estimated", sample.estimated.value()},
                    {"callers", sample.callers}});
  }
  return json;
}

void ReadSamples(const SnapshotFields& fields, size_t frames,
                 std::vector<MemorySnapshot::Sample>* samples) {
  fields.ForEach("samples", [&](const SnapshotFields& sample) {
    std::vector<uint64_t> callers = sample.Numbers("callers");
    for (const uint64_t caller : callers) {
      if (caller >= frames) sample.Fail("callers", "has one that is no frame");
    }
    samples->push_back({sample.Address("address"), sample.Size("size"),
                        sample.Size("estimated"), std::move(callers)});
  });
}

void ReadAllocations(const SnapshotFields& fields,
                     std::vector<AllocationInfo>* allocations) {
  fields.ForEach("allocations", [&](const SnapshotFields& each) {
    AllocationInfo allocation;
    allocation.address = DeviceAddress(each.Address("address"));
    allocation.requested = each.Size("requested");
    allocation.allocated = each.Size("allocated");
    allocation.stream = StreamId(each.Number("stream"));
    allocation.owner = OwnerId(each.OwnerNumber("owner"));
    if (allocation.allocated < allocation.requested) {
      each.Fail("allocated", "is less than requested");
    }
    allocations->push_back(allocation);
  });
}

Json VerdictToJson(const OutOfMemoryVerdict& verdict) {
  Json owners = Json::array();
  for (const auto& [name, live] : verdict.owners) {
    owners.push_back({{"name", name}, {"live", live.value()}});
  }
  Json awaited = Json::array();
  for (const AwaitedStream& each : verdict.awaited) {
    awaited.push_back(
        {{"stream", each.stream.value()}, {"cooling", each.cooling.value()}});
  }
  Json recent_events = Json::array();
  for (const RecentEvent& event : verdict.recent) {
    recent_events.push_back({{"nanoseconds_before", event.nanoseconds_before},
                      {"action", event.action},
                      {"owner", event.owner},
                      {"size", event.size.value()},
                      {"label", event.label}});
  }
  Json owner_limit;
  if (verdict.owner_limit) {
    owner_limit = {{"owner", verdict.owner_limit->owner},
                   {"limit", verdict.owner_limit->limit.value()},
                   {"live", verdict.owner_limit->live.value()}};
  }
  return {{"kind", ShortageKindName(verdict.kind)},
          {"requested", verdict.requested.value()},
          {"free", verdict.free.value()},
          {"largest_possible", verdict.largest_possible.value()},
          {"limit", verdict.limit.value()},
          {"device_total", verdict.device_total.value()},
          {"cooling", verdict.cooling.value()},
          {"held_as_slack", verdict.held_as_slack.value()},
          {"mesh_frees", verdict.mesh_frees.value()},
          {"relocation_frees", verdict.relocation_frees.value()},
          {"sleep_frees", verdict.sleep_frees.value()},
          {"reserved_for_others", verdict.reserved_for_others.value()},
          {"owner_limit", std::move(owner_limit)},
          {"owners", std::move(owners)},
          {"awaited", std::move(awaited)},
          {"recent", std::move(recent_events)},
          {"advice", verdict.advice}};
}

OutOfMemoryVerdict ReadVerdict(const SnapshotFields& fields) {
  OutOfMemoryVerdict verdict;
  const auto kind = ShortageKindFromName(fields.Text("kind"));
  if (!kind) fields.Fail("kind", "is not a kind of shortage");
  verdict.kind = kind.value_or(ShortageKind::kCapacity);
  verdict.requested = fields.Size("requested");
  verdict.free = fields.Size("free");
  verdict.largest_possible = fields.Size("largest_possible");
  verdict.limit = fields.Size("limit");
  verdict.device_total = fields.Size("device_total");
  verdict.cooling = fields.Size("cooling");
  verdict.held_as_slack = fields.Size("held_as_slack");
  verdict.mesh_frees = fields.Size("mesh_frees");
  verdict.relocation_frees = fields.Size("relocation_frees");
  verdict.sleep_frees = fields.Size("sleep_frees");
  verdict.reserved_for_others = fields.Size("reserved_for_others");
  if (fields.Has("owner_limit")) {
    const SnapshotFields limit = fields.Object("owner_limit");
    verdict.owner_limit = OwnerShortage{
        limit.Text("owner"), limit.Size("limit"), limit.Size("live")};
  }
  fields.ForEach("awaited", [&](const SnapshotFields& each) {
    verdict.awaited.push_back(
        {StreamId(each.Number("stream")), each.Size("cooling")});
  });
  fields.ForEach("recent", [&](const SnapshotFields& event) {
    verdict.recent.push_back({event.Number("nanoseconds_before"),
                              event.Text("action"), event.Text("owner"),
                              event.Size("size"), event.Text("label")});
  });
  fields.ForEach("owners", [&](const SnapshotFields& owner) {
    verdict.owners.emplace_back(owner.Text("name"), owner.Size("live"));
  });
  verdict.advice = fields.Text("advice");
  return verdict;
}

// Names are the program's bytes. Of a snapshot that is written somewhere, every
// text is UTF-8.
void MakeTextsValid(Json* json) {
  if (json->is_structured()) {
    for (Json& each : *json) MakeTextsValid(&each);
  } else if (json->is_string() &&
             !IsValidUtf8(json->get_ref<const std::string&>())) {
    *json = ValidUtf8(json->get_ref<const std::string&>());
  }
}

}  // namespace

Json ToJson(const MemorySnapshot& snapshot) {
  Json json = {{"format", "quire-memory-snapshot"},
               {"version", kMemorySnapshotVersion}};
  const MemorySnapshot::Device& device = snapshot.device;
  json["device"] = {
      {"id", device.id},
      {"name", device.name},
      {"driver", device.driver},
      {"total", device.total.value()},
      {"free", device.free ? Json(device.free->value()) : Json()}};
  json["page_size"] = snapshot.memory.page_size.value();
  json["memory"] = StatisticsToJson(snapshot.memory);
  json["health"] = snapshot.health;
  json["allocator"] = StatisticsToJson(snapshot.allocator);
  json["allocator"]["largest_possible"] = snapshot.largest_possible.value();
  json["breakdown"] = BreakdownToJson(snapshot.breakdown);
  json["equations"] = EquationsToJson(snapshot);
  Json& owners = json["owners"] = Json::array();
  for (const MemorySnapshot::Owner& owner : snapshot.owners) {
    owners.push_back({{"id", owner.id},
                      {"name", owner.name},
                      {"live", owner.live.value()},
                      {"requested", owner.requested.value()},
                      {"allocations", owner.allocations}});
  }
  Json& pages = json["pages"] = Json::array();
  for (const MemorySnapshot::Page& page : snapshot.pages) {
    pages.push_back({{"address", AddressText(page.address)},
                     {"page", page.page},
                     {"owner", page.owner},
                     {"state", page.cooling ? "cooling" : "live"},
                     {"managed", page.managed}});
  }
  Json& calls = json["driver_calls"] = Json::array();
  for (const MemorySnapshot::Call& call : snapshot.driver_calls) {
    calls.push_back({{"name", call.name},
                     {"count", call.count},
                     {"failed", call.failed},
                     {"microseconds", call.microseconds}});
  }
  json["allocations"] = AllocationsToJson(snapshot.allocations);
  json["frames"] = snapshot.frames;
  json["samples"] = SamplesToJson(snapshot.samples);
  json["timeline"] = TimelineToJson(snapshot.timeline);
  json["events"] = EventsToJson(snapshot.events);
  json["growth"] = GrowthToJson(snapshot.growth);
  Json& host = json["host_memory"] = Json::array();
  for (const HostMemoryUse& use : snapshot.host_memory) {
    host.push_back({{"name", use.name},
                    {"bytes", use.bytes.value()},
                    {"peak", use.peak.value()}});
  }
  json["verdict"] =
      snapshot.verdict ? VerdictToJson(*snapshot.verdict) : Json();
  MakeTextsValid(&json);
  return json;
}

absl::StatusOr<MemorySnapshot> MemorySnapshotFromJson(const Json& json) {
  absl::Status error;
  MemorySnapshot snapshot;
  const SnapshotFields fields(&json, "", &error);
  if (fields.Text("format") != "quire-memory-snapshot") {
    fields.Fail("format", "is not \"quire-memory-snapshot\"");
  }
  if (fields.Number("version") != kMemorySnapshotVersion) {
    fields.Fail("version", "is not one that this program reads");
  }
  const SnapshotFields device = fields.Object("device");
  snapshot.device = {device.Number("id"), device.Text("name"),
                     device.Text("driver"), device.Size("total"), std::nullopt};
  if (device.Has("free")) snapshot.device.free = device.Size("free");
  ReadStatistics(fields.Object("memory"), &snapshot.memory);
  snapshot.health = fields.Text("health");
  ReadStatistics(fields.Object("allocator"), &snapshot.allocator);
  snapshot.largest_possible =
      fields.Object("allocator").Size("largest_possible");
  ReadBreakdown(fields.Object("breakdown"), &snapshot.breakdown);
  fields.ForEach("owners", [&](const SnapshotFields& owner) {
    snapshot.owners.push_back({owner.OwnerNumber("id"), owner.Text("name"),
                               owner.Size("live"), owner.Size("requested"),
                               owner.Number("allocations")});
  });
  fields.ForEach("pages", [&](const SnapshotFields& page) {
    const std::string state = page.Text("state");
    if (state != "live" && state != "cooling") {
      page.Fail("state", "is neither \"live\" nor \"cooling\"");
    }
    snapshot.pages.push_back({page.Address("address"), page.Number("page"),
                              page.OwnerNumber("owner"), state == "cooling",
                              page.Flag("managed")});
  });
  fields.ForEach("driver_calls", [&](const SnapshotFields& call) {
    snapshot.driver_calls.push_back({call.Text("name"), call.Number("count"),
                                     call.Number("failed"),
                                     call.Real("microseconds")});
  });
  ReadAllocations(fields, &snapshot.allocations);
  snapshot.frames = fields.Texts("frames");
  ReadSamples(fields, snapshot.frames.size(), &snapshot.samples);
  ReadTimeline(fields.Object("timeline"), &snapshot.timeline);
  ReadEvents(fields.Object("events"), &snapshot.events);
  ReadGrowth(fields, &snapshot.growth);
  fields.ForEach("host_memory", [&](const SnapshotFields& use) {
    snapshot.host_memory.push_back(
        {use.Text("name"), use.Size("bytes"), use.Size("peak")});
  });
  if (fields.Has("verdict")) {
    snapshot.verdict = ReadVerdict(fields.Object("verdict"));
  }
  // What the ratios of AllocatorStatistics rest on.
  if (snapshot.allocator.live_bytes < snapshot.allocator.requested_bytes ||
      snapshot.allocator.mapped_bytes < snapshot.allocator.live_bytes) {
    fields.Fail("allocator",
                "has more requested than live, or live than mapped");
  }
  if (!error.ok()) return error;
  return snapshot;
}

}  // namespace quire
