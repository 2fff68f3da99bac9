// Every driver call of Sleep and of Wake fails once, and nothing is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "alloc/testing/sleep_fixture.h"

namespace quire {
namespace {

using ::testing::IsEmpty;

constexpr absl::StatusCode kCodes[] = {absl::StatusCode::kInternal,
                                       absl::StatusCode::kResourceExhausted};

class DeviceMemorySleepFaultTest : public SleepFixture {
 protected:
  // Several runs and owners, a page under two ranges.
  void SetUpRanges() {
    MakeMemory(Options());
    weights_range_ = MakeRange(weights_, 4, 10);
    ASSERT_TRUE(Decommit(weights_range_, 1, 1).ok());
    kv_range_ = Reserve(kv_, 3);
    ASSERT_TRUE(Commit(kv_range_, 0, 2).ok());
    WriteAll(kv_range_, 0, 20);
    WriteAll(kv_range_, 1, 21);
    const std::vector<PageHandle> shared = {PageAt(kv_range_, 0)};
    ASSERT_TRUE(memory_->CommitPages(kv_range_, PageCount(2), shared).ok());
  }
  void ExpectAwake() {
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    EXPECT_EQ(LivePages(model_), 5u);
    EXPECT_EQ(AsleepPages(model_), 0u);
    for (const uint64_t slot : {0, 2, 3}) {
      EXPECT_TRUE(Holds(weights_range_, slot, 10 + slot));
    }
    EXPECT_TRUE(Holds(kv_range_, 0, 20));
    EXPECT_TRUE(Holds(kv_range_, 1, 21));
    EXPECT_EQ(PageAt(kv_range_, 2), PageAt(kv_range_, 0));
    EXPECT_EQ(memory_->GetStatistics().asleep_on_host, Bytes(0));
    EXPECT_EQ(memory_->GetStatistics().asleep_on_disk, Bytes(0));
    EXPECT_EQ(memory_->Health(), absl::OkStatus());
  }
  void ExpectAsleep() {
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    EXPECT_EQ(LivePages(model_), 0u);
    EXPECT_EQ(AsleepPages(model_), 5u);
    EXPECT_EQ(memory_->Health(), absl::OkStatus());
  }
  // All that was borrowed for the time of a call.
  void ExpectNothingLeft() {
    memory_.reset();
    for (const StreamId stream : streams_) (void)driver_->DestroyStream(stream);
    streams_.clear();
    EXPECT_THAT(driver_->Leaks(), IsEmpty());
  }

