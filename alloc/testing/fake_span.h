// Spans without memory under them, for tests of what only keeps spans.

#ifndef QUIRE_ALLOC_TESTING_FAKE_SPAN_H_
#define QUIRE_ALLOC_TESTING_FAKE_SPAN_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "alloc/slab.h"
#include "alloc/span.h"
#include "quire/alloc/device_memory.h"

namespace quire {

class FakeSpan {
 public:
  FakeSpan(uint64_t address, uint64_t pages)
      : range_(DeviceAddress(address), PageCount(pages)) {
    span_.range = &range_;
    span_.pages = pages;
  }

  Span* span() { return &span_; }
  // Becomes a slab of the class.
  void SetSlab(int size_class, Bytes slot_size, uint32_t slots) {
    span_.size_class = size_class;
    span_.slab = std::make_unique<Slab>(slot_size, slots, 1);
  }
  // Takes a slot and makes it cool.
  Block CoolingBlock() {
    const Block block = {&span_, span_.slab->Take()};
    span_.slab->Cool(block.slot);
    return block;
  }

 private:
  class Range : public AddressRange {
   public:
    Range(DeviceAddress address, PageCount pages)
        : AddressRange(address, pages, kUnnamedOwner) {}
  };

  Range range_;
  Span span_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_SPAN_H_
