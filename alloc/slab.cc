#include "alloc/slab.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"

namespace quire {

Slab::Slab(Bytes slot_size, uint32_t slots, uint64_t seed)
    : slot_size_(slot_size), slots_(slots), free_(slots), order_(seed) {
  std::iota(free_.begin(), free_.end(), uint32_t{0});
}

uint32_t Slab::Take() {
  std::swap(free_[order_.Below(free_count())], free_.back());
  const uint32_t i = free_.back();
  free_.pop_back();
  slots_[i].use = SlotUse::kLive;
  ++live_count_;
  return i;
}

void Slab::Revive(uint32_t i) {
  slots_[i].use = SlotUse::kLive;
  --cooling_count_;
  ++live_count_;
}

void Slab::Describe(uint32_t i, Bytes requested, StreamId stream,
                    OwnerId owner) {
  slots_[i] = {requested, stream, owner, SlotUse::kLive, false};
}

void Slab::Cool(uint32_t i) {
  slots_[i].use = SlotUse::kCooling;
  --live_count_;
  ++cooling_count_;
}

void Slab::Free(uint32_t i) {
  slots_[i].use = SlotUse::kFree;
  --cooling_count_;
  free_.push_back(i);
}

absl::Status Slab::CheckInvariants() const {
  uint32_t live = 0;
  uint32_t cooling = 0;
  for (const Slot& slot : slots_) {
    live += slot.use == SlotUse::kLive ? 1 : 0;
    cooling += slot.use == SlotUse::kCooling ? 1 : 0;
  }
  if (live != live_count_ || cooling != cooling_count_) {
    return absl::InternalError(absl::StrFormat(
        "slab of %u slots: %u live and %u cooling counted, %u and %u kept",
        slot_count(), live, cooling, live_count_, cooling_count_));
  }
  if (live + cooling + free_count() != slot_count()) {
    return absl::InternalError(absl::StrFormat(
        "slab of %u slots: %u live, %u cooling and %u free are not all",
        slot_count(), live, cooling, free_count()));
  }
  std::vector<bool> seen(slots_.size());
  for (const uint32_t i : free_) {
    if (i >= slots_.size() || seen[i] || slots_[i].use == SlotUse::kLive ||
        slots_[i].use == SlotUse::kCooling) {
      return absl::InternalError(absl::StrFormat(
          "slab of %u slots: slot %u is in the free list but not free, or "
          "twice in it",
          slot_count(), i));
    }
    seen[i] = true;
  }
  return absl::OkStatus();
}

}  // namespace quire
