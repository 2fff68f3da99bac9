// Pages that are given back while the device computes: no more in a step than
// its time allows, all in the end, and none that somebody lacks.
//
// The device's calls take virtual time, page by page as a driver's do.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "paging/kv_cache_testing.h"
#include "quire/alloc/host_driver.h"

namespace quire {
namespace {

constexpr uint64_t kMicrosecond = 1000;
constexpr uint64_t kUnmap = 25 * kMicrosecond;
constexpr uint64_t kStep = 1000 * kMicrosecond;
constexpr uint64_t kMaxTokens = 2000;

// All layers in a row of 640 bytes: 6.4 tokens a page of 4 KiB.
class KvCacheRoomTest : public testing::Test {
 protected:
  void Make(uint64_t pages, PageCount max_parked) {
    HostDriverOptions driver;
    driver.memory_per_device = Bytes(pages * 4096);
    driver.granularity = KiB(4);
    driver.costs = DriverCostTable::Free();
    driver.costs.unmap_page = kUnmap;
    driver_ = *HostDriver::Create(driver);
    DeviceMemoryOptions memory;
    memory.page_size = KiB(4);
    memory.address_space = MiB(64);
    memory_ = *DeviceMemory::Create(driver_.get(), &owners_, memory);
    KvCacheOptions options = CacheOptions(kMaxTokens);
    options.page_ahead.max_steps = 8;
    options.page_ahead.clock = [this] {
      return computed_ + driver_->clock()->nanoseconds();
    };
    options.max_parked = max_parked;
    cache_ = *KvCache::Create(memory_.get(), TestLayout(5), options);
  }
  void TearDown() override {
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    cache_.reset();
    memory_.reset();
    for (const std::string& leak : driver_->Leaks()) ADD_FAILURE() << leak;
  }

  uint64_t parked() const {
    return cache_->GetStatistics().parked.value() / 4096;
  }
  uint64_t committed() const {
    return cache_->GetStatistics().committed.value() / 4096;
  }
  // One that decodes steps; the time of the driver within.
  uint64_t StepOne() {
    computed_ += kStep;
    const uint64_t before = driver_->clock()->nanoseconds();
    EXPECT_TRUE(Step(cache_.get(), running_, ++length_).ok());
    cache_->EndBatch(Fence());
    return driver_->clock()->nanoseconds() - before;
  }
  uint64_t PrepareAhead() {
    const uint64_t before = driver_->clock()->nanoseconds();
    EXPECT_TRUE(cache_->PrepareAhead().ok());
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    return driver_->clock()->nanoseconds() - before;
  }
  // Some steps, so that their time is known.
  void Run() {
    running_ = Admit(cache_.get(), 1);
    for (int i = 0; i < 8; ++i) {
      StepOne();
      PrepareAhead();
    }
  }

