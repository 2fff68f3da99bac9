// Sleep, graph pools and a second allocator among the operations.

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "alloc/testing/allocator_operations.h"
#include "alloc/testing/contradiction.h"
#include "quire/alloc/sleep.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr size_t kMostGraphPools = 3;
constexpr size_t kMostOthers = 12;

}  // namespace

// ---- Sleep ------------------------------------------------------------------

absl::Status AllocatorOperations::Sleep() {
  const OwnerId owner = SomeOwner();
  SleepOptions options;
  switch (Below(4)) {
    case 0:
      options.target = SleepTarget::kDrop;
      break;
    case 1:
      options.target = SleepTarget::kDisk;
      options.folder = std::filesystem::temp_directory_path();
      break;
    default:
      break;
  }
  const bool directly = Below(4) == 0;
  if (!captures_.empty()) return absl::OkStatus();
  const auto is_within = [&](OwnerId each) {
    return owners_.IsWithin(each, owner);
  };
  const bool refused =
      std::any_of(model_.begin(), model_.end(),
                  [&](const auto& entry) {
                    return entry.second.pins > 0 &&
                           is_within(entry.second.owner);
                  }) ||
      std::any_of(graph_pools_.begin(), graph_pools_.end(),
                  [&](const auto& pool) { return is_within(pool.second); });
  QUIRE_ASSIGN_OR_RETURN(const QuiescentSection section, Quiesce());
  const absl::Status status =
      directly ? memory_->Sleep(section, owner, options).status()
               : allocator_->Sleep(section, owner, options).status();
  if (refused) {
    return ExpectCode(status, absl::StatusCode::kFailedPrecondition,
                      "sleep of what is pinned or kept for graphs");
  }
  QUIRE_RETURN_IF_ERROR(status);
  const auto fall_asleep = [&](Live& live) {
    if (!is_within(live.owner) || live.asleep) return;
    live.asleep = true;
    live.dropped = options.target == SleepTarget::kDrop;
    live.streams.clear();  // all of them are done
  };
  for (auto& [address, live] : model_) fall_asleep(live);
  for (Live& live : others_) fall_asleep(live);
  for (const OwnerId each : owner_ids_) {
    if (is_within(each)) asleep_owners_.insert(each);
  }
  return CheckContents();
}

// All or nothing.
absl::Status AllocatorOperations::Wake(OwnerId owner) {
  const absl::Status status = allocator_->Wake(owner).status();
  if (absl::IsResourceExhausted(status)) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(status);
  const auto wake_up = [&](Live& live) {
    if (!owners_.IsWithin(live.owner, owner) || !live.asleep) return;
    live.asleep = false;
    if (std::exchange(live.dropped, false)) {
      live.pattern.generation = ++generation_;
      live.pattern.Write();
    }
  };
  for (auto& [address, live] : model_) wake_up(live);
  for (Live& live : others_) wake_up(live);
  std::erase_if(asleep_owners_,
                [&](OwnerId each) { return owners_.IsWithin(each, owner); });
  // What is queued may be writing to what was awake.
  for (const StreamId stream : streams_) {
    QUIRE_RETURN_IF_ERROR(driver_->SynchronizeStream(stream));
  }
  return CheckContents();
}

// ---- Another allocator ------------------------------------------------------

absl::Status AllocatorOperations::UseAnotherAllocator() {
  const uint64_t how = Next();
  if (others_.size() < kMostOthers && how % 2 == 1) {
    AllocateOptions options;
    options.owner = SomeOwner();
    const uint64_t size = NextSize();
    const auto address = other_->Allocate(Bytes(size), options);
    if (!address.ok()) {
      const bool expected = absl::IsResourceExhausted(address.status()) ||
                            (IsAsleep(options.owner) &&
                             absl::IsFailedPrecondition(address.status()));
      return expected ? absl::OkStatus() : address.status();
    }
    QUIRE_RETURN_IF_ERROR(
        CheckKept(address->value(), address->value() + size, GraphPoolId()));
    const Pattern pattern = {*address, size, ++generation_};
    pattern.Write();
    others_.push_back({pattern, size, options.owner, StreamId(), {}});
    return absl::OkStatus();
  }
  if (others_.empty()) return absl::OkStatus();
  const auto victim = std::next(
      others_.begin(), static_cast<std::ptrdiff_t>(how / 2 % others_.size()));
  const Live live = std::move(*victim);
  others_.erase(victim);
  if (!live.asleep && !live.pattern.Holds()) {
    return Contradiction("%u bytes at %#x of another allocator changed",
                         live.pattern.size, live.pattern.address.value());
  }
  if (allocator_->Manages(live.pattern.address)) {
    return Contradiction("%#x is managed by two allocators",
                         live.pattern.address.value());
  }
  return other_->Free(live.pattern.address);
}

