// What DeviceMemory knows of an address range: the state of every page slot.

#ifndef QUIRE_ALLOC_MANAGED_RANGE_H_
#define QUIRE_ALLOC_MANAGED_RANGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "alloc/page_record.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/units.h"

namespace quire {

struct CoolingBatch;
struct SavedPage;

// Invariants: page is null exactly where the state is kUnbacked or kAsleep;
// batch is null except where it is kCooling, saved except where it is kAsleep.
struct PageSlot {
  PageRecord* page = nullptr;
  CoolingBatch* batch = nullptr;
  SavedPage* saved = nullptr;
  SlotState state = SlotState::kUnbacked;
};

inline bool IsUnbacked(const PageSlot& slot) {
  return slot.state == SlotState::kUnbacked;
}
inline bool IsLive(const PageSlot& slot) {
  return slot.state == SlotState::kLive;
}
inline bool IsCooling(const PageSlot& slot) {
  return slot.state == SlotState::kCooling;
}
inline bool IsAsleep(const PageSlot& slot) {
  return slot.state == SlotState::kAsleep;
}

// Guarded by the lock of its DeviceMemory, the base class apart. Shared with
// the batches of the retirement queue that have held a slot of it, which may
// outlive the range's addresses.
class ManagedRange final : public AddressRange,
                           public std::enable_shared_from_this<ManagedRange> {
 public:
  ManagedRange(DeviceAddress range_address, uint64_t page_number,
               PageCount page_count, OwnerId range_owner)
      : AddressRange(range_address, page_count, range_owner),
        first_page(page_number),
        slots(page_count.value()) {}

  using AddressRange::set_owner;

  // REQUIRES: slot <= pages().
  DeviceAddress SlotAddress(uint64_t slot, Bytes page_size) const {
    return DeviceAddress(address().value() + slot * page_size.value());
  }

  // The end of the longest run of slots from `from` on, not beyond `limit`, for
  // which `predicate(slot)` holds.
  template <typename Predicate>
  uint64_t RunEnd(uint64_t from, uint64_t limit, Predicate predicate) const {
    while (from < limit && predicate(slots[from])) ++from;
    return from;
  }
  // Calls `function(first, count)` for each maximal run in [first, first +
  // count) for which `predicate(slot)` holds. `function` may change the slots
  // of its run.
  template <typename Predicate, typename Function>
  void ForEachRun(uint64_t first, uint64_t count, Predicate predicate,
                  Function function) const {
    const uint64_t end = first + count;
    for (uint64_t at = first; at < end;) {
      const uint64_t run_end = RunEnd(at, end, predicate);
      if (run_end > at) function(at, run_end - at);
      at = run_end + 1;  // the slot at run_end does not qualify
    }
  }

  // Page number of the first slot in the address space.
  const uint64_t first_page;
  std::vector<PageSlot> slots;
  // Slots that are cooling or quarantined; a retired range dies with the last.
  uint64_t lingering = 0;
  // Released by its owner.
  bool retired = false;
  // Slots fall asleep or wake up (sleep_transition.h): changes have to wait.
  bool moving = false;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_MANAGED_RANGE_H_