  uint64_t computed_ = 0;
  std::unique_ptr<HostDriver> driver_;
  OwnerRegistry owners_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<KvCache> cache_;
  SequenceId running_;
  uint64_t length_ = 1;
};

TEST_F(KvCacheRoomTest, WhatEndedGoesWithinTheTimeOfSteps) {
  Make(400, PageCount(0));
  const SequenceId ended = Admit(cache_.get(), 640);  // 100 pages: 2.5 ms
  Run();
  const uint64_t before = driver_->clock()->nanoseconds();
  Release(cache_.get(), ended);
  EXPECT_EQ(driver_->clock()->nanoseconds(), before);
  EXPECT_EQ(parked(), 100u);
  int steps = 0;
  for (uint64_t left = parked(); left > 0; ++steps) {
    // Half a step, and what was begun in it: 16 pages.
    EXPECT_LE(PrepareAhead(), kStep / 2 + 16 * kUnmap);
    ASSERT_LT(parked(), left);
    left = parked();
    EXPECT_EQ(StepOne(), 0u);
  }
  EXPECT_GE(steps, 3);  // 100 pages, 20 to 36 in each
  EXPECT_LE(steps, 5);
}

TEST_F(KvCacheRoomTest, WithNobodyLeftWhatEndedGoesAtOnce) {
  Make(400, PageCount(0));
  const SequenceId ended = Admit(cache_.get(), 640);
  Run();
  Release(cache_.get(), ended);
  Release(cache_.get(), running_);
  EXPECT_EQ(parked(), 0u);
}

TEST_F(KvCacheRoomTest, WhoeverLacksMemoryWaitsForNoBudget) {
  Make(110, PageCount(0));
  const SequenceId ended = Admit(cache_.get(), 640);
  Run();
  Release(cache_.get(), ended);
  ASSERT_EQ(parked(), 100u);
  // 106 pages, of which it adopts those 100.
  const auto all = cache_->Admit(678);
  ASSERT_TRUE(all.ok()) << all.status();
  Release(cache_.get(), *all);
  ASSERT_GE(parked(), 100u);
  AddressRange* const range =
      *memory_->ReserveRange(PageCount(100), kUnnamedOwner);
  EXPECT_TRUE(memory_->Commit(range, PageCount(0), PageCount(100)).ok());
  memory_->ReleaseRange(range, Fence());
}

TEST_F(KvCacheRoomTest, WhatIsParkedStaysBelowItsLimit) {
  Make(400, PageCount(60));
  std::vector<SequenceId> ended;
  for (const uint64_t pages : {30, 40, 50})
    ended.push_back(Admit(cache_.get(), pages * 32 / 5));
  Run();
  for (const SequenceId sequence : ended) Release(cache_.get(), sequence);
  EXPECT_EQ(parked(), 120u);
  for (int i = 0; i < 8; ++i) {
    StepOne();
    PrepareAhead();
  }
  EXPECT_EQ(parked(), 60u);
  // The last one is parked still mapped, and what it has too many of goes.
  const uint64_t before = committed();
  const SequenceId adopter = Admit(cache_.get(), 20 * 32 / 5);
  EXPECT_EQ(cache_->GetStatistics().adoptions, 1u);
  for (int i = 0; i < 8; ++i) {
    StepOne();
    PrepareAhead();
  }
  // It has what its next eight tokens need as well.
  EXPECT_LE(committed() - before, 20u + 2 + 2);
  Release(cache_.get(), adopter);
}

TEST_F(KvCacheRoomTest, RoomIsMadeInAsManyStepsAsItTakes) {
  Make(260, kAllParked);
  const SequenceId ended = Admit(cache_.get(), 1280);  // 200 pages
  const SequenceId wide = Admit(cache_.get(), 64);     // 10
  Run();
  Release(cache_.get(), ended);
  Release(cache_.get(), wide);
  // 240 pages, of which 200 may be adopted and some 45 are free.
  EXPECT_TRUE(cache_->PrepareRoom({}, {.tokens = 1536}));
  // Known by its tokens to nobody: the same.
  std::vector<int32_t> prompt(1536);
  std::iota(prompt.begin(), prompt.end(), 0);
  EXPECT_TRUE(cache_->PrepareRoom(prompt, {.tokens = prompt.size()}));
  EXPECT_EQ(parked(), 210u);
}

// What is kept for prompts goes for the room of another one, step by step.
TEST_F(KvCacheRoomTest, WhatIsKeptForPromptsGoesStepByStep) {
  Make(220, PageCount(0));
  std::vector<int32_t> text(1280);
  std::iota(text.begin(), text.end(), 0);
  const auto first = cache_->AdmitPrompt(text);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(cache_->Publish(first->sequence, text).ok());
  Run();
  Release(cache_.get(), first->sequence);
  ASSERT_EQ(parked(), 200u);
  const SequenceGrowth growth = {.tokens = 640};  // 100 pages
  int steps = 0;
  for (bool ready = false; !ready; ++steps) {
    ASSERT_LT(steps, 20);
    StepOne();
    PrepareAhead();
    const uint64_t before = driver_->clock()->nanoseconds();
    ready = cache_->PrepareRoom({}, growth);
    EXPECT_LE(driver_->clock()->nanoseconds() - before,
              kStep / 2 + 16 * kUnmap);
  }
  EXPECT_GE(steps, 3);
  EXPECT_LE(steps, 6);
  const uint64_t before = driver_->clock()->nanoseconds();
  EXPECT_TRUE(cache_->Admit(640).ok());
  EXPECT_EQ(driver_->clock()->nanoseconds(), before) << "nothing to unmap";
}

}  // namespace
}  // namespace quire
