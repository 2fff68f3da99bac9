// What an arena's bytes are in use as: a slab, or one large allocation.

#ifndef QUIRE_ALLOC_SPAN_H_
#define QUIRE_ALLOC_SPAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "alloc/piece.h"
#include "alloc/slot_map.h"
#include "alloc/slot_record.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/units.h"

namespace quire {

class OwnerHeap;
struct Detour;

// Slots of a slab, at most (CoolingSlots); a longer one has slack.
inline constexpr int kSlotBits = 23;
inline constexpr uint64_t kMostSlots = uint64_t{1} << kSlotBits;

// Stands for "no size class": one allocation.
inline constexpr int kLargeClass = -1;

inline uint64_t HighHalfOfProduct(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(Wide{a} * b >> 64);
}

// Spans, and the records of their slots, are never given back to the system
// before their allocator ends, so that a thread which frees an address that is
// not live reads old figures and not somebody else's memory.
//
// What threads read without the allocator's lock (the first group) is set
// before any address of the span is handed out, and changes only when none is
// live.
struct alignas(64) Span {
  uint64_t base = 0;        // address of the first slot
  uint64_t slot_size = 0;   // a large span is one slot
  uint64_t reciprocal = 0;  // 2^64 / slot_size, rounded up
  uint32_t slot_count = 0;
  int size_class = kLargeClass;
  SlotRecordPlace records;  // of slots: see record()
  OwnerHeap* heap = nullptr;
  // Records lie 2^record_shift bytes apart: where slots are large, so many that
  // two threads which have a few each of one slab do not write to one cache
  // line all the time.
  uint32_t record_shift = 0;
  // The heap's, which may be gone when somebody asks whose an address was.
  OwnerId owner;

  // ---- With the allocator's lock ----
  // On another cache line, so that whoever has the lock is not in the way.
  alignas(64) size_t index = 0;  // in the table of spans
  // Stands for the addresses of a heap where no slab lies: what lies there is
  // for the heap to know.
  bool marker = false;
  // The bytes at home that it has. Of a guest only the addresses: its pages are
  // its host's.
  Pieces pieces;
  // Null: it lies at home, in its one piece. Slabs at home have whole pages.
  Detour* detour = nullptr;
  // Of a slab: slots that are free in it. The others are live, cached by a
  // thread, or cool.
  SlotMap free_slots;
  uint32_t cooling = 0;  // slots, or 1 for a large allocation
  // A guest was laid over another slab, its host (mesh): the pages are the
  // host's, whose map counts the slots of all its guests as taken. A guest's
  // own map has only its own; it hands out no slot any more, and goes with its
  // last one.
  Span* host = nullptr;
  uint32_t guests = 0;  // of a host
  // Where the slab stands in its class's list; SIZE_MAX: not in it.
  size_t list_position = SIZE_MAX;
  // Of a large allocation, which the record of a slot is too small for.
  Bytes requested;
  StreamId stream;
  uint32_t large_record = 0;

  DeviceAddress address() const { return DeviceAddress(base); }
  // Bytes of all slots.
  uint64_t capacity() const { return slot_size * slot_count; }
  bool large() const { return size_class == kLargeClass; }

  // ---- Of a guest, ask its host. ----
  // Slots that are not free in the slab.
  uint32_t out() const { return slot_count - free_slots.free_count(); }
  // No use of any slot is left.
  bool empty() const { return !large() && out() == 0; }
  // Nobody holds any of it, though streams may still be using it: its pages
  // can serve another purpose, at the latest when they are done.
  bool reclaimable() const { return large() ? cooling == 1 : out() == cooling; }

  SlotRecordPlace record(uint32_t slot) const {
    return records + (size_t{slot} << record_shift);
  }
  // Slots whose records one thread had best have alone (kSharingBytes): groups
  // of so many, aligned to their number.
  uint32_t group() const {
    return static_cast<uint32_t>(kSharingBytes) >> record_shift;
  }
  // The reverse of record(). REQUIRES: it is one of this span.
  uint32_t SlotOf(SlotRecordPlace record) const {
    return static_cast<uint32_t>((record - records) >> record_shift);
  }

  // The slot that starts at `address`. Lock-free. REQUIRES: the address lies
  // in the range of the span, whose size times its slot size is below 2^64.
  std::optional<uint32_t> SlotAt(uint64_t address) const {
    if (address < base) return std::nullopt;
    const uint64_t offset = address - base;
    const uint64_t slot = HighHalfOfProduct(offset, reciprocal);
    if (slot >= slot_count || slot * slot_size != offset) return std::nullopt;
    return static_cast<uint32_t>(slot);
  }
  // The slot that `address` lies in.
  std::optional<uint32_t> SlotAround(uint64_t address) const {
    if (address < base || address - base >= capacity()) return std::nullopt;
    return static_cast<uint32_t>((address - base) / slot_size);
  }
  void SetSlots(uint64_t size, uint32_t count) {
    slot_size = size;
    slot_count = count;
    reciprocal = UINT64_MAX / size + 1;
  }
};

// One slot of one span: what an address that was handed out stands for.
struct Block {
  Span* span = nullptr;
  uint32_t slot = 0;

  uint64_t size() const { return span->slot_size; }
  SlotRecordPlace record() const { return span->record(slot); }
  void SetInherits(bool inherits) const {
    record().store(record().load().WithInherits(inherits));
  }
  DeviceAddress address() const {
    return DeviceAddress(span->base + slot * size());
  }
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SPAN_H_
