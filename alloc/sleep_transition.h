// One Sleep or Wake between its first step and its last.
//
// In between, contents are copied without a lock. The ranges and pages
// concerned are marked as moving: whoever wants to change one of these ranges
// waits, and nobody puts one of the pages under another slot.

#ifndef QUIRE_ALLOC_SLEEP_TRANSITION_H_
#define QUIRE_ALLOC_SLEEP_TRANSITION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "alloc/managed_range.h"
#include "alloc/page_record.h"
#include "alloc/saved_pages.h"
#include "quire/alloc/units.h"

namespace quire {

struct SleepTransition {
  // Slots side by side. In order of owner, then of address.
  struct Run {
    std::shared_ptr<ManagedRange> range;
    uint64_t first;
    uint64_t count;
    // Of `pages`, those that have their first slot here.
    uint64_t pages = 0;
  };
  // One physical page, in the order of its first slot.
  struct Page {
    PageRecord* page;
    // In the books while it is woken up; else owned by `falling_asleep`.
    SavedPage* saved;
    DeviceAddress address;
  };

  std::vector<Run> runs;
  std::vector<Page> pages;
  std::vector<std::unique_ptr<SavedPage>> falling_asleep;
  // Pages that are free now, after a Sleep.
  uint64_t freed = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SLEEP_TRANSITION_H_