// ---- Graphs -----------------------------------------------------------------

GraphPoolId AllocatorOperations::PoolFor(StreamId stream) const {
  const auto capture = captures_.find(stream);
  return capture == captures_.end() ? GraphPoolId() : capture->second;
}

absl::Status AllocatorOperations::CheckKept(uint64_t begin, uint64_t end,
                                            GraphPoolId pool) const {
  for (const auto& [first, kept] : kept_) {
    if (kept.pool != pool && begin < kept.end && first < end) {
      return Contradiction("%#x is used by the graphs of pool %u", begin,
                           kept.pool.value());
    }
  }
  return absl::OkStatus();
}

absl::Status AllocatorOperations::UseGraphs() {
  // Captures are short: nothing is compacted beside them.
  switch (Below(6)) {
    case 0:
      return CreateGraphPool();
    case 1:
      return BeginCapture();
    case 2:
      return ReleaseGraphPool();
    default:
      return EndCapture();
  }
}

absl::Status AllocatorOperations::CreateGraphPool() {
  const OwnerId owner = SomeOwner();
  if (graph_pools_.size() == kMostGraphPools) return absl::OkStatus();
  const auto pool = allocator_->CreateGraphPool(owner);
  if (IsAsleep(owner)) {
    return ExpectCode(pool.status(), absl::StatusCode::kFailedPrecondition,
                      "a graph pool of whom sleeps");
  }
  QUIRE_RETURN_IF_ERROR(pool.status());
  graph_pools_[*pool] = owner;
  return absl::OkStatus();
}

absl::Status AllocatorOperations::BeginCapture() {
  const StreamId stream = SomeStream();
  const uint64_t which = Next();
  if (graph_pools_.empty()) return absl::OkStatus();
  const GraphPoolId pool =
      std::next(graph_pools_.begin(),
                static_cast<std::ptrdiff_t>(which % graph_pools_.size()))
          ->first;
  const absl::Status status = allocator_->BeginGraphCapture(pool, stream);
  if (captures_.contains(stream)) {
    return ExpectCode(status, absl::StatusCode::kFailedPrecondition,
                      "a second capture of a stream");
  }
  QUIRE_RETURN_IF_ERROR(status);
  captures_[stream] = pool;
  return absl::OkStatus();
}

absl::Status AllocatorOperations::EndCapture() {
  if (captures_.empty()) {
    return ExpectCode(allocator_->EndGraphCapture(SomeStream()),
                      absl::StatusCode::kFailedPrecondition,
                      "the end of no capture");
  }
  const StreamId stream = captures_.begin()->first;
  QUIRE_RETURN_IF_ERROR(allocator_->EndGraphCapture(stream));
  captures_.erase(stream);
  return absl::OkStatus();
}

absl::Status AllocatorOperations::ReleaseGraphPool() {
  if (graph_pools_.empty()) return absl::OkStatus();
  const GraphPoolId pool = graph_pools_.begin()->first;
  // Its graphs may run on any stream, and none of these is captured.
  const absl::Status status = allocator_->ReleaseGraphPool(pool, streams_);
  if (!captures_.empty()) {
    return ExpectCode(status, absl::StatusCode::kFailedPrecondition,
                      "release of a pool beside a capture");
  }
  QUIRE_RETURN_IF_ERROR(status);
  graph_pools_.erase(pool);
  std::erase_if(kept_,
                [&](const auto& kept) { return kept.second.pool == pool; });
  return absl::OkStatus();
}

}  // namespace quire
