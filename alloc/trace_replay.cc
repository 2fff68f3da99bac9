#include "quire/alloc/trace_replay.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <system_error>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

// One event, ready to be played: what is measured looks nothing up.
struct Step {
  AllocationAction action;
  size_t slot;    // of Replay::held_
  size_t thread;  // 0, 1, ... in order of appearance
  Bytes size;
  AllocateOptions options;  // stream included, of frees too
};

class Replay {
 public:
  Replay(const AllocationTrace& trace, DeviceMemory* memory,
         DeviceAllocator* allocator, const TraceReplayOptions& options)
      : trace_(trace),
        memory_(memory),
        allocator_(allocator),
        options_(options) {}

  ~Replay() {
    for (const Held& held : held_) {
      if (!held.address.null()) (void)allocator_->Free(held.address);
    }
    for (const auto& [name, stream] : streams_) {
      (void)memory_->driver()->DestroyStream(stream);
    }
  }

  absl::StatusOr<TraceReplayResult> Run() {
    QUIRE_RETURN_IF_ERROR(Prepare());
    const DriverCallStatistics before = memory_->driver()->GetCallStatistics();
    size_t recorded = 0;
    for (; recorded < steps_.size() &&
           steps_[recorded].action == AllocationAction::kLive;
         ++recorded) {
      QUIRE_RETURN_IF_ERROR(Play(steps_[recorded]));
    }
    const Clock::time_point start = Clock::now();
    QUIRE_RETURN_IF_ERROR(options_.use_threads ? PlayOnThreads(recorded)
                                               : PlayHere(recorded));
    result_.nanoseconds = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() -
                                                             start)
            .count());
    result_.operations = steps_.size() - recorded;
    result_.peak_in_use = memory_->GetStatistics().peak_in_use;
    CountCalls(before);
    return result_;
  }

 private:
  struct Held {
    DeviceAddress address;  // null: not allocated now
    Bytes size;
  };

  absl::Status Prepare() {
    absl::flat_hash_map<uint64_t, size_t> slots;
    absl::flat_hash_map<uint64_t, size_t> threads;
    const std::vector<OwnerId> owners = RegisterOwners();
    for (const AllocationEvent& event : trace_.events) {
      switch (event.action) {
        case AllocationAction::kReserve:
        case AllocationAction::kRelease:
        case AllocationAction::kMark:
          continue;
        case AllocationAction::kFailure:
          if (!options_.try_failures) continue;
          break;
        default:
          break;
      }
      Step step;
      step.action = event.action;
      step.slot = slots.emplace(event.allocation, slots.size()).first->second;
      step.thread = threads.emplace(event.thread, threads.size()).first->second;
      step.size = event.size;
      QUIRE_ASSIGN_OR_RETURN(step.options.stream, StreamOf(event.stream));
      step.options.owner = owners[event.label];
      if (!event.alignment.zero()) step.options.alignment = event.alignment;
      steps_.push_back(step);
    }
    held_.resize(slots.size());
    thread_count_ = threads.size();
    return absl::OkStatus();
  }

  std::vector<OwnerId> RegisterOwners() const {
    std::vector<OwnerId> owners(trace_.labels.size(), kUnnamedOwner);
    if (options_.owners == nullptr) return owners;
    for (const AllocationEvent& event : trace_.events) {
      // Marks have labels too, and are no owners.
      if (event.label == 0 || event.action == AllocationAction::kMark) continue;
      if (owners[event.label] != kUnnamedOwner) continue;
      owners[event.label] =
          options_.owners->Register(trace_.labels[event.label]);
    }
    return owners;
  }

  absl::StatusOr<StreamId> StreamOf(uint64_t name) {
    const auto found = streams_.find(name);
    if (found != streams_.end()) return found->second;
    QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                           memory_->driver()->CreateStream(memory_->device()));
    streams_[name] = stream;
    return stream;
  }

  absl::Status PlayHere(size_t from) {
    for (size_t i = from; i < steps_.size(); ++i) {
      QUIRE_RETURN_IF_ERROR(Play(steps_[i]));
    }
    return absl::OkStatus();
  }

  // Whoever has the turn owns all of this object.
  absl::Status PlayOnThreads(size_t from) {
    std::atomic<size_t> turn{from};
    absl::Status error;
    const auto play = [&](size_t thread) {
      for (size_t i = from; i < steps_.size(); ++i) {
        if (steps_[i].thread != thread) continue;
        for (size_t now = turn.load(); now != i; now = turn.load()) {
          turn.wait(now);
        }
        if (error.ok()) error = Play(steps_[i]);
        turn.store(i + 1);
        turn.notify_all();
      }
    };
    std::vector<std::thread> threads;
    absl::Status started;
    for (size_t thread = 0; thread < thread_count_; ++thread) {
      try {
        threads.emplace_back(play, thread);
      } catch (const std::system_error& refused) {
        started = absl::ResourceExhaustedError(
            absl::StrCat("thread ", thread, " of ", thread_count_,
                         " cannot be started: ", refused.what()));
        break;
      }
    }
    // The others wait for those that do not exist: their events fall to us.
    for (size_t thread = threads.size(); thread < thread_count_; ++thread) {
      play(thread);
    }
    for (std::thread& thread : threads) thread.join();
    return started.ok() ? error : started;
  }

  absl::Status Play(const Step& step) {
    Held& held = held_[step.slot];
    switch (step.action) {
      case AllocationAction::kLive:
      case AllocationAction::kAllocate:
        return Allocate(step, &held);
      case AllocationAction::kFree:
        if (held.address.null()) return absl::OkStatus();  // had failed
        QUIRE_RETURN_IF_ERROR(
            allocator_->Free(held.address, step.options.stream));
        ++result_.frees;
        requested_ -= held.size.value();
        held.address = DeviceAddress();
        return absl::OkStatus();
      case AllocationAction::kRecordStream:
        if (held.address.null()) return absl::OkStatus();
        return allocator_->RecordStream(held.address, step.options.stream);
      case AllocationAction::kFailure:
        return TryFailure(step);
      default:
        return absl::OkStatus();
    }
  }

  absl::Status Allocate(const Step& step, Held* held) {
    const absl::StatusOr<DeviceAddress> address =
        allocator_->Allocate(step.size, step.options);
    if (absl::IsResourceExhausted(address.status())) {
      if (result_.failures++ == 0) result_.first_failure = address.status();
      return absl::OkStatus();
    }
    QUIRE_RETURN_IF_ERROR(address.status());
    *held = {*address, step.size};
    ++result_.allocations;
    // Memory that could be had is no sum that wraps.
    requested_ += step.size.value();
    result_.peak_requested =
        std::max(result_.peak_requested, Bytes(requested_));
    if (options_.measure_peak) MeasurePeak();
    return absl::OkStatus();
  }

  absl::Status TryFailure(const Step& step) {
    const absl::StatusOr<DeviceAddress> address =
        allocator_->Allocate(step.size, step.options);
    if (absl::IsResourceExhausted(address.status())) return absl::OkStatus();
    QUIRE_RETURN_IF_ERROR(address.status());
    ++result_.failures_served;
    return allocator_->Free(*address, step.options.stream);
  }

  void MeasurePeak() {
    const DeviceMemoryStatistics now = memory_->GetStatistics();
    result_.peak_mapped =
        std::max(result_.peak_mapped,
                 CheckedSubtract(now.in_use, now.cached).value_or(Bytes(0)));
  }

  void CountCalls(const DriverCallStatistics& before) {
    for (const auto& call : memory_->driver()->GetCallStatistics().calls) {
      const uint64_t count = call.count - before.CountOf(call.name);
      if (count > 0) result_.driver_calls.emplace_back(call.name, count);
    }
  }

  const AllocationTrace& trace_;
  DeviceMemory* const memory_;
  DeviceAllocator* const allocator_;
  const TraceReplayOptions options_;
  std::vector<Step> steps_;
  std::map<uint64_t, StreamId> streams_;
  size_t thread_count_ = 0;
  std::vector<Held> held_;
  uint64_t requested_ = 0;
  TraceReplayResult result_;
};

}  // namespace

absl::StatusOr<TraceReplayResult> ReplayTrace(
    const AllocationTrace& trace, DeviceMemory* memory,
    DeviceAllocator* allocator, const TraceReplayOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckAllocationTrace(trace));
  return Replay(trace, memory, allocator, options).Run();
}

}  // namespace quire
