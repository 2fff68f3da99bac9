#include "alloc/retirement_queue.h"

#include <algorithm>
#include <iterator>

namespace quire {

CoolingBatch& RetirementQueue::BatchOf(const Fence& fence) {
  // Slots that go one after another under one fence share a batch, so that
  // giving up many pieces costs one query.
  const auto [entry, is_new] = by_fence_.try_emplace(fence, batches_.end());
  if (is_new) {
    entry->second = batches_.emplace(batches_.end());
    entry->second->fence = fence;
  }
  return *entry->second;
}

void RetirementQueue::Retire(ManagedRange* range, uint64_t first,
                             uint64_t count, const Fence& fence) {
  CoolingBatch& batch = BatchOf(fence);
  batch.runs.push_back({range->shared_from_this(), first, count});
  batch.cooling += count;
  for (uint64_t i = first; i < first + count; ++i) {
    range->slots[i].batch = &batch;
  }
}

void RetirementQueue::RetireForRetry(ManagedRange* range, uint64_t first,
                                     uint64_t count) {
  Retire(range, first, count, Fence());
  BatchOf(Fence()).stuck = true;
}

void RetirementQueue::Remove(PageSlot* slot) {
  CoolingBatch* const batch = slot->batch;
  slot->batch = nullptr;
  if (--batch->cooling > 0) return;
  const auto entry = by_fence_.find(batch->fence);
  const Batches::iterator emptied = entry->second;
  by_fence_.erase(entry);
  batches_.erase(emptied);
}

std::vector<SlotRun> RetirementQueue::TakeCompleted(size_t at_most) {
  std::vector<SlotRun> runs;
  size_t left = std::min(at_most, batches_.size());
  for (auto batch = batches_.begin(); left > 0; --left) {
    const absl::StatusOr<bool> complete = batch->fence.IsComplete();
    batch->stuck = !complete.ok();
    if (complete.ok() && *complete) {
      batch = TakeOut(batch, &runs);
    } else {
      // To the back, so that a bounded look sees the others next time.
      const auto next = std::next(batch);
      batches_.splice(batches_.end(), batches_, batch);
      batch = next;
    }
  }
  return runs;
}

std::vector<SlotRun> RetirementQueue::WaitAndTakeAll() {
  std::vector<SlotRun> runs;
  for (auto batch = batches_.begin(); batch != batches_.end();) {
    // Where the driver cannot wait, the device is lost or about to be: there is
    // nothing better to do than to go on.
    (void)batch->fence.Wait();
    batch = TakeOut(batch, &runs);
  }
  return runs;
}

bool RetirementQueue::CanComplete() const {
  return std::any_of(batches_.begin(), batches_.end(),
                     [](const CoolingBatch& batch) { return !batch.stuck; });
}

uint64_t RetirementQueue::CalculateCooling() const {
  uint64_t cooling = 0;
  for (const CoolingBatch& batch : batches_) cooling += batch.cooling;
  return cooling;
}

std::map<StreamId, uint64_t> RetirementQueue::CalculateCoolingByStream() const {
  std::map<StreamId, uint64_t> slots;
  for (const CoolingBatch& batch : batches_) {
    for (const StreamId stream : batch.fence.streams()) {
      slots[stream] += batch.cooling;
    }
  }
  return slots;
}

RetirementQueue::Batches::iterator RetirementQueue::TakeOut(
    Batches::iterator batch, std::vector<SlotRun>* runs) {
  for (const SlotRun& run : batch->runs) {
    run.range->ForEachRun(
        run.first, run.count,
        [&](const PageSlot& slot) { return slot.batch == &*batch; },
        [&](uint64_t first, uint64_t count) {
          runs->push_back({run.range, first, count});
          for (uint64_t i = first; i < first + count; ++i) {
            run.range->slots[i].batch = nullptr;
          }
        });
  }
  by_fence_.erase(batch->fence);
  return batches_.erase(batch);
}

}  // namespace quire
