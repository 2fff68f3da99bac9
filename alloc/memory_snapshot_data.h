// A memory snapshot as a plain struct: what is between the runtime, the JSON
// and the reports.

#ifndef QUIRE_ALLOC_MEMORY_SNAPSHOT_DATA_H_
#define QUIRE_ALLOC_MEMORY_SNAPSHOT_DATA_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "alloc/snapshot_timeline.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/allocator_breakdown.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/memory_growth.h"
#include "quire/alloc/memory_snapshot.h"
#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"

namespace quire {

// Of the JSON layout. A reader refuses every other.
inline constexpr uint64_t kMemorySnapshotVersion = 4;

struct MemorySnapshot {
  struct Device {
    uint64_t id = 0;
    std::string name;
    std::string driver;
    Bytes total;
    // Nullopt where the driver did not say.
    std::optional<Bytes> free;
  };
  struct Owner {
    uint32_t id = 0;
    std::string name;
    Bytes live;       // whole pages
    Bytes requested;  // through the allocator
    uint64_t allocations = 0;
  };
  struct Page {
    uint64_t address = 0;
    // Of the physical page: equal where several addresses share one.
    uint64_t page = 0;
    uint32_t owner = 0;
    bool cooling = false;
    // An allocator hands out parts of it; what it has handed out is in
    // `allocations`. Else the owner has all of it.
    bool managed = false;
  };
  struct Call {
    std::string name;
    uint64_t count = 0;
    uint64_t failed = 0;
    double microseconds = 0;
  };

  // An allocation whose callers are known.
  struct Sample {
    uint64_t address = 0;
    Bytes size;
    Bytes estimated;                // that all allocations like it come to
    std::vector<uint64_t> callers;  // innermost first: indices of `frames`
  };
  struct Growth {
    std::optional<uint32_t> owner;  // nullopt: of the device
    MemoryGrowth growth;
  };

  Device device;
  DeviceMemoryStatistics memory;
  // "OK", or what the driver refused.
  std::string health;
  AllocatorStatistics allocator;
  AllocatorBreakdown breakdown;
  Bytes largest_possible;
  std::vector<Owner> owners;                // in order of id
  std::vector<Page> pages;                  // in order of address
  std::vector<AllocationInfo> allocations;  // live; in order of address
  std::vector<Sample> samples;              // of these; in order of address
  std::vector<std::string> frames;          // what their callers are
  std::vector<Call> driver_calls;
  Timeline timeline;
  std::vector<TraceEvent> events;  // in order of time
  std::vector<Growth> growth;
  std::vector<HostMemoryUse> host_memory;
  std::optional<OutOfMemoryVerdict> verdict;
};

nlohmann::json ToJson(const MemorySnapshot& snapshot);
// kInvalidArgument, with the field, for anything that is not as ToJson writes
// it. Fields that are not known are passed over.
absl::StatusOr<MemorySnapshot> MemorySnapshotFromJson(
    const nlohmann::json& json);

std::string FormatReport(const MemorySnapshot& snapshot);
// `json` is the snapshot as text, for the scripts of the page.
std::string RenderHtml(const MemorySnapshot& snapshot, const std::string& json);

// A pickle.
std::string RenderPyTorch(const MemorySnapshot& snapshot);

// One finding as a sentence.
std::string DescribeGrowth(const MemorySnapshot& snapshot,
                           const MemorySnapshot::Growth& growth);

// The name of an owner id, whatever a file says.
std::string OwnerName(const MemorySnapshot& snapshot, uint32_t owner);

}  // namespace quire

#endif  // QUIRE_ALLOC_MEMORY_SNAPSHOT_DATA_H_
