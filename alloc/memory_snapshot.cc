#include "quire/alloc/memory_snapshot.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "alloc/memory_snapshot_data.h"
#include "alloc/snapshot_timeline.h"

namespace quire {
namespace {

// The events that concern `memory`; marks, which concern every device; and
// requests that failed without an address, which may.
std::vector<TraceEvent> EventsOf(const DeviceMemory& memory,
                                 const EventTrace& trace) {
  std::vector<TraceEvent> kept;
  for (TraceEvent& event : trace.Events()) {
    const bool failure = event.action == TraceAction::kOutOfMemory;
    const bool of_a_request = failure && event.address.null();
    if (event.action != TraceAction::kMark && !of_a_request &&
        !memory.Contains(event.address)) {
      continue;
    }
    // The commit that failed under a request is the same failure.
    if (of_a_request && !kept.empty() &&
        kept.back().action == TraceAction::kOutOfMemory &&
        !kept.back().address.null() && kept.back().owner == event.owner) {
      kept.pop_back();
    }
    kept.push_back(std::move(event));
  }
  return kept;
}

std::vector<MemorySnapshot::Owner> CollectOwners(
    const OwnerRegistry& names, const std::vector<Bytes>& live,
    const std::vector<AllocationInfo>& allocations, const Timeline& timeline) {
  std::map<uint32_t, MemorySnapshot::Owner> owners;
  const auto owner_of = [&](uint32_t id) -> MemorySnapshot::Owner& {
    MemorySnapshot::Owner& owner = owners[id];
    owner.id = id;
    return owner;
  };
  // Registered owners are listed though they hold nothing: their rows are what
  // a reader looks for.
  const size_t registered = names.Names().size();
  for (uint32_t id = 0; id < registered; ++id) owner_of(id);
  for (uint32_t id = 0; id < live.size(); ++id) {
    if (!live[id].zero()) owner_of(id).live = live[id];
  }
  for (const AllocationInfo& allocation : allocations) {
    MemorySnapshot::Owner& owner = owner_of(allocation.owner.value());
    owner.requested = CheckedAdd(owner.requested, allocation.requested)
                          .value_or(Bytes(UINT64_MAX));
    ++owner.allocations;
  }
  std::vector<MemorySnapshot::Owner> result;
  for (auto& [id, owner] : owners) {
    owner.name = names.Name(OwnerId(id));
    // The one owner that always exists is left out where nothing tells of it.
    if (id == kUnnamedOwner.value() && owner.live.zero() &&
        owner.allocations == 0 && timeline.live_by_owner.count(id) == 0) {
      continue;
    }
    result.push_back(std::move(owner));
  }
  return result;
}

MemorySnapshot::Device DescribeDevice(Driver* driver, DeviceId id) {
  MemorySnapshot::Device device;
  device.id = static_cast<uint64_t>(id.value());
  device.driver = driver->name();
  // A device that does not answer is still worth a snapshot of what is known.
  if (const auto info = driver->GetDeviceInfo(id); info.ok()) {
    device.name = info->name;
    device.total = info->total_memory;
  }
  if (const auto now = driver->GetMemoryInfo(id); now.ok()) {
    device.free = now->free;
  }
  return device;
}

}  // namespace

nlohmann::json BuildMemorySnapshot(Runtime& runtime,
                                   const MemorySnapshotOptions& options) {
  DeviceMemory* const memory = runtime.memory(options.device);
  DeviceAllocator* const allocator = runtime.allocator(options.device);
  MemorySnapshot snapshot;
  snapshot.device = DescribeDevice(runtime.driver(), options.device);
  snapshot.memory = memory->GetStatistics();
  const absl::Status health = memory->Health();
  snapshot.health = health.ok() ? "OK" : std::string(health.message());
  snapshot.allocator = allocator->GetStatistics();
  snapshot.largest_possible = allocator->GetLargestPossible();
  const std::vector<Bytes> live = memory->GetLiveByOwner();
  snapshot.timeline =
      BuildTimeline(EventsOf(*memory, *runtime.trace()),
                    runtime.trace()->dropped(), live, options.timeline_points);
  snapshot.owners =
      CollectOwners(*runtime.owners(), live,
                    allocator->CalculateLiveAllocations(), snapshot.timeline);
  for (const DeviceMemory::PageMapEntry& page : memory->CalculatePageMap()) {
    snapshot.pages.push_back(
        {page.address.value(), page.owner.value(), page.cooling});
  }
  for (const auto& call : runtime.driver()->GetCallStatistics().calls) {
    if (call.count == 0 && call.failed == 0) continue;
    snapshot.driver_calls.push_back(
        {call.name, call.count, call.failed,
         static_cast<double>(call.nanoseconds) / 1000});
  }
  snapshot.host_memory = options.host_memory;
  snapshot.verdict = options.verdict;
  return ToJson(snapshot);
}

absl::Status CheckMemorySnapshot(const nlohmann::json& snapshot) {
  return MemorySnapshotFromJson(snapshot).status();
}

std::string FormatMemoryReport(const nlohmann::json& snapshot) {
  const auto parsed = MemorySnapshotFromJson(snapshot);
  if (!parsed.ok()) {
    return absl::StrCat("not a memory snapshot: ", parsed.status().message(),
                        "\n");
  }
  return FormatReport(*parsed);
}

absl::StatusOr<std::string> RenderMemoryHtml(const nlohmann::json& snapshot) {
  const auto parsed = MemorySnapshotFromJson(snapshot);
  if (!parsed.ok()) return parsed.status();
  // Only what was understood goes into the page, and as ASCII: text that is not
  // UTF-8 is replaced.
  return RenderHtml(*parsed, ToJson(*parsed).dump(
                                 /*indent=*/-1, /*indent_char=*/' ',
                                 /*ensure_ascii=*/true,
                                 nlohmann::json::error_handler_t::replace));
}

}  // namespace quire
