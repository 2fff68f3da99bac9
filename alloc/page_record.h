// What DeviceMemory knows of one physical page: who maps it.

#ifndef QUIRE_ALLOC_PAGE_RECORD_H_
#define QUIRE_ALLOC_PAGE_RECORD_H_

#include <cstdint>

#include "quire/alloc/units.h"

namespace quire {

struct SavedPage;

// Of a slot of a range, and of a page by the slots that map it. A slot that is
// asleep maps none, and remembers which it shares with whom (saved_pages.h).
enum class SlotState : uint8_t {
  kUnbacked,
  kLive,
  kCooling,
  kQuarantined,
  kAsleep,
};

// A page under several slots counts once: as live while any of them is, else as
// cooling while any of them cools, else as quarantined. With no slot left it is
// free. Slots point to the record, so that none of this takes a look-up.
struct PageRecord {
  explicit PageRecord(PageHandle page_handle) : handle(page_handle) {}

  SlotState state() const {
    if (live > 0) return SlotState::kLive;
    if (cooling > 0) return SlotState::kCooling;
    return quarantined > 0 ? SlotState::kQuarantined : SlotState::kUnbacked;
  }
  uint64_t slots() const { return uint64_t{live} + cooling + quarantined; }

  const PageHandle handle;
  // That of every range with a live or cooling slot of the page.
  OwnerId owner;
  // Slots in each state.
  uint32_t live = 0;
  uint32_t cooling = 0;
  uint32_t quarantined = 0;
  // Where its contents are being copied to or from, while they are.
  SavedPage* moving = nullptr;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PAGE_RECORD_H_
