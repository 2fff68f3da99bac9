#include "bench/policies/policy_replay.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kEventsPerProgress = uint64_t{1} << 14;

double Fraction(Bytes whole, Bytes part) {
  if (whole.zero()) return 0;
  return static_cast<double>(SaturatingSubtract(whole, part).value()) /
         static_cast<double>(whole.value());
}

class PolicyReplay {
 public:
  PolicyReplay(const AllocationTrace& trace, SimulatedDevice* device,
               AllocatorPolicy* policy)
      : trace_(trace), device_(device), policy_(policy) {}

  absl::StatusOr<PolicyReplayResult> Run(const PolicyReplayOptions& options) {
    QUIRE_RETURN_IF_ERROR(CreateStreams());
    start_ = Cost();
    const bool repeats = options.iterations > 1;
    const std::clock_t clock = std::clock();
    for (uint64_t i = 0; i < options.iterations; ++i) {
      const PolicyCost before = Cost();
      QUIRE_RETURN_IF_ERROR(PlayOnce(options.progress, i * trace_.events.size(),
                                     options.iterations));
      if (i == 0) result_.at_end = Now();
      if (repeats) QUIRE_RETURN_IF_ERROR(FreeWhatIsLeft());
      result_.last_iteration = Since(before);
      if (i == 0) result_.first_iteration = result_.last_iteration;
    }
    result_.total = Since(start_);
    result_.seconds =
        static_cast<double>(std::clock() - clock) / CLOCKS_PER_SEC;
    // Behind all that is counted.
    if (!repeats) result_.largest_at_end = CalculateLargest();
    return std::move(result_);
  }

  absl::StatusOr<PolicyLooks> RunAndLook(const PolicyLookOptions& options) {
    look_options_ = &options;
    QUIRE_RETURN_IF_ERROR(CreateStreams());
    start_ = Cost();
    QUIRE_RETURN_IF_ERROR(PlayOnce(options.progress, 0, 1));
    if (options.page_map_points > 0) looks_.page_map_at_end = MapPagesNow();
    looks_.largest_at_end = CalculateLargest();
    return std::move(looks_);
  }

 private:
  struct Held {
    DeviceAddress address;
    Bytes size;
    StreamId stream;
  };

  absl::Status CreateStreams() {
    for (const AllocationEvent& event : trace_.events) {
      if (streams_.contains(event.stream)) continue;
      QUIRE_ASSIGN_OR_RETURN(streams_[event.stream],
                             device_->driver()->CreateStream(DeviceId(0)));
    }
    return absl::OkStatus();
  }

  PolicyCost Cost() const { return {device_->calls(), device_->nanoseconds()}; }
  PolicyCost Since(const PolicyCost& before) const {
    const PolicyCost now = Cost();
    return {now.driver_calls - before.driver_calls,
            now.virtual_nanoseconds - before.virtual_nanoseconds};
  }

  // `done` events were played before, and so many iterations are to be.
  absl::Status PlayOnce(const std::function<void(uint64_t, uint64_t)>& progress,
                        uint64_t done, uint64_t iterations) {
    const uint64_t count = trace_.events.size();
    for (event_ = 0; event_ < count; ++event_) {
      QUIRE_RETURN_IF_ERROR(Play(trace_.events[event_]));
      if (look_options_ != nullptr) Look();
      if (event_ % kEventsPerProgress == 0 && progress) {
        progress(done + event_, iterations * count);
      }
    }
    return absl::OkStatus();
  }

  // After each event of a replay that is looked into.
  void Look() {
    if (Due(looks_.timeline.size(), look_options_->timeline_points)) {
      looks_.timeline.push_back({Now(), CalculateLargest(), Since(start_)});
    }
    if (Due(looks_.page_maps.size(), look_options_->page_map_points)) {
      looks_.page_maps.push_back(MapPagesNow());
    }
    if (event_ == look_options_->page_map_event) {
      looks_.page_map_at_event = MapPagesNow();
    }
  }

  bool Due(uint64_t taken, uint64_t points) const {
    return taken < points && event_ + 1 >= PointAt(taken, points);
  }

  // The number of events after which the point is due.
  uint64_t PointAt(uint64_t point, uint64_t points) const {
    return static_cast<uint64_t>(static_cast<double>(point + 1) /
                                 static_cast<double>(points) *
                                 static_cast<double>(trace_.events.size()));
  }

  absl::Status Play(const AllocationEvent& event) {
    switch (event.action) {
      case AllocationAction::kLive:
      case AllocationAction::kAllocate:
        return Allocate(event);
      case AllocationAction::kFree:
        return Free(event);
      case AllocationAction::kRecordStream: {
        const auto held = held_.find(event.allocation);
        if (held == held_.end()) return absl::OkStatus();
        return policy_->RecordStream(held->second.address,
                                     streams_[event.stream]);
      }
      default:
        return absl::OkStatus();
    }
  }

