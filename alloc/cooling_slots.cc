#include "alloc/cooling_slots.h"

#include <utility>

namespace quire {

CoolingSlots::Packed CoolingSlots::Pack(const Block& block) {
  return reinterpret_cast<uintptr_t>(block.span)
             << (kSlotBits - kAlignmentBits) |
         block.slot;
}

Block CoolingSlots::Unpack(Packed packed) {
  const uint64_t slot = packed & ((uint64_t{1} << kSlotBits) - 1);
  return {reinterpret_cast<Span*>(packed >> kSlotBits << kAlignmentBits),
          static_cast<uint32_t>(slot)};
}

void CoolingSlots::Push(Entry entry) {
  slots_.push_back(Pack(entry.block));
  if (runs_.empty() || runs_.back().batch != entry.batch) {
    runs_.push_back({entry.batch, 0});
  }
  ++runs_.back().slots;
}

std::optional<CoolingSlots::Entry> CoolingSlots::Pop() {
  if (slots_.empty()) return std::nullopt;
  const Entry entry = {Unpack(slots_.back()), runs_.back().batch};
  slots_.pop_back();
  if (--runs_.back().slots == 0) runs_.pop_back();
  return entry;
}

void CoolingSlots::TakeBefore(uint64_t batch, std::vector<Block>* slots) {
  while (!runs_.empty() && runs_.front().batch < batch) {
    for (uint64_t i = runs_.front().slots; i > 0; --i) {
      slots->push_back(Unpack(slots_.front()));
      slots_.pop_front();
    }
    runs_.pop_front();
  }
}

std::vector<uint64_t> CoolingSlots::Remove(const Span* slab) {
  std::vector<uint64_t> removed;
  CoolingSlots left;
  std::vector<Block> slots;
  while (!runs_.empty()) {
    const uint64_t batch = runs_.front().batch;
    slots.clear();
    TakeBefore(batch + 1, &slots);
    for (const Block& block : slots) {
      if (block.span == slab) {
        removed.push_back(batch);
      } else {
        left.Push({block, batch});
      }
    }
  }
  *this = std::move(left);
  return removed;
}

void CoolingSlots::ForEach(absl::FunctionRef<bool(const Entry&)> wanted) const {
  auto slot = slots_.rbegin();
  for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
    for (uint64_t i = run->slots; i > 0; --i) {
      if (!wanted({Unpack(*slot++), run->batch})) return;
    }
  }
}

}  // namespace quire
