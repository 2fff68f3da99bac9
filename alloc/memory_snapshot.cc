#include "quire/alloc/memory_snapshot.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "alloc/memory_snapshot_data.h"
#include "alloc/snapshot_timeline.h"
#include "quire/alloc/allocation_sampler.h"

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

// What each owner holds; owners that hold nothing are left out.
std::map<uint32_t, Holding> CollectHoldings(
    const std::vector<Bytes>& live,
    const std::vector<MemorySnapshot::Page>& pages,
    const std::vector<AllocationInfo>& allocations) {
  std::map<uint32_t, Holding> holdings;
  for (const MemorySnapshot::Page& page : pages) {
    if (page.managed) holdings[page.owner].allocates = true;
  }
  for (uint32_t id = 0; id < live.size(); ++id) {
    if (!live[id].zero()) holdings[id].pages = live[id].value();
  }
  for (const AllocationInfo& allocation : allocations) {
    Holding& holding = holdings[allocation.owner.value()];
    holding.allocates = true;
    holding.requested =
        SaturatingAdd(holding.requested, allocation.requested.value());
  }
  return holdings;
}

std::vector<MemorySnapshot::Owner> CollectOwners(
    const OwnerRegistry& names, const std::map<uint32_t, Holding>& holdings,
    const std::vector<AllocationInfo>& allocations, const Timeline& timeline) {
  std::map<uint32_t, MemorySnapshot::Owner> owners;
  // Registered owners are listed though they hold nothing: their rows are what
  // a reader looks for.
  const size_t registered = names.Names().size();
  for (uint32_t id = 0; id < registered; ++id) owners[id];
  for (const auto& [id, holding] : holdings) {
    owners[id].live = Bytes(holding.pages);
    owners[id].requested = Bytes(holding.requested);
  }
  for (const AllocationInfo& allocation : allocations) {
    ++owners[allocation.owner.value()].allocations;
  }
  std::vector<MemorySnapshot::Owner> result;
  for (auto& [id, owner] : owners) {
    owner.id = id;
    owner.name = names.Name(OwnerId(id));
    // The one owner that always exists is left out where nothing tells of it.
    if (id == kUnnamedOwner.value() && !holdings.contains(id) &&
        !timeline.owners.contains(id)) {
      continue;
    }
    result.push_back(std::move(owner));
  }
  return result;
}

// Of the device and of each owner by itself.
std::vector<MemorySnapshot::Growth> CollectGrowth(const Timeline& timeline) {
  std::vector<MemorySnapshot::Growth> growth;
  if (const auto found =
          FindMemoryGrowth(timeline.nanoseconds, timeline.live,
                           timeline.requested, timeline.cooling)) {
    growth.push_back({std::nullopt, *found});
  }
  for (const auto& [id, owner] : timeline.owners) {
    if (const auto found = FindMemoryGrowth(timeline.nanoseconds, owner.live,
                                            owner.requested, owner.cooling)) {
      growth.push_back({id, *found});
    }
  }
  return growth;
}

// Each caller is looked up once, however many allocations it made.
void CollectSamples(const AllocationSampler& sampler,
                    MemorySnapshot* snapshot) {
  std::map<const void*, uint64_t> known;
  for (const AllocationSampler::Sample& sample : sampler.Live()) {
    MemorySnapshot::Sample& added = snapshot->samples.emplace_back();
    added.address = sample.address.value();
    added.size = sample.size;
    added.estimated = sample.EstimatedBytes();
    for (const void* const caller : sample.callers) {
      const auto [frame, is_new] =
          known.try_emplace(caller, snapshot->frames.size());
      if (is_new) snapshot->frames.push_back(DescribeCaller(caller));
      added.callers.push_back(frame->second);
    }
  }
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
  snapshot.breakdown = allocator->CalculateStatistics();
  snapshot.largest_possible = allocator->GetLargestPossible();
  snapshot.allocations = allocator->CalculateLiveAllocations();
  std::sort(snapshot.allocations.begin(), snapshot.allocations.end(),
            [](const AllocationInfo& a, const AllocationInfo& b) {
              return a.address < b.address;
            });
  if (allocator->sampler() != nullptr) {
    CollectSamples(*allocator->sampler(), &snapshot);
  }
  for (const DeviceMemory::PageMapEntry& page : memory->CalculatePageMap()) {
    snapshot.pages.push_back({page.address.value(), page.page.value(),
                              page.owner.value(), page.cooling,
                              allocator->Manages(page.address)});
  }
  const std::map<uint32_t, Holding> holdings = CollectHoldings(
      memory->GetLiveByOwner(), snapshot.pages, snapshot.allocations);
  snapshot.events = EventsOf(*memory, *runtime.trace());
  snapshot.timeline = BuildTimeline(snapshot.events, runtime.trace()->dropped(),
                                    holdings, options.timeline_points);
  snapshot.growth = CollectGrowth(snapshot.timeline);
  if (snapshot.events.size() > options.events) {
    snapshot.events.erase(
        snapshot.events.begin(),
        snapshot.events.end() - static_cast<std::ptrdiff_t>(options.events));
  }
  snapshot.owners = CollectOwners(*runtime.owners(), holdings,
                                  snapshot.allocations, snapshot.timeline);
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
  auto parsed = MemorySnapshotFromJson(snapshot);
  if (!parsed.ok()) return parsed.status();
  // The page draws none of these, and they are most of the bytes.
  parsed->events.clear();
  parsed->allocations.clear();
  parsed->samples.clear();
  parsed->frames.clear();
  // Only what was understood goes into the page, and as ASCII.
  return RenderHtml(*parsed,
                    ToJson(*parsed).dump(/*indent=*/-1, /*indent_char=*/' ',
                                         /*ensure_ascii=*/true));
}

absl::StatusOr<std::string> RenderPyTorchSnapshot(
    const nlohmann::json& snapshot) {
  const auto parsed = MemorySnapshotFromJson(snapshot);
  if (!parsed.ok()) return parsed.status();
  return RenderPyTorch(*parsed);
}

}  // namespace quire
