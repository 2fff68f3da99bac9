// Slabs without memory under them, for tests of what only keeps their slots.

#ifndef QUIRE_ALLOC_TESTING_FAKE_SPAN_H_
#define QUIRE_ALLOC_TESTING_FAKE_SPAN_H_

#include <cstdint>
#include <memory>

#include "alloc/span.h"
#include "quire/alloc/units.h"

namespace quire {

class FakeSpan {
 public:
  FakeSpan(uint64_t address, int size_class, Bytes slot_size, uint32_t slots)
      : records_(std::make_unique<uint32_t[]>(slots)) {
    span_.base = address;
    span_.records = SlotRecordPlace::Long(records_.get());
    span_.record_shift = 2;
    span_.size_class = size_class;
    span_.SetSlots(slot_size.value(), slots);
    span_.free_slots.Reset(slots);
  }

  Span* span() { return &span_; }
  // Takes a slot, and makes it cool.
  Block CoolingBlock() {
    const Block block = {&span_, span_.free_slots.Take(&order_)};
    block.record().store(SlotRecord::Live(0, 0, false).Freed());
    ++span_.cooling;
    return block;
  }

  // A block that cooled is free, or in use again.
  static void Free(Block block) {
    --block.span->cooling;
    block.span->free_slots.Put(block.slot);
  }

 private:
  Span span_;
  std::unique_ptr<uint32_t[]> records_;
  SlotOrder order_{1};
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_SPAN_H_
