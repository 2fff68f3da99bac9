// Slots that wait for a fence: freed, but perhaps still used by the device.
//
// Slots that were decommitted under one fence form a batch. Completed batches
// are taken out wherever they stand: one that takes long holds up no other.
// A slot that is wanted again before its batch completes leaves it.
//
// Invariant: a batch's `cooling` is the number of slots that point to it, and
// is above 0 while the batch is in the queue. Retire is O(slots), Remove O(1),
// TakeCompleted O(batches looked at + slots in completed ones).
//
// Not thread-safe.

#ifndef QUIRE_ALLOC_RETIREMENT_QUEUE_H_
#define QUIRE_ALLOC_RETIREMENT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "alloc/managed_range.h"
#include "quire/alloc/fence.h"

namespace quire {

struct SlotRun {
  std::shared_ptr<ManagedRange> range;
  uint64_t first;
  uint64_t count;
};

struct CoolingBatch {
  Fence fence;
  std::vector<SlotRun> runs;  // as retired; some slots may have left since
  uint64_t cooling = 0;
  // The driver could not tell whether the fence is complete, or could not unmap
  // what had cooled. Tried again each time, but nobody waits for it.
  bool stuck = false;
};

class RetirementQueue {
 public:
  // Holds back the slots [first, first + count), all kCooling and in no batch,
  // until `fence` has completed.
  void Retire(ManagedRange* range, uint64_t first, uint64_t count,
              const Fence& fence);
  // The same for slots that no fence holds back, but that could not be
  // unmapped: they are taken out next time, and nobody waits for them.
  void RetireForRetry(ManagedRange* range, uint64_t first, uint64_t count);
  // Lets a slot go that is wanted again. It is kCooling without a batch.
  void Remove(PageSlot* slot);
  // Takes out the batches that have completed, looking at `at_most` of them,
  // those not looked at for longest first. The runs returned have left the
  // queue: their slots have no batch, are still kCooling and still mapped.
  std::vector<SlotRun> TakeCompleted(size_t at_most);
  // Takes out everything, having waited for each fence.
  std::vector<SlotRun> WaitAndTakeAll();

  // True where some batch may still complete: a wait for it can end.
  bool CanComplete() const;
  size_t batch_count() const { return batches_.size(); }
  // Slots in all batches. O(batches): for checks.
  uint64_t CalculateCooling() const;
  // Slots by the streams that their fences were recorded on. O(batches).
  std::map<StreamId, uint64_t> CalculateCoolingByStream() const;

 private:
  using Batches = std::list<CoolingBatch>;
  CoolingBatch& BatchOf(const Fence& fence);
  // Appends the runs of `batch` that are left and erases it.
  Batches::iterator TakeOut(Batches::iterator batch,
                            std::vector<SlotRun>* runs);

  Batches batches_;
  absl::flat_hash_map<Fence, Batches::iterator> by_fence_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_RETIREMENT_QUEUE_H_
