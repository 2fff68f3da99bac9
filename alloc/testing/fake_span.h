// Spans without memory under them, for tests of what only keeps spans.

#ifndef QUIRE_ALLOC_TESTING_FAKE_SPAN_H_
#define QUIRE_ALLOC_TESTING_FAKE_SPAN_H_

#include <cstdint>
#include <memory>

#include "alloc/span.h"
#include "quire/alloc/device_memory.h"

namespace quire {

class FakeSpan {
 public:
  // A large range of so many bytes.
  FakeSpan(uint64_t address, uint64_t bytes)
      : range_(DeviceAddress(address), PageCount(1)) {
    span_.range = &range_;
    span_.base = address;
    span_.records = &span_.large_record;
    span_.SetSlots(bytes, 1);
  }

  Span* span() { return &span_; }
  // Becomes a slab of the class.
  void SetSlab(int size_class, Bytes slot_size, uint32_t slots) {
    records_ = std::make_unique<AtomicSlotRecord[]>(slots);
    span_.records = records_.get();
    span_.size_class = size_class;
    span_.SetSlots(slot_size.value(), slots);
    span_.free_slots.Reset(slots);
  }
  // Takes a slot, or the whole of a large span, and makes it cool.
  Block CoolingBlock() {
    Block block = {&span_, 0};
    if (!span_.large()) block.slot = span_.free_slots.Take(&order_);
    block.record().store(SlotRecord::Live(0, 0, false).Freed());
    ++span_.cooling;
    return block;
  }

  // A block that cooled is free, or in use again.
  static void Free(Block block) {
    --block.span->cooling;
    if (!block.span->large()) block.span->free_slots.Put(block.slot);
  }

 private:
  class Range : public AddressRange {
   public:
    Range(DeviceAddress address, PageCount pages)
        : AddressRange(address, pages, kUnnamedOwner) {}
  };

  Range range_;
  Span span_;
  std::unique_ptr<AtomicSlotRecord[]> records_;
  SlotOrder order_{1};
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_SPAN_H_