  AddressRange* weights_range_ = nullptr;
  AddressRange* kv_range_ = nullptr;
};

TEST_F(DeviceMemorySleepFaultTest, ASleepThatFailsAnywhereLeavesAllAwake) {
  for (const SleepTarget target : kTargets) {
    for (const absl::StatusCode code : kCodes) {
      for (uint64_t n = 1;; ++n) {
        SetUpRanges();
        const uint64_t fired = faulty_->faults_fired();
        faulty_->FailCall(n, code);
        const auto slept = Sleep(model_, target);
        const bool failed = faulty_->faults_fired() > fired;
        faulty_->ClearFaults();
        EXPECT_TRUE(failed || slept.ok()) << slept.status();
        if (slept.ok()) {
          // What failed was of no consequence: a stream that did not go at
          // once.
          ExpectAsleep();
          ASSERT_TRUE(memory_->Wake(model_).ok());
        } else {
          EXPECT_EQ(slept.status().code(), code) << slept.status();
        }
        if (target != SleepTarget::kDrop || !slept.ok()) ExpectAwake();
        EXPECT_TRUE(Sleep(model_, target).ok());
        ExpectNothingLeft();
        if (!failed) break;
      }
    }
  }
}

TEST_F(DeviceMemorySleepFaultTest, AWakeThatFailsAnywhereLeavesAllAsleep) {
  for (const SleepTarget target : kTargets) {
    for (const absl::StatusCode code : kCodes) {
      for (uint64_t n = 1;; ++n) {
        SetUpRanges();
        ASSERT_TRUE(Sleep(model_, target).ok());
        // Pages have to be made again.
        memory_->Trim(PageCount(1));
        const DeviceMemoryStatistics before = memory_->GetStatistics();
        const uint64_t fired = faulty_->faults_fired();
        faulty_->FailCall(n, code);
        const auto woken = memory_->Wake(model_, {.zero_dropped = true});
        const bool failed = faulty_->faults_fired() > fired;
        faulty_->ClearFaults();
        EXPECT_TRUE(failed || woken.ok()) << woken.status();
        if (!woken.ok()) {
          EXPECT_EQ(woken.status().code(), code) << woken.status();
          ExpectAsleep();
          const DeviceMemoryStatistics now = memory_->GetStatistics();
          EXPECT_EQ(now.in_use, before.in_use);
          EXPECT_EQ(now.asleep_on_host, before.asleep_on_host);
          EXPECT_EQ(now.asleep_on_disk, before.asleep_on_disk);
          ASSERT_TRUE(memory_->Wake(model_, {.zero_dropped = true}).ok());
        }
        if (target != SleepTarget::kDrop) {
          ExpectAwake();
        } else {
          EXPECT_EQ(Read(kv_range_, 1), 0u);
        }
        ExpectNothingLeft();
        if (!failed) break;
      }
    }
  }
}

TEST_F(DeviceMemorySleepFaultTest, ARollbackThatIsRefusedTooQuarantines) {
  // Falling asleep: the third run is not unmapped, the first two not put back.
  SetUpRanges();
  faulty_->FailCall(DriverCall::kUnmap, 3, absl::StatusCode::kInternal);
  faulty_->FailCallsFrom(DriverCall::kMap, 1, absl::StatusCode::kInternal);
  EXPECT_EQ(Sleep(model_).status().code(), absl::StatusCode::kDataLoss);
  faulty_->ClearFaults();
  ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(memory_->GetStatistics().quarantined.value(), 3 * kPageBytes);
  EXPECT_FALSE(memory_->Health().ok());
  EXPECT_EQ(LivePages(model_), 2u);
  EXPECT_TRUE(Holds(kv_range_, 1, 21));
  EXPECT_EQ(memory_->GetStatistics().asleep_on_host, Bytes(0));

  // Waking up: the third run is not mapped, the first two not unmapped.
  SetUpRanges();
  ASSERT_TRUE(Sleep(model_).ok());
  faulty_->FailCall(DriverCall::kMap, 3, absl::StatusCode::kInternal);
  faulty_->FailCallsFrom(DriverCall::kUnmap, 1, absl::StatusCode::kInternal);
  EXPECT_EQ(memory_->Wake(model_).status().code(), absl::StatusCode::kDataLoss);
  faulty_->ClearFaults();
  ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(AsleepPages(model_), 2u);
  EXPECT_EQ(memory_->GetStatistics().quarantined.value(), 3 * kPageBytes);
  ASSERT_TRUE(memory_->Wake(model_).ok());
  EXPECT_TRUE(Holds(kv_range_, 0, 20));
  EXPECT_TRUE(Holds(kv_range_, 1, 21));
  ExpectNothingLeft();
}

TEST_F(DeviceMemorySleepFaultTest, WhatTheDriverLosesIsQuarantined) {
  for (const DriverCall call : {DriverCall::kUnmap, DriverCall::kMap}) {
    SetUpRanges();
    if (call == DriverCall::kMap) {
      ASSERT_TRUE(Sleep(model_).ok());
    }
    faulty_->FailCall(call, 2, absl::StatusCode::kDataLoss);
    const absl::Status status = call == DriverCall::kMap
                                    ? memory_->Wake(model_).status()
                                    : Sleep(model_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    faulty_->ClearFaults();
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    // Pages 2 and 3 of the weights; all others are as they were.
    EXPECT_EQ(memory_->GetStatistics().quarantined.value(), 2 * kPageBytes);
    if (call == DriverCall::kMap) {
      EXPECT_EQ(AsleepPages(model_), 3u);
      ASSERT_TRUE(memory_->Wake(model_).ok());
    }
    EXPECT_TRUE(Holds(weights_range_, 0, 10));
    EXPECT_TRUE(Holds(kv_range_, 2, 20));
    ExpectNothingLeft();
  }
}

}  // namespace
}  // namespace quire
