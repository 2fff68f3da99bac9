#include "alloc/stream_free_list.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<Fence> RecordOnLiveStreams(Driver* driver, DeviceId device,
                                          std::span<const StreamId> streams) {
  absl::StatusOr<Fence> all = Fence::Record(driver, device, streams);
  if (!absl::IsNotFound(all.status())) return all;
  std::vector<StreamId> living;
  for (const StreamId stream : streams) {
    const absl::StatusOr<Fence> one =
        Fence::Record(driver, device, std::span(&stream, 1));
    if (absl::IsNotFound(one.status())) continue;
    QUIRE_RETURN_IF_ERROR(one.status());
    living.push_back(stream);
  }
  if (living.empty()) return Fence();
  return Fence::Record(driver, device, living);
}

StreamFreeList::StreamFreeList(Driver* driver, DeviceId device, StreamId stream,
                               int size_classes)
    : driver_(driver),
      device_(device),
      stream_(stream),
      batches_(1),
      classes_(size_classes) {}

uint64_t StreamFreeList::bytes() const {
  uint64_t sum = 0;
  for (const Batch& batch : batches_) sum += batch.bytes;
  return sum;
}

void StreamFreeList::Push(Block slot) {
  Batch& open = batches_.back();
  ++open.entries;
  open.bytes += slot.size();
  auto& slots = classes_[slot.span->size_class];
  if (slots == nullptr) slots = std::make_unique<CoolingSlots>();
  slots->Push({slot, open_number()});
  ++slots_;
}

void StreamFreeList::PushRun(const Piece& piece) {
  ++batches_.back().entries;
  batches_.back().bytes += piece.length;
  runs_.Insert({piece.begin, piece.length, open_number()},
               [this](const ByteRun& joined) {
                 batches_.back().bytes += joined.length;
                 Leave(joined.batch, joined.length);
               });
}

void StreamFreeList::TakeRun(const Piece& piece) {
  const ByteRun run = runs_.Take(piece.begin, piece.length);
  if (run.begin < piece.begin) ++batch(run.batch).entries;
  if (run.end() > piece.end()) ++batch(run.batch).entries;
  Leave(run.batch, piece.length);
  if (noted_.empty()) return;
  auto noted = noted_.upper_bound(piece.begin);
  if (noted != noted_.begin() &&
      std::prev(noted)->second.piece.end() > piece.begin) {
    --noted;
  }
  while (noted != noted_.end() && noted->first < piece.end()) {
    noted = noted_.erase(noted);
  }
}

void StreamFreeList::Note(const FreedBlock& block) {
  noted_[block.piece.begin] = block;
}

void StreamFreeList::Leave(uint64_t number, uint64_t bytes) {
  Batch& left = batch(number);
  left.bytes -= bytes;
  if (--left.entries > 0) return;
  left.fence = Fence();  // its events go back to the driver at once
  DropEmptyBatches();
}

// Without this a stream that stands still while its memory goes round would
// gather a batch for each round.
void StreamFreeList::DropEmptyBatches() {
  while (batches_.size() > 1 && batches_.front().entries == 0) {
    batches_.pop_front();
    ++first_batch_;
  }
  // Nothing names the open batch, so the closed one before it may become it.
  while (batches_.size() > 1 && open().entries == 0 &&
         batches_[batches_.size() - 2].entries == 0) {
    batches_.pop_back();
    batches_.back() = Batch();
  }
}

bool StreamFreeList::HoldsSlots(int least) const {
  return std::any_of(
      classes_.begin() + least, classes_.end(),
      [](const auto& slots) { return slots != nullptr && !slots->empty(); });
}

std::optional<Block> StreamFreeList::PopSlot(int size_class) {
  CoolingSlots* const slots = classes_[size_class].get();
  if (slots == nullptr) return std::nullopt;
  const std::optional<CoolingSlots::Entry> entry = slots->Pop();
  if (!entry) return std::nullopt;
  --slots_;
  Leave(entry->batch, entry->block.size());
  return entry->block;
}

absl::Status StreamFreeList::CloseBatch() {
  if (open().entries == 0) return absl::OkStatus();
  if (captured_) {
    return absl::FailedPreconditionError(
        absl::StrFormat("stream %u is captured into a graph", stream_.value()));
  }
  QUIRE_ASSIGN_OR_RETURN(
      Fence fence,
      RecordOnLiveStreams(driver_, device_, std::span(&stream_, 1)));
  CloseBatchWith(std::move(fence));
  return absl::OkStatus();
}

void StreamFreeList::CloseBatchWith(Fence fence) {
  if (open().entries == 0) return;
  batches_.back().fence = std::move(fence);
  batches_.back().closed = true;
  batches_.emplace_back();
}

