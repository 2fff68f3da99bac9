#include "quire/alloc/fence.h"

#include <atomic>
#include <utility>
#include <vector>

#include "alloc/fork_guard.h"
#include "quire/alloc/status_macros.h"

namespace quire {

// Owns the events; they are recorded once and never again, so what has
// completed stays complete. In a forked child they are the parent's, and so is
// the driver.
struct Fence::Events {
  explicit Events(Driver* event_driver) : driver(event_driver) {}
  ~Events() {
    if (fork_guard.in_child()) return;
    // Nothing can be done about an event that the driver will not take back.
    for (const EventId event : ids) (void)driver->DestroyEvent(event);
  }

  const ForkGuard fork_guard;
  Driver* const driver;
  std::vector<EventId> ids;
  std::vector<StreamId> streams;
  mutable std::atomic<bool> complete{false};
};

absl::StatusOr<Fence> Fence::Record(Driver* driver, DeviceId device,
                                    std::span<const StreamId> streams) {
  Fence fence;
  if (streams.empty()) return fence;
  auto events = std::make_shared<Events>(driver);
  events->ids.reserve(streams.size());
  events->streams.assign(streams.begin(), streams.end());
  for (const StreamId stream : streams) {
    if (stream == StreamId()) {
      return absl::InvalidArgumentError(
          "a fence on stream 0: the null stream means another one on each "
          "device, name the stream");
    }
    QUIRE_ASSIGN_OR_RETURN(const EventId event, driver->CreateEvent(device));
    events->ids.push_back(event);
    QUIRE_RETURN_IF_ERROR(driver->RecordEvent(event, stream));
  }
  fence.events_ = std::move(events);
  return fence;
}

std::span<const StreamId> Fence::streams() const {
  if (events_ == nullptr) return {};
  return events_->streams;
}

absl::StatusOr<bool> Fence::IsComplete() const {
  if (events_ == nullptr) return true;
  if (events_->complete.load(std::memory_order_acquire)) return true;
  QUIRE_RETURN_IF_ERROR(events_->fork_guard.Check());
  for (const EventId event : events_->ids) {
    QUIRE_ASSIGN_OR_RETURN(const bool complete,
                           events_->driver->QueryEvent(event));
    if (!complete) return false;
  }
  events_->complete.store(true, std::memory_order_release);
  return true;
}

absl::Status Fence::Wait() const {
  if (events_ == nullptr || events_->complete.load(std::memory_order_acquire)) {
    return absl::OkStatus();
  }
  QUIRE_RETURN_IF_ERROR(events_->fork_guard.Check());
  for (const EventId event : events_->ids) {
    QUIRE_RETURN_IF_ERROR(events_->driver->SynchronizeEvent(event));
  }
  events_->complete.store(true, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace quire
