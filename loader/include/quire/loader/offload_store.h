// Weights that are kept in host memory or on disk, and run from device memory.
//
// A unit is what comes and goes as a whole: a layer. Each has addresses of its
// own on the device, so that whoever runs it never changes a pointer; under
// the addresses of all units lie the pages of a few slots, one unit's worth
// each, mapped once and shared: unit k uses slot k % slots. In a steady state
// there is no driver call but copies, waits and events.
//
// A pass uses units in the order of a schedule. As soon as the device is done
// with a unit, the next one that needs its slot is on its way, on a stream of
// its own: with two slots, one unit is computed with while the next one comes.
// That a unit is there when it is needed is a hit, and counted.
//
// Where a unit is kept:
//   host   in memory of the host; what is copied to the device is pinned where
//          it is when that happens first, up to a budget
//   disk   in the files of the checkpoint, where the unit holds nothing but
//          unchanged tensors and small tables; or in a file of a folder that is
//          given for it, which has no name and goes with the process. Read
//          through a few pinned buffers.
//
// Life: Begin, Allocate... and Finish for each unit, one after the other; then
// SetSchedule; then passes of Acquire and Release. Not thread-safe. Errors at
// any call leave a store that can be destroyed, with nothing left behind.

#ifndef QUIRE_LOADER_OFFLOAD_STORE_H_
#define QUIRE_LOADER_OFFLOAD_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/device_map.h"
#include "quire/loader/streaming_loader.h"

namespace quire {

// Of a unit on disk, what the checkpoint's files do not hold and memory of the
// host does: more than group indexes take, and less than is worth a file.
inline constexpr Bytes kMaxDiskPatch = MiB(1);

struct OffloadOptions {
  uint32_t slots = 2;  // at least one
  // Of host memory, in whole pages; what exceeds it, or what the system does
  // not let be pinned, is copied all the same.
  Bytes pinned_limit = Bytes(UINT64_MAX);
  // For what the checkpoint's own files do not hold as it runs; empty: such
  // units cannot be on disk.
  std::string folder;
  // Of reads from disk: buffers * buffer_size <= kMaxStagingBytes.
  int buffers = 4;
  Bytes buffer_size = MiB(4);
};

struct OffloadStatistics {
  uint64_t acquired = 0;
  uint64_t hits = 0;         // of these, were there already
  double stall_seconds = 0;  // that the others were waited for
  Bytes streamed;            // to the device so far
  Bytes device;              // pages of the slots
  Bytes host;                // weights in host memory
  Bytes pinned;              // of it, and of buffers
  Bytes disk;                // weights on disk

  double hit_rate() const {
    return acquired == 0
               ? 1
               : static_cast<double>(hits) / static_cast<double>(acquired);
  }
};

class OffloadStore {
 public:
  // `memory` is of the device that the units run on, and must outlive the
  // store; pages are accounted to `owner`.
  static absl::StatusOr<std::unique_ptr<OffloadStore>> Create(
      DeviceMemory* memory, OwnerId owner, const OffloadOptions& options);
  // REQUIRES: no stream uses a unit any more.
  ~OffloadStore();

  // ---- Filling ----
  // Begins a unit, of at most `max_size` bytes, and returns its number. What
  // other units had in the slot is lost: finish them first.
  absl::StatusOr<size_t> Begin(std::string name, MemoryTier tier,
                               Bytes max_size);
  // Memory in the unit that was begun last, aligned as an allocator's.
  absl::StatusOr<DeviceAddress> Allocate(Bytes size);
  // The unit is as it is to run: keeps it. `tensors` are those of its parts
  // that came from `checkpoint`, with the checksums of a load, for units on
  // disk; the checkpoint must outlive the store.
  absl::Status Finish(
      const Checkpoint& checkpoint, std::span<const TensorPlacement> tensors,
      const std::unordered_map<std::string, uint32_t>& checksums);
  // The units of a pass, in order; one may occur more than once. What no pass
  // has gives back its addresses and its pages of the slot, for good. May be
  // called again, also before further units.
  void SetSchedule(std::vector<size_t> visits);

  // Where the first allocation of a unit lies.
  DeviceAddress address(size_t unit) const;
  // Where a byte of a unit on the host is kept: for what reads little of it.
  // REQUIRES: the unit is finished, and its tier is the host.
  const void* HostPointer(size_t unit, DeviceAddress address) const;
  // Reads bytes of a unit on disk from where it is kept, for what reads little
  // of it; no stream has a part in that. `from` lies in one tensor of it.
  // REQUIRES: the unit is finished, and its tier is the disk. Thread-safe.
  // Errors: kDataLoss where the file has become shorter; the system's.
  absl::Status ReadFromDisk(size_t unit, DeviceAddress from,
                            std::span<std::byte> out) const;

  // ---- Running ----
  // What is queued on `stream` from here on finds the unit of the visit in
  // place. REQUIRES: visits come in the order of the schedule, over and over,
  // each released before the next one that needs its slot is acquired.
  absl::Status Acquire(size_t visit, StreamId stream);
  // What was queued on `stream` so far is all that uses the unit.
  absl::Status Release(size_t visit, StreamId stream);
  // To be asked when a pass has ended, well or not, and its streams are
  // synchronised; or within one that goes well, about the units acquired so
  // far: the error of a read that failed meanwhile, for this pass or
  // ahead for the next one, after which what was computed is void and units are
  // fetched anew. `completed` says whether every call of the pass has
  // succeeded.
  absl::Status EndPass(bool completed);

  OffloadStatistics GetStatistics() const;

 private:
  class Impl;
  explicit OffloadStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_OFFLOAD_STORE_H_