StreamFreeList::Freed StreamFreeList::Poll() {
  Freed freed;
  progress_ = Progress::kIdle;
  uint64_t complete_before = first_batch_;
  for (const Batch& batch : batches_) {
    if (!batch.closed) break;
    // An empty batch says nothing; the ones around it do.
    if (batch.entries > 0) {
      const absl::StatusOr<bool> complete = batch.fence.IsComplete();
      if (!complete.ok() || !*complete) {
        progress_ = complete.ok() ? Progress::kWaiting : Progress::kFailed;
        break;
      }
    }
    ++complete_before;
  }
  if (complete_before == first_batch_) return freed;

  for (const auto& slots : classes_) {
    if (slots != nullptr) slots->TakeBefore(complete_before, &freed.slots);
  }
  slots_ -= freed.slots.size();
  for (const auto& [begin, run] : runs_.runs()) {
    if (run.batch < complete_before) freed.runs.push_back(run);
  }
  for (const ByteRun& run : freed.runs) {
    runs_.Take(run.begin, run.length);
    const auto first = noted_.lower_bound(run.begin);
    const auto last = noted_.lower_bound(run.end());
    for (auto noted = first; noted != last; ++noted) {
      freed.blocks.push_back(noted->second);
    }
    noted_.erase(first, last);
  }
  batches_.erase(batches_.begin(),
                 batches_.begin() + static_cast<std::ptrdiff_t>(
                                        complete_before - first_batch_));
  first_batch_ = complete_before;
  DropEmptyBatches();
  return freed;
}

std::optional<Fence> StreamFreeList::FenceOf(uint64_t batch_number) {
  if (!batch(batch_number).closed && !CloseBatch().ok()) return std::nullopt;
  return batch(batch_number).fence;
}

std::optional<Fence> StreamFreeList::FenceOf(const Span* slab) {
  uint64_t newest = 0;
  classes_[slab->size_class]->ForEach([&](const CoolingSlots::Entry& entry) {
    newest = entry.batch;
    return entry.block.span != slab;
  });
  return FenceOf(newest);
}

uint64_t StreamFreeList::RemoveSlab(const Span* span) {
  CoolingSlots* const slots = classes_[span->size_class].get();
  if (slots == nullptr) return 0;
  const std::vector<uint64_t> batches = slots->Remove(span);
  for (const uint64_t number : batches) Leave(number, span->slot_size);
  slots_ -= batches.size();
  return batches.size();
}

uint64_t StreamFreeList::CountSlots(const Span* span) const {
  uint64_t count = 0;
  const CoolingSlots* const slots = classes_[span->size_class].get();
  if (slots == nullptr) return count;
  slots->ForEach([&](const CoolingSlots::Entry& entry) {
    count += entry.block.span == span ? 1 : 0;
    return true;
  });
  return count;
}

void StreamFreeList::CountBySpan(
    std::map<const Span*, uint64_t>* counts) const {
  for (const auto& slots : classes_) {
    if (slots == nullptr) continue;
    slots->ForEach([counts](const CoolingSlots::Entry& entry) {
      ++(*counts)[entry.block.span];
      return true;
    });
  }
}

absl::Status StreamFreeList::CheckInvariants() const {
  std::vector<uint64_t> counted(batches_.size());
  const auto count = [&](uint64_t number) {
    if (number < first_batch_ || number > open_number()) return false;
    ++counted[number - first_batch_];
    return true;
  };
  const auto broken = [this](const char* what, uint64_t number) {
    return absl::InternalError(
        absl::StrFormat("free list of stream %u: %s (batch %u)",
                        stream_.value(), what, number));
  };
  absl::Status status;
  uint64_t listed = 0;
  for (const auto& slots : classes_) {
    if (slots == nullptr) continue;
    listed += slots->size();
    uint64_t next = open_number();
    slots->ForEach([&](const CoolingSlots::Entry& entry) {
      if (entry.batch > next) {
        status = broken("entries out of order", next);
      } else if (!count(entry.batch)) {
        status = broken("no such batch", entry.batch);
      } else if (entry.block.record().load().use() == SlotUse::kLive) {
        status = broken("holds a slot that is not cooling", entry.batch);
      }
      next = entry.batch;
      return status.ok();
    });
  }
  QUIRE_RETURN_IF_ERROR(status);
  if (listed != slots_) return broken("slots miscounted", open_number());
  if (const absl::Status runs = runs_.CheckInvariants(); !runs.ok()) {
    return runs;
  }
  for (const auto& [begin, run] : runs_.runs()) {
    if (!count(run.batch)) return broken("no such batch", run.batch);
  }
  for (size_t i = 0; i < batches_.size(); ++i) {
    if (counted[i] != batches_[i].entries) {
      return broken("entries miscounted", first_batch_ + i);
    }
    if (batches_[i].closed != (i + 1 < batches_.size())) {
      return broken("not closed, or the last and closed", first_batch_ + i);
    }
  }
  if (batches_.size() > 1 && batches_.front().entries == 0) {
    return broken("the first batch is empty", first_batch_);
  }
  return absl::OkStatus();
}

}  // namespace quire
