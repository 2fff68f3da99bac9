// Threads that share one pool, each checking that nobody else writes its pages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"

namespace quire {
namespace {

constexpr int kThreads = 4;
constexpr int kSteps = 400;

using DeviceMemoryThreadTest = DeviceMemoryFixture;

// Holds a mapped range for re-use, as caches above this layer do.
class ParkedRange : public PageReclaimer {
 public:
  ParkedRange(DeviceMemory* memory, AddressRange* range)
      : memory_(memory), range_(range) {}

  void Park() {
    if (memory_->Commit(range_, PageCount(0), PageCount(4)).ok()) parked_ = 4;
  }
  PageCount Reclaim(PageCount) override {
    const uint64_t given = parked_.exchange(0);
    if (given == 0) return PageCount(0);
    (void)memory_->Decommit(range_, PageCount(0), PageCount(4), Fence());
    return PageCount(given);
  }
  PageCount Reclaimable() const override { return PageCount(parked_); }
  std::string ReclaimerName() const override { return "parked"; }

 private:
  DeviceMemory* const memory_;
  AddressRange* const range_;
  std::atomic<uint64_t> parked_{0};
};

TEST_F(DeviceMemoryThreadTest, ThreadsShareOnePoolWithoutSharingAPage) {
  for (int i = 0; i < kThreads; ++i) MakeStream();
  std::atomic<uint64_t> committed{0};
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random(static_cast<uint32_t>(id));
      const StreamId stream = streams_[static_cast<size_t>(id)];
      for (int step = 0; step < kSteps; ++step) {
        const uint64_t pages = 1 + random() % 12;
        const auto range = memory_->ReserveRange(PageCount(pages), kOwner);
        ASSERT_TRUE(range.ok()) << range.status();
        (*range)->set_user_data(&random);
        const absl::Status status = Commit(*range, 0, pages);
        // Four times 12 is more than there is.
        ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
        if (status.ok()) {
          committed += pages;
          for (uint64_t i = 0; i < pages; ++i) {
            Write(*range, i, static_cast<uint64_t>(id) << 32 | i);
          }
          ASSERT_EQ(memory_->Find((*range)->address())->user_data(), &random);
          for (uint64_t i = 0; i < pages; ++i) {
            ASSERT_EQ(Read(*range, i), static_cast<uint64_t>(id) << 32 | i);
          }
          if (random() % 4 == 0) {
            ASSERT_TRUE(Decommit(*range, 0, pages / 2, FenceOn(stream)).ok());
            (void)Commit(*range, 0, pages / 2);
          }
        }
        memory_->ReleaseRange(*range,
                              random() % 2 == 0 ? Fence() : FenceOn(stream));
        if (random() % 16 == 0) memory_->Trim(PageCount(random() % 8));
        if (random() % 16 == 0) (void)memory_->Prepare(PageCount(4));
      }
    });
  }
  // A watcher: whatever it sees must add up.
  std::atomic<bool> stop{false};
  std::thread watcher([&] {
    AddressRange* const range = Reserve(4);
    ParkedRange parked(memory_.get(), range);
    while (!stop) {
      memory_->AddReclaimer(&parked);
      parked.Park();
      const DeviceMemoryStatistics statistics = memory_->GetStatistics();
      EXPECT_EQ(statistics.in_use.value(), statistics.live.value() +
                                               statistics.cooling.value() +
                                               statistics.cached.value());
      EXPECT_LE(statistics.in_use, statistics.limit);
      EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
      memory_->CalculatePageMap();
      memory_->GetLiveByOwner();
      std::this_thread::yield();
      memory_->RemoveReclaimer(&parked);
    }
    memory_->ReleaseRange(range, Fence());
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  watcher.join();
  EXPECT_GT(committed, 0u);
  // Trim waits for no fence.
  for (const StreamId stream : streams_) {
    ASSERT_TRUE(driver_->SynchronizeStream(stream).ok());
  }
  memory_->Trim(PageCount(0));
  EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
}

TEST_F(DeviceMemoryThreadTest, AThreadThatWaitsGetsWhatAnotherFrees) {
  AddressRange* const held = Reserve(kLimitPages);
  ASSERT_TRUE(Commit(held, 0, kLimitPages).ok());
  // Something cools forever, so that the waiting thread does wait.
  const StreamId slow = MakeStream();
  Gate gate(driver_.get(), slow);
  ASSERT_TRUE(Decommit(held, 0, 1, FenceOn(slow)).ok());
  std::atomic<bool> done{false};
  std::thread waiter([&] {
    AddressRange* const range = Reserve(8);
    EXPECT_EQ(Commit(range, 0, 8), absl::OkStatus());
    done = true;
    memory_->ReleaseRange(range, Fence());
  });
  ASSERT_TRUE(Decommit(held, 8, 8).ok());
  waiter.join();
  EXPECT_TRUE(done);
  gate.Open();
  memory_->ReleaseRange(held, Fence());
}

// kvcached#443: what was left was computed from figures that other threads were
// changing.
TEST_F(DeviceMemoryThreadTest, Kvcached443LimitsChangeWhileOthersGrow) {
  const OwnerId model = owners_.Register("model");
  const OwnerId kv = owners_.Register("kv", model);
  std::atomic<bool> stop{false};
  std::thread operator_thread([&] {
    std::mt19937 random(3);
    while (!stop) {
      const auto pages = [&](uint64_t most) {
        return Bytes((1 + random() % most) * kPageBytes);
      };
      ASSERT_TRUE(memory_->SetOwnerLimits(model, {.hard = pages(20)}).ok());
      (void)memory_->SetOwnerLimits(kOwner, {.reserved_minimum = pages(8)});
      ASSERT_TRUE(memory_->SetLimit(pages(kLimitPages)).ok());
      for (const OwnerStatistics& each : memory_->GetOwnerStatistics()) {
        EXPECT_LE(each.live.value(), kDevicePages * kPageBytes);
        EXPECT_LE(each.allowance.value(), kDevicePages * kPageBytes);
      }
      EXPECT_LE(memory_->CalculateLargestCommit(kv).value(), kDevicePages);
    }
  });
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random(static_cast<uint32_t>(id));
      for (int step = 0; step < kSteps; ++step) {
        const uint64_t pages = 1 + random() % 8;
        const OwnerId owner = id % 2 == 0 ? kOwner : kv;
        const auto range = memory_->ReserveRange(PageCount(pages), owner);
        ASSERT_TRUE(range.ok()) << range.status();
        const absl::Status status = Commit(*range, 0, pages);
        ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
        if (random() % 4 == 0) (void)memory_->SetOwner(*range, model);
        memory_->ReleaseRange(*range, Fence());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  operator_thread.join();
  EXPECT_EQ(memory_->GetOwnerStatistics(model).live, Bytes(0));
  EXPECT_EQ(memory_->GetStatistics().live, Bytes(0));
}

}  // namespace
}  // namespace quire
