// The JSON of a memory snapshot, both ways. docs/memory_snapshot.md describes
// the fields.

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "alloc/memory_snapshot_data.h"

namespace quire {
namespace {

using Json = nlohmann::json;

// Statistics are written by name, whatever the type of the field.
uint64_t ToNumber(Bytes bytes) { return bytes.value(); }
uint64_t ToNumber(uint64_t number) { return number; }
void FromNumber(uint64_t number, Bytes* bytes) { *bytes = Bytes(number); }
void FromNumber(uint64_t number, uint64_t* value) { *value = number; }

// Addresses are text: readers that know only floating point would round them.
std::string AddressText(uint64_t address) {
  return absl::StrCat("0x", absl::Hex(address));
}

// ---- Reading ----------------------------------------------------------------

// Reads fields of an object. The first that is not as it should be is kept as
// the error, and what is read after it is zero: one check at the end suffices.
class Fields {
 public:
  Fields(const Json* object, std::string path, absl::Status* error)
      : object_(object), path_(std::move(path)), error_(error) {
    if (!object_->is_object()) Fail("", "is not an object");
  }

  uint64_t Number(const char* key) const {
    const Json* const value = Find(key);
    if (value == nullptr) return 0;
    if (value->is_number_unsigned()) return value->get<uint64_t>();
    Fail(key, "is not a non-negative integer");
    return 0;
  }
  // A number that is neither negative nor infinite.
  double Real(const char* key) const {
    const Json* const value = Find(key);
    if (value == nullptr) return 0;
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number >= 0 && std::isfinite(number)) return number;
    Fail(key, "is not a non-negative number");
    return 0;
  }
  Bytes Size(const char* key) const { return Bytes(Number(key)); }
  uint32_t OwnerNumber(const char* key) const {
    const uint64_t number = Number(key);
    if (number > UINT32_MAX) Fail(key, "is not an owner's id");
    return static_cast<uint32_t>(number);
  }
  uint64_t Address(const char* key) const {
    const std::string text = Text(key);
    uint64_t address = 0;
    if (!absl::SimpleHexAtoi(text, &address)) {
      Fail(key, "is not a hexadecimal address");
    }
    return address;
  }
  std::string Text(const char* key) const {
    const Json* const value = Find(key);
    if (value == nullptr) return std::string();
    if (value->is_string()) return value->get<std::string>();
    Fail(key, "is not text");
    return std::string();
  }
  bool Has(const char* key) const {
    if (!object_->is_object()) return false;
    const auto found = object_->find(key);
    return found != object_->end() && !found->is_null();
  }
  Fields Object(const char* key) const {
    const Json* const value = Find(key);
    return Fields(value != nullptr ? value : &Nothing(), Path(key), error_);
  }
  // Calls `function(Fields)` for each object in the array.
  template <typename Function>
  void ForEach(const char* key, Function function) const {
    ForEachValue(key, [&](const Json& value, const std::string& path) {
      function(Fields(&value, path, error_));
    });
  }
  std::vector<uint64_t> Numbers(const char* key) const {
    std::vector<uint64_t> numbers;
    ForEachValue(key, [&](const Json& value, const std::string& path) {
      if (value.is_number_unsigned()) {
        numbers.push_back(value.get<uint64_t>());
      } else if (error_->ok()) {
        *error_ = absl::InvalidArgumentError(
            absl::StrCat(path, " is not a non-negative integer"));
      }
    });
    return numbers;
  }
  void Fail(const char* key, const char* what) const {
    if (!error_->ok()) return;
    *error_ = absl::InvalidArgumentError(absl::StrCat(Path(key), " ", what));
  }

 private:
  static const Json& Nothing() {
    static const Json& nothing = *new Json(Json::object());
    return nothing;
  }
  std::string Path(const char* key) const {
    if (*key == '\0') return path_.empty() ? "the snapshot" : path_;
    return path_.empty() ? key : absl::StrCat(path_, ".", key);
  }
  const Json* Find(const char* key) const {
    if (!object_->is_object()) return nullptr;
    const auto found = object_->find(key);
    if (found != object_->end()) return &*found;
    Fail(key, "is missing");
    return nullptr;
  }
  template <typename Function>
  void ForEachValue(const char* key, Function function) const {
    const Json* const array = Find(key);
    if (array == nullptr) return;
    if (!array->is_array()) return Fail(key, "is not an array");
    for (size_t i = 0; i < array->size() && error_->ok(); ++i) {
      function((*array)[i], absl::StrCat(Path(key), "[", i, "]"));
    }
  }

