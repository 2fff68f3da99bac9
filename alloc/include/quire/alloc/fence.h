// A point in the work of one or more streams.
//
// Retirement goes by fence: what was freed under a fence may be unmapped, or
// mapped elsewhere, once every event of the fence has completed. Unmapping is
// not stream-ordered in CUDA, so this is the only thing between a free and a
// kernel that still reads.

#ifndef QUIRE_ALLOC_FENCE_H_
#define QUIRE_ALLOC_FENCE_H_

#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"

namespace quire {

// A value: copies share the events, which go back to the driver with the last
// copy. Thread-safe as a shared_ptr is: distinct copies from distinct threads.
// In a forked child a fence that was not known to be complete is
// kFailedPrecondition, and the events stay the parent's.
class Fence {
 public:
  // Already complete: for memory that no stream can be using.
  Fence() = default;

  // Records an event on each stream. Work queued later is not waited for.
  // `driver` must outlive every copy. Errors: kInvalidArgument for StreamId(),
  // and the driver's; no event is left behind.
  static absl::StatusOr<Fence> Record(Driver* driver, DeviceId device,
                                      std::span<const StreamId> streams);

  // Never blocks. An error means that the driver cannot tell: the work may
  // still be running. Once complete, a fence asks the driver no more.
  absl::StatusOr<bool> IsComplete() const;
  absl::Status Wait() const;

  // The streams that it was recorded on: for reports.
  std::span<const StreamId> streams() const;

  // Copies of one fence are equal, and so are all that were never recorded.
  friend bool operator==(const Fence& a, const Fence& b) {
    return a.events_ == b.events_;
  }
  template <typename H>
  friend H AbslHashValue(H state, const Fence& fence) {
    return H::combine(std::move(state), fence.events_.get());
  }

 private:
  struct Events;
  std::shared_ptr<const Events> events_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_FENCE_H_
