// What was freed on one stream and may still be in use by work queued there.
//
// Slots of slabs stand here one by one, and what large allocations had as runs
// of bytes at home in the arena.
//
// The stream itself may have any of it back at once, most recent first. For
// everybody else it becomes free in batches: frees gather in the open batch
// until a fence is recorded, which closes it; when the fence completes, what is
// left of the batch is free. On one stream fences complete in order, so a batch
// that is complete completes all before it. Lists of different streams know
// nothing of each other: a stream that runs for long holds up its own frees
// only.
//
// Invariants:
//   - slots of a class are in order of their batch;
//   - every batch but the last is closed, and batches_[b].entries entries and
//     runs name the batch first_batch_ + b;
//   - the first batch, unless it is the open one, has entries.
//
// Push and Pop are O(1) and make no driver call; those for runs are O(log
// runs). Not thread-safe.

#ifndef QUIRE_ALLOC_STREAM_FREE_LIST_H_
#define QUIRE_ALLOC_STREAM_FREE_LIST_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/cooling_slots.h"
#include "alloc/piece.h"
#include "alloc/run_set.h"
#include "alloc/span.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/units.h"

namespace quire {

// A fence over the work of those streams that still exist: destroying a stream
// waits for its work, so nothing is left to wait for on one that is gone.
absl::StatusOr<Fence> RecordOnLiveStreams(Driver* driver, DeviceId device,
                                          std::span<const StreamId> streams);

class StreamFreeList {
 public:
  enum class Progress {
    kIdle,     // no closed batch is left
    kWaiting,  // the stream has not come to the first fence yet
    kFailed,   // the driver cannot tell whether it has
  };

  StreamFreeList(Driver* driver, DeviceId device, StreamId stream,
                 int size_classes);

  StreamId stream() const { return stream_; }
  bool empty() const { return batches_.size() == 1 && open().entries == 0; }
  // Whether it holds a slot of class `least` or a larger one.
  bool HoldsSlots(int least) const;
  // Bytes freed since the last fence was recorded, and still here.
  uint64_t open_bytes() const { return open().bytes; }

  // Bytes that are here. O(batches).
  uint64_t bytes() const;
  // Of the host, that say which slots are here.
  uint64_t metadata_bytes() const { return slots_ * CoolingSlots::kSlotBytes; }

  // Enters a cooling slot into the open batch.
  void Push(Block slot);
  // The most recently freed slot of the class leaves the list, for its stream.
  std::optional<Block> PopSlot(int size_class);
  // Enters bytes into the open batch. What touches them joins it.
  void PushRun(const Piece& piece);
  // The bytes leave the list. REQUIRES: one run has them all.
  void TakeRun(const Piece& piece);
  const RunSet& runs() const { return runs_; }
  // What lay there, for the trace: until the bytes are taken, or free.
  struct FreedBlock {
    Piece piece;
    DeviceAddress address;
    Bytes requested;
  };
  void Note(const FreedBlock& block);

  // Records a fence for the open batch, if anything is in it. An error of the
  // driver leaves it open.
  absl::Status CloseBatch();
  // The same with a fence of the caller's.
  void CloseBatchWith(Fence fence);
  // While the stream is captured into a graph, an event that is recorded on it
  // says nothing about its work: CloseBatch is kFailedPrecondition.
  void set_captured(bool captured) { captured_ = captured; }
  bool captured() const { return captured_; }
  // Takes out what is free by now, without blocking.
  struct Freed {
    std::vector<Block> slots;
    std::vector<ByteRun> runs;
    std::vector<FreedBlock> blocks;  // of those that were noted
  };
  Freed Poll();
  // How the last Poll ended.
  Progress progress() const { return progress_; }

  // For giving memory away while it cools. The fence under which the run, or
  // the newest of the slab's slots here, becomes free; nullopt where the driver
  // would record none. REQUIRES: it is here.
  std::optional<Fence> FenceOf(const ByteRun& run) {
    return FenceOf(run.batch);
  }
  std::optional<Fence> FenceOf(const Span* slab);
  // Takes the slab's slots out; returns how many. O(slots listed in its class).
  uint64_t RemoveSlab(const Span* span);

  // How many slots of the slab are here. O(slots listed in its class).
  uint64_t CountSlots(const Span* span) const;

  absl::Status CheckInvariants() const;
  // Adds one for each slot here to the count of its span.
  void CountBySpan(std::map<const Span*, uint64_t>* counts) const;

 private:
  struct Batch {
    Fence fence;
    bool closed = false;
    uint64_t entries = 0;
    uint64_t bytes = 0;  // of these entries
  };
  const Batch& open() const { return batches_.back(); }
  Batch& batch(uint64_t number) { return batches_[number - first_batch_]; }
  uint64_t open_number() const { return first_batch_ + batches_.size() - 1; }
  std::optional<Fence> FenceOf(uint64_t batch_number);
  void Leave(uint64_t number, uint64_t bytes);
  void DropEmptyBatches();

  Driver* const driver_;
  const DeviceId device_;
  const StreamId stream_;
  bool captured_ = false;
  std::deque<Batch> batches_;
  uint64_t first_batch_ = 0;
  // By size class; null where none was freed yet.
  std::vector<std::unique_ptr<CoolingSlots>> classes_;
  uint64_t slots_ = 0;  // in all of them
  RunSet runs_;
  absl::btree_map<uint64_t, FreedBlock> noted_;  // by the address at home
  Progress progress_ = Progress::kIdle;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_STREAM_FREE_LIST_H_
