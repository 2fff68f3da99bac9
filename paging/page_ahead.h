// How many steps ahead pages are mapped: as many as it takes to be in time.
//
// Mapping one step ahead is enough while the pages that a step needs are mapped
// faster than the next step comes. Sequences cross page boundaries together at
// times, so it is the largest recent need that counts: its mapping must begin
// as many steps earlier as it takes. Needs and costs are measured; both change
// with the layout, the driver and the load.
//
// What is called while the device computes must end before it does, or the next
// step waits for it. It may take a part of the shortest step of late, from the
// beginning of each step on; what does not fit is left to the next one.

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

  // Calls that changed pages or addresses took so long, whatever they did.
  void OnCalls(uint64_t nanoseconds) { spent_ += nanoseconds; }
  // Giving `pages` pages back took so long.
  void OnReturned(uint64_t nanoseconds, PageCount pages);
  // Whether there is time for more calls, those of the next step aside. Always
  // where none were made since the last step, or no step is measured.
  bool InTime() const;
  // Pages that can be given back in the time that is left; at least one where
  // there is time.
  PageCount ReturnsInTime() const;

 private:
  bool Measured() const { return interval_ > 0; }
  double Budget() const;

  const uint32_t max_steps_;
  std::optional<uint64_t> last_step_;
  double interval_ = 0;     // between steps, nanoseconds; 0: not measured
  double shortest_ = 0;     // of the intervals, growing until it recurs
  double page_cost_ = 0;    // nanoseconds
  double return_cost_ = 0;  // of a page, nanoseconds
  uint64_t spent_ = 0;      // nanoseconds, since the last step
  double peak_ = 0;         // pages that a step needed, fading
};

}  // namespace quire

#endif  // QUIRE_PAGING_PAGE_AHEAD_H_
