// A mapped range of the allocator: a slab, a large allocation, or free.

#ifndef QUIRE_ALLOC_SPAN_H_
#define QUIRE_ALLOC_SPAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "alloc/slab.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/units.h"

namespace quire {

// Stands for "no size class": whole pages for one allocation.
inline constexpr int kLargeClass = -1;

struct Span {
  DeviceAddress address() const { return range->address(); }
  bool free() const { return slab == nullptr; }
  bool large() const { return size_class == kLargeClass; }
  // Nobody holds any of it, though streams may still be using it: its pages
  // can serve another purpose, at the latest when they are done.
  bool reclaimable() const { return free() || slab->live_count() == 0; }

  AddressRange* range = nullptr;
  uint64_t pages = 0;  // committed: the first so many of the range
  size_t index = 0;    // in the table of spans
  // Null for a free range: no use of it is left.
  std::unique_ptr<Slab> slab;
  int size_class = kLargeClass;
  // Where the slab stands in its class's list; SIZE_MAX: not in it.
  size_t list_position = SIZE_MAX;
  // The batch of frees that a cooling large allocation belongs to, on the
  // stream it was freed on.
  uint64_t batch = 0;
  // What lay in a free range last: tells a double free from a foreign address.
  Bytes last_slot_size;
  uint32_t last_slot_count = 0;
};

// One slot of one span: what an address that was handed out stands for.
struct Block {
  Span* span = nullptr;
  uint32_t slot = 0;

  Bytes size() const { return span->slab->slot_size(); }
  DeviceAddress address() const {
    return DeviceAddress(span->address().value() +
                         uint64_t{slot} * size().value());
  }
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SPAN_H_
