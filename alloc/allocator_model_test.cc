// Random allocations and frees on several streams that write what they hold.
//
// The truth is a plain map of live intervals, and what the streams find in
// memory: each allocation is filled by its stream with a pattern of its address
// and generation, and checked in stream order just before it is freed. Memory
// that is handed out while an earlier user may still touch it, or whose pages
// are unmapped too early, changes a pattern or faults.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/pattern.h"

namespace quire {
namespace {

class AllocatorModelTest : public AllocatorFixture,
                           public ::testing::WithParamInterface<uint64_t> {
 protected:
  struct Live {
    uint64_t size;
    uint64_t allocated;
    uint64_t generation;
    size_t stream;
    OwnerId owner;
  };

  AllocatorModelTest() : random_(GetParam()) {
    for (int i = 0; i < 4; ++i) work_.push_back(MakeStream());
    DeviceAllocatorOptions options;
    options.seed = GetParam();
    // Every free under its own fence, or many under one.
    options.fence_batch = GetParam() % 2 == 0 ? Bytes(0) : KiB(32);
    MakeAllocator(options);
  }
  // Every stream may be writing to what is freed below.
  ~AllocatorModelTest() override {
    for (const StreamId stream : work_) {
      EXPECT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
    }
    EXPECT_EQ(corrupt_, 0u);
  }

  uint64_t RandomSize() {
    switch (random_() % 16) {
      case 0:
        return 0;
      case 1:
      case 2:
      case 3:
        return random_() % (6 * kPageBytes);
      default:  // as likely to be of any magnitude
        return random_() % (uint64_t{1} << (random_() % 17));
    }
  }

  void AllocateSome() {
    AllocateOptions options;
    const size_t stream = random_() % work_.size();
    options.stream = work_[stream];
    options.owner = random_() % 2 == 0 ? kOwner : kUnnamedOwner;
    if (random_() % 4 == 0) {
      options.alignment = Bytes(uint64_t{1} << (random_() % 19));
    }
    const uint64_t size = RandomSize();
    const uint64_t largest =
        allocator_->GetLargestPossible(options.owner).value();
    const auto address = allocator_->Allocate(Bytes(size), options);
    if (!address.ok()) {
      ASSERT_EQ(address.status().code(), absl::StatusCode::kResourceExhausted);
      // Alignment is not part of the promise.
      if (options.alignment <= kDefaultAlignment) {
        ASSERT_GT(size, largest);
      }
      return;
    }
    // Its two ends may lie in pages of others.
    ASSERT_LE(size, largest + 2 * kPageBytes);
    ASSERT_EQ(address->value() % options.alignment.value(), 0u);
    const auto info = allocator_->Find(*address);
    ASSERT_TRUE(info.has_value());
    ASSERT_EQ(info->requested, Bytes(size));
    ASSERT_EQ(info->stream, options.stream);
    ASSERT_EQ(info->owner, options.owner);
    ASSERT_GE(info->allocated, Bytes(std::max<uint64_t>(size, 1)));
    const uint64_t allocated = info->allocated.value();
    const auto next = model_.upper_bound(address->value());
    if (next != model_.end()) {
      ASSERT_LE(address->value() + allocated, next->first);
    }
    if (next != model_.begin()) {
      const auto& [before, live] = *std::prev(next);
      ASSERT_LE(before + live.allocated, address->value());
    }
    const Live live = {size, allocated, ++generation_, stream, options.owner};
    model_.emplace(address->value(), live);
    Launch(stream, [pattern = Pattern{*address, size, live.generation}] {
      pattern.Write();
    });
  }

  void FreeSome() {
    if (model_.empty()) return;
    auto victim = model_.begin();
    std::advance(victim, random_() % model_.size());
    const DeviceAddress address(victim->first);
    const Live live = victim->second;
    const Pattern pattern = {address, live.size, live.generation};
    const auto check = [this, pattern] {
      if (!pattern.Holds()) ++corrupt_;
    };
    switch (random_() % 4) {
      case 0: {  // another stream uses it last
        const size_t other = random_() % work_.size();
        Join(/*from=*/live.stream, /*to=*/other);
        Launch(other, check);
        Free(address, work_[other]);
        break;
      }
      case 1: {  // two streams use it at once
        const size_t other = random_() % work_.size();
        Join(/*from=*/live.stream, /*to=*/other);
        Launch(other, check);
        Launch(live.stream, check);
        ASSERT_EQ(allocator_->RecordStream(address, work_[other]),
                  absl::OkStatus());
        Free(address, work_[live.stream]);
        break;
      }
      case 2:  // everybody is done
        Launch(live.stream, check);
        ASSERT_EQ(driver_->SynchronizeStream(work_[live.stream]),
                  absl::OkStatus());
        Free(address);
        break;
      default:
        Launch(live.stream, check);
        Free(address, work_[live.stream]);
    }
    model_.erase(victim);
  }

  void Launch(size_t stream, std::function<void()> work) {
    // Streams run apart by up to some hundred microseconds.
    const std::chrono::microseconds delay(random_() % 8 == 0 ? random_() % 300
                                                             : 0);
    ASSERT_EQ(
        driver_->LaunchHostFunction(work_[stream],
                                    [delay, work = std::move(work)] {
                                      if (delay.count() > 0)
                                        std::this_thread::sleep_for(delay);
                                      work();
                                    }),
        absl::OkStatus());
  }

  // What is queued on `to` from here on follows what is queued on `from`.
  void Join(size_t from, size_t to) {
    if (from == to) return;
    const auto event = driver_->CreateEvent(DeviceId(0));
    ASSERT_TRUE(event.ok());
    ASSERT_EQ(driver_->RecordEvent(*event, work_[from]), absl::OkStatus());
    ASSERT_EQ(driver_->WaitEvent(work_[to], *event), absl::OkStatus());
    ASSERT_EQ(driver_->DestroyEvent(*event), absl::OkStatus());
  }

  void CheckAgainstModel() {
    ASSERT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    uint64_t requested = 0;
    uint64_t allocated = 0;
    for (const auto& [address, live] : model_) {
      requested += live.size;
      allocated += live.allocated;
    }
    const AllocatorStatistics statistics = Statistics();
    ASSERT_EQ(statistics.requested_bytes, requested);
    ASSERT_EQ(statistics.live_bytes, allocated);
    ASSERT_EQ(statistics.live_allocations, model_.size());
    ASSERT_EQ(statistics.mapped_bytes,
              statistics.live_bytes + statistics.cached_bytes +
                  statistics.cooling_bytes + statistics.slack_bytes);
    // Nobody else uses the pool.
    ASSERT_EQ(memory_->GetStatistics().live.value(), statistics.mapped_bytes);
  }

  void CheckLiveAllocations() {
    const auto live = allocator_->CalculateLiveAllocations();
    ASSERT_EQ(live.size(), model_.size());
    auto expected = model_.begin();
    for (const AllocationInfo& info : live) {
      ASSERT_EQ(info.address.value(), expected->first);
      ASSERT_EQ(info.requested.value(), expected->second.size);
      ASSERT_EQ(info.owner, expected->second.owner);
      ++expected;
    }
  }

  std::mt19937_64 random_;
  std::vector<StreamId> work_;
  std::map<uint64_t, Live> model_;
  uint64_t generation_ = 0;
  std::atomic<uint64_t> corrupt_{0};
};

TEST_P(AllocatorModelTest, AgreesWithAMapOfIntervals) {
  for (int step = 0; step < 2000; ++step) {
    SCOPED_TRACE(step);
    // Between nearly empty and full.
    const bool growing = step / 250 % 2 == 0;
    if (random_() % 8 < (growing ? 5 : 3)) {
      ASSERT_NO_FATAL_FAILURE(AllocateSome());
    } else {
      ASSERT_NO_FATAL_FAILURE(FreeSome());
    }
    if (random_() % 64 == 0) {
      allocator_->Trim(Bytes(random_() % (kLimitPages * kPageBytes)));
    }
    if (random_() % 256 == 0) {
      // Somebody else needs pages for a moment.
      AddressRange* const range = Reserve(4);
      const absl::Status status = Commit(range, 0, 4);
      ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
      memory_->ReleaseRange(range, Fence());
    }
    ASSERT_NO_FATAL_FAILURE(CheckAgainstModel());
    ASSERT_EQ(corrupt_, 0u);
  }
  ASSERT_NO_FATAL_FAILURE(CheckLiveAllocations());
  while (!model_.empty()) ASSERT_NO_FATAL_FAILURE(FreeSome());
  ASSERT_NO_FATAL_FAILURE(CheckAgainstModel());
  // With nothing live, everything is to be had again.
  EXPECT_EQ(allocator_->GetLargestPossible().value(), kLimitPages * kPageBytes);
  Free(AllocatePages(kLimitPages));
}

INSTANTIATE_TEST_SUITE_P(Seeds, AllocatorModelTest,
                         ::testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace quire
