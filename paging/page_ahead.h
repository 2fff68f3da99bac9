// How many steps ahead pages are mapped: as many as it takes to be in time.
//
// Mapping one step ahead is enough while the pages that a step needs are mapped
// faster than the next step comes. Sequences cross page boundaries together at
// times, so it is the largest recent need that counts: its mapping must begin
// as many steps earlier as it takes. Needs and costs are measured; both change
// with the layout, the driver and the load.

#ifndef QUIRE_PAGING_PAGE_AHEAD_H_
#define QUIRE_PAGING_PAGE_AHEAD_H_

#include <cstdint>
#include <optional>

#include "quire/alloc/units.h"

namespace quire {

// Not thread-safe.
class AheadHorizon {
 public:
  explicit AheadHorizon(uint32_t max_steps) : max_steps_(max_steps) {}

  // A step at `now`, in nanoseconds of a clock that never goes back, needed
  // `pages` more than the one before it, mapped already or not.
  void OnStep(uint64_t now, PageCount pages);
  // Mapping `pages` pages took so long.
  void OnMapped(uint64_t nanoseconds, PageCount pages);

  // 1 to max_steps, and 0 where that is 0.
  uint32_t steps() const;

 private:
  const uint32_t max_steps_;
  std::optional<uint64_t> last_step_;
  double interval_ = 0;   // between steps, nanoseconds; 0: not measured
  double page_cost_ = 0;  // nanoseconds
  double peak_ = 0;       // pages that a step needed, fading
};

}  // namespace quire

#endif  // QUIRE_PAGING_PAGE_AHEAD_H_
