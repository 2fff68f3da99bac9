#include "bench/fragmentation_stress/trace_maker.h"

#include <bit>

namespace quire {

TracePiece TraceMaker::Allocate(uint64_t size, uint64_t stream) {
  AllocationEvent event;
  event.action = AllocationAction::kAllocate;
  event.allocation = next_++;
  event.size = Bytes(size);
  event.stream = stream;
  trace_.events.push_back(event);
  live_ += size;
  return {event.allocation, size, stream};
}

void TraceMaker::Free(const TracePiece& piece) {
  AllocationEvent event;
  event.action = AllocationAction::kFree;
  event.allocation = piece.allocation;
  event.stream = piece.stream;
  trace_.events.push_back(event);
  live_ -= piece.size;
}

void TraceMaker::FreeRandom(std::vector<TracePiece>* pieces) {
  std::swap((*pieces)[Random(pieces->size())], pieces->back());
  Free(pieces->back());
  pieces->pop_back();
}

void TraceMaker::FreeAll(std::vector<TracePiece>* pieces) {
  for (const TracePiece& piece : *pieces) Free(piece);
  pieces->clear();
}

// SplitMix64: its own, since the library's distributions differ by platform.
uint64_t TraceMaker::Random(uint64_t bound) {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (z ^ (z >> 31)) % bound;
}

uint64_t TraceMaker::RandomSize(uint64_t least, uint64_t most) {
  const auto powers =
      static_cast<uint64_t>(std::bit_width(most) - std::bit_width(least));
  const uint64_t base = least << Random(powers);
  return base + Random(base);
}

}  // namespace quire
