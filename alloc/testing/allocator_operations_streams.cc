// Streams among the operations: they come and go, lag behind, and are waited
// for.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "alloc/testing/allocator_operations.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr size_t kMostStreams = 6;
// Long beside an operation; short beside a test.
constexpr std::chrono::milliseconds kLongestLag(2);

}  // namespace

class AllocatorOperations::Lag {
 public:
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait_for(lock, kLongestLag, [this] { return open_; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

absl::Status AllocatorOperations::HoldUp(StreamId stream) {
  const auto lag = std::make_shared<Lag>();
  lags_.push_back(lag);
  return Launch(stream, [lag] { lag->Wait(); });
}

absl::Status AllocatorOperations::ChangeStreams() {
  if (streams_.size() < kMostStreams && Below(2) == 0) {
    QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                           driver_->CreateStream(DeviceId(0)));
    streams_.push_back(stream);
    return absl::OkStatus();
  }
  if (streams_.size() < 2) return absl::OkStatus();
  // Its work is done from then on.
  const auto victim =
      streams_.begin() + static_cast<std::ptrdiff_t>(Below(streams_.size()));
  const StreamId stream = *victim;
  if (captures_.contains(stream)) return absl::OkStatus();
  streams_.erase(victim);
  for (auto& [address, live] : model_) std::erase(live.streams, stream);
  return driver_->DestroyStream(stream);
}

bool AllocatorOperations::IsUsed(StreamId stream) const {
  return std::any_of(model_.begin(), model_.end(), [&](const auto& entry) {
    const auto& streams = entry.second.streams;
    return entry.second.allocated_for == stream ||
           std::find(streams.begin(), streams.end(), stream) != streams.end();
  });
}

absl::Status AllocatorOperations::Launch(StreamId stream,
                                         std::function<void()> work) {
  return driver_->LaunchHostFunction(stream, std::move(work));
}

absl::Status AllocatorOperations::Join(StreamId from, StreamId to) {
  if (from == to) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const EventId event,
                         driver_->CreateEvent(DeviceId(0)));
  QUIRE_RETURN_IF_ERROR(driver_->RecordEvent(event, from));
  QUIRE_RETURN_IF_ERROR(driver_->WaitEvent(to, event));
  return driver_->DestroyEvent(event);
}

absl::StatusOr<QuiescentSection> AllocatorOperations::Quiesce() {
  const bool all = Below(2) == 0;
  if (all) EndLags();
  // By its stream, or by an event on it.
  std::vector<StreamId> streams;
  std::vector<EventId> events;
  for (const StreamId stream : streams_) {
    if (!all && !IsUsed(stream)) continue;
    if (Below(2) == 0) {
      streams.push_back(stream);
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(const EventId event,
                           driver_->CreateEvent(DeviceId(0)));
    events.push_back(event);
    QUIRE_RETURN_IF_ERROR(driver_->RecordEvent(event, stream));
  }
  auto section = QuiescentSection::Begin(memory_.get(), streams, events);
  for (const EventId event : events) {
    QUIRE_RETURN_IF_ERROR(driver_->DestroyEvent(event));
  }
  return section;
}

void AllocatorOperations::EndLags() {
  for (const auto& lag : lags_) lag->Open();
  lags_.clear();
}

}  // namespace quire