  absl::Status Allocate(const AllocationEvent& event) {
    if (event.size.zero()) {
      ++result_.allocations;
      return absl::OkStatus();
    }
    const StreamId stream = streams_[event.stream];
    const absl::StatusOr<DeviceAddress> address =
        policy_->Allocate(event.size, stream);
    if (absl::IsResourceExhausted(address.status())) {
      return NoteFailure(event, stream, address.status());
    }
    QUIRE_RETURN_IF_ERROR(address.status());
    held_[event.allocation] = {*address, event.size, stream};
    ++result_.allocations;
    // Memory that could be had is no sum that wraps.
    requested_ += event.size.value();
    const PolicyMoment now = Now();
    if (now.requested > result_.peak_requested) {
      result_.peak_requested = now.requested;
      result_.at_peak_requested = now;
    }
    result_.peak_mapped = std::max(result_.peak_mapped, now.use.mapped);
    result_.peak_reserved = std::max(result_.peak_reserved, now.use.reserved);
    return absl::OkStatus();
  }

  absl::Status NoteFailure(const AllocationEvent& event, StreamId stream,
                           const absl::Status& status) {
    if (result_.failures++ > 0) return absl::OkStatus();
    if (look_options_ != nullptr && look_options_->page_map_points > 0) {
      looks_.page_map_at_failure = MapPagesNow();
    }
    PolicyFailure failure;
    failure.moment = Now();
    failure.size = event.size;
    failure.largest = policy_->CalculateLargest(stream);
    failure.kind =
        SaturatingAdd(Bytes(requested_), event.size) > device_->memory()
            ? ShortageKind::kCapacity
            : ShortageKind::kFragmentation;
    failure.message = std::string(status.message());
    result_.first_failure = std::move(failure);
    return absl::OkStatus();
  }

  absl::Status Free(const AllocationEvent& event) {
    const auto found = held_.find(event.allocation);
    // It took no memory: it was of no bytes, or had failed.
    if (found == held_.end()) return absl::OkStatus();
    const Held held = found->second;
    held_.erase(found);
    return FreeHeld(held, streams_[event.stream]);
  }

  absl::Status FreeHeld(const Held& held, StreamId stream) {
    QUIRE_RETURN_IF_ERROR(policy_->Free(held.address, stream));
    ++result_.frees;
    requested_ -= held.size.value();
    return absl::OkStatus();
  }

  absl::Status FreeWhatIsLeft() {
    const std::map<uint64_t, Held> left(held_.begin(), held_.end());
    held_.clear();
    for (const auto& [allocation, held] : left) {
      QUIRE_RETURN_IF_ERROR(FreeHeld(held, held.stream));
    }
    return absl::OkStatus();
  }

  // On the trace's first stream.
  Bytes CalculateLargest() const {
    if (trace_.events.empty()) return policy_->CalculateLargest(StreamId());
    return policy_->CalculateLargest(streams_.at(trace_.events.front().stream));
  }

  PolicyMoment Now() const {
    return {event_, Bytes(requested_), policy_->GetUse()};
  }

  PolicyPageMap MapPagesNow() const {
    std::vector<LiveRange> live;
    live.reserve(held_.size());
    for (const auto& [allocation, held] : held_) {
      live.push_back({held.address, held.size});
    }
    return {Now(), MapPages(*device_->driver(), live)};
  }

  const AllocationTrace& trace_;
  SimulatedDevice* const device_;
  AllocatorPolicy* const policy_;
  const PolicyLookOptions* look_options_ = nullptr;  // nobody looks
  absl::flat_hash_map<uint64_t, StreamId> streams_;  // by name in the trace
  absl::flat_hash_map<uint64_t, Held> held_;
  uint64_t requested_ = 0;
  uint64_t event_ = 0;
  PolicyCost start_;
  PolicyReplayResult result_;
  PolicyLooks looks_;
};

}  // namespace

double PolicyMoment::internal_fragmentation() const {
  return Fraction(use.allocated, requested);
}

double PolicyMoment::external_fragmentation() const {
  return Fraction(use.reserved, use.allocated);
}

double PolicyReplayResult::ratio() const {
  if (peak_requested.zero()) return 0;
  return static_cast<double>(peak_reserved.value()) /
         static_cast<double>(peak_requested.value());
}

absl::StatusOr<PolicyReplayResult> ReplayOnPolicy(
    const AllocationTrace& trace, SimulatedDevice* device,
    AllocatorPolicy* policy, const PolicyReplayOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckAllocationTrace(trace));
  return PolicyReplay(trace, device, policy).Run(options);
}

absl::StatusOr<PolicyLooks> LookIntoPolicy(const AllocationTrace& trace,
                                           SimulatedDevice* device,
                                           AllocatorPolicy* policy,
                                           const PolicyLookOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckAllocationTrace(trace));
  return PolicyReplay(trace, device, policy).RunAndLook(options);
}

}  // namespace quire
