// A picture of a device's memory as JSON, and what to read from it.
//
// The fields are described one by one in docs/memory_snapshot.md. A snapshot is
// taken piece by piece under the locks of what it describes, so figures of a
// running program may be a few operations apart; those of a quiet one agree.

#ifndef QUIRE_ALLOC_MEMORY_SNAPSHOT_H_
#define QUIRE_ALLOC_MEMORY_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"

namespace quire {

// Host memory that serves the device: a staging ring, pinned swap space.
struct HostMemoryUse {
  std::string name;
  Bytes bytes;  // now
  Bytes peak;
};

struct MemorySnapshotOptions {
  DeviceId device;
  // The timeline keeps about so many points, whatever was recorded; no peak of
  // the total is lost. REQUIRES: at least 6.
  size_t timeline_points = 1000;
  // Events of the trace that are kept one by one, the last ones: for replay and
  // for PyTorch's viewers.
  size_t events = SIZE_MAX;
  // What the caller knows and the runtime does not.
  std::vector<HostMemoryUse> host_memory;
  // The failure that the snapshot is about.
  std::optional<OutOfMemoryVerdict> verdict;
};

// REQUIRES: options.device < runtime.device_count(). O(pages + allocations).
nlohmann::json BuildMemorySnapshot(Runtime& runtime,
                                   const MemorySnapshotOptions& options = {});

// OK where the functions below can read `snapshot`; else kInvalidArgument, with
// the field at fault. Snapshots are files: nothing in them is trusted.
absl::Status CheckMemorySnapshot(const nlohmann::json& snapshot);

// The report for a terminal: who holds what, what is mapped, cached and free,
// fragmentation and driver calls, in aligned columns. Where the snapshot cannot
// be read, the line that says why.
std::string FormatMemoryReport(const nlohmann::json& snapshot);

// One HTML page that needs nothing else, not even a network: page map, timeline
// and tables, in light and dark, usable by keyboard and screen reader.
absl::StatusOr<std::string> RenderMemoryHtml(const nlohmann::json& snapshot);

// The snapshot as PyTorch's torch.cuda.memory._dump_snapshot would write it, a
// pickle: for torch/cuda/_memory_viz.py and the viewer at
// pytorch.org/memory_viz. docs/memory_snapshot.md says what becomes of what.
absl::StatusOr<std::string> RenderPyTorchSnapshot(
    const nlohmann::json& snapshot);

}  // namespace quire

#endif  // QUIRE_ALLOC_MEMORY_SNAPSHOT_H_