  const Json* const object_;
  const std::string path_;
  absl::Status* const error_;
};

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

void ReadStatistics(const Fields& fields, DeviceMemoryStatistics* statistics) {
#define QUIRE_READ_STATISTIC(type, name, help) \
  FromNumber(fields.Number(#name), &statistics->name);
  QUIRE_DEVICE_MEMORY_STATISTICS(QUIRE_READ_STATISTIC)
#undef QUIRE_READ_STATISTIC
}

void ReadStatistics(const Fields& fields, AllocatorStatistics* statistics) {
#define QUIRE_READ_STATISTIC(name, help) \
  FromNumber(fields.Number(#name), &statistics->name);
  QUIRE_ALLOCATOR_STATISTICS(QUIRE_READ_STATISTIC)
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

Json TimelineToJson(const Timeline& timeline) {
  Json owners = Json::array();
  for (const auto& [owner, live] : timeline.live_by_owner) {
    owners.push_back({{"owner", owner}, {"live", live}});
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
          {"live", timeline.live},       {"owners", std::move(owners)},
          {"marks", std::move(marks)},   {"failures", std::move(failures)}};
}

void ReadTimeline(const Fields& fields, Timeline* timeline) {
  timeline->dropped = fields.Number("dropped");
  timeline->nanoseconds = fields.Numbers("nanoseconds");
  timeline->live = fields.Numbers("live");
  const size_t points = timeline->nanoseconds.size();
  if (timeline->live.size() != points) {
    fields.Fail("live", "does not have one entry per point");
  }
  fields.ForEach("owners", [&](const Fields& owner) {
    std::vector<uint64_t> live = owner.Numbers("live");
    if (live.size() != points) {
      owner.Fail("live", "does not have one entry per point");
    }
    timeline->live_by_owner[owner.OwnerNumber("owner")] = std::move(live);
  });
  fields.ForEach("marks", [&](const Fields& mark) {
    timeline->marks.push_back({mark.Number("nanoseconds"), mark.Text("label")});
  });
  fields.ForEach("failures", [&](const Fields& failure) {
    timeline->failures.push_back({failure.Number("nanoseconds"),
                                  failure.OwnerNumber("owner"),
                                  failure.Number("requested")});
  });
}

Json VerdictToJson(const OutOfMemoryVerdict& verdict) {
  Json owners = Json::array();
  for (const auto& [name, live] : verdict.owners) {
    owners.push_back({{"name", name}, {"live", live.value()}});
  }
  return {{"kind", ShortageKindName(verdict.kind)},
          {"requested", verdict.requested.value()},
          {"free", verdict.free.value()},
          {"largest_possible", verdict.largest_possible.value()},
          {"limit", verdict.limit.value()},
          {"device_total", verdict.device_total.value()},
          {"cooling", verdict.cooling.value()},
          {"held_as_slack", verdict.held_as_slack.value()},
          {"owners", std::move(owners)},
          {"advice", verdict.advice}};
}

OutOfMemoryVerdict ReadVerdict(const Fields& fields) {
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
  fields.ForEach("owners", [&](const Fields& owner) {
    verdict.owners.emplace_back(owner.Text("name"), owner.Size("live"));
  });
  verdict.advice = fields.Text("advice");
  return verdict;
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
                     {"owner", page.owner},
                     {"state", page.cooling ? "cooling" : "live"}});
  }
  Json& calls = json["driver_calls"] = Json::array();
  for (const MemorySnapshot::Call& call : snapshot.driver_calls) {
    calls.push_back({{"name", call.name},
                     {"count", call.count},
                     {"failed", call.failed},
                     {"microseconds", call.microseconds}});
  }
  json["timeline"] = TimelineToJson(snapshot.timeline);
  Json& host = json["host_memory"] = Json::array();
  for (const HostMemoryUse& use : snapshot.host_memory) {
    host.push_back({{"name", use.name},
                    {"bytes", use.bytes.value()},
                    {"peak", use.peak.value()}});
  }
  json["verdict"] =
      snapshot.verdict ? VerdictToJson(*snapshot.verdict) : Json();
  return json;
}

absl::StatusOr<MemorySnapshot> MemorySnapshotFromJson(const Json& json) {
  absl::Status error;
  MemorySnapshot snapshot;
  const Fields fields(&json, "", &error);
  if (fields.Text("format") != "quire-memory-snapshot") {
    fields.Fail("format", "is not \"quire-memory-snapshot\"");
  }
  if (fields.Number("version") != kMemorySnapshotVersion) {
    fields.Fail("version", "is not one that this program reads");
  }
  const Fields device = fields.Object("device");
  snapshot.device = {device.Number("id"), device.Text("name"),
                     device.Text("driver"), device.Size("total"), std::nullopt};
  if (device.Has("free")) snapshot.device.free = device.Size("free");
  ReadStatistics(fields.Object("memory"), &snapshot.memory);
  snapshot.health = fields.Text("health");
  ReadStatistics(fields.Object("allocator"), &snapshot.allocator);
  snapshot.largest_possible =
      fields.Object("allocator").Size("largest_possible");
  fields.ForEach("owners", [&](const Fields& owner) {
    snapshot.owners.push_back({owner.OwnerNumber("id"), owner.Text("name"),
                               owner.Size("live"), owner.Size("requested"),
                               owner.Number("allocations")});
  });
  fields.ForEach("pages", [&](const Fields& page) {
    const std::string state = page.Text("state");
    if (state != "live" && state != "cooling") {
      page.Fail("state", "is neither \"live\" nor \"cooling\"");
    }
    snapshot.pages.push_back({page.Address("address"),
                              page.OwnerNumber("owner"), state == "cooling"});
  });
  fields.ForEach("driver_calls", [&](const Fields& call) {
    snapshot.driver_calls.push_back({call.Text("name"), call.Number("count"),
                                     call.Number("failed"),
                                     call.Real("microseconds")});
  });
  ReadTimeline(fields.Object("timeline"), &snapshot.timeline);
  fields.ForEach("host_memory", [&](const Fields& use) {
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
