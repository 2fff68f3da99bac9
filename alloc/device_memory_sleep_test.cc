#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "alloc/testing/fake_reclaimer.h"
#include "alloc/testing/sleep_fixture.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

class DeviceMemorySleepTest : public SleepFixture {};

TEST_F(DeviceMemorySleepTest, PagesGoAndComeBackWithTheirContents) {
  for (const SleepTarget target : kTargets) {
    AddressRange* const range = MakeRange(weights_, 5, 100);
    const DeviceAddress address = range->address();
    const auto slept = Sleep(weights_, target);
    ASSERT_TRUE(slept.ok()) << slept.status();
    const bool moves = target != SleepTarget::kDrop;
    EXPECT_EQ(slept->bytes_moved.value(), moves ? 5 * kPageBytes : 0);
    EXPECT_EQ(slept->pages, PageCount(5));
    EXPECT_EQ(slept->pages_freed, PageCount(5));
    EXPECT_GT(slept->driver_calls, 0u);

    DeviceMemoryStatistics statistics = memory_->GetStatistics();
    EXPECT_EQ(statistics.live, Bytes(0));
    EXPECT_EQ(statistics.asleep.value(), 5 * kPageBytes);
    EXPECT_EQ(statistics.asleep_on_host.value(),
              target == SleepTarget::kHost ? 5 * kPageBytes : 0);
    EXPECT_EQ(statistics.asleep_on_disk.value(),
              target == SleepTarget::kDisk ? 5 * kPageBytes : 0);
    EXPECT_EQ(statistics.reserved.value(), 5 * kPageBytes);
    EXPECT_EQ(statistics.mapped, Bytes(0));
    EXPECT_EQ(Committed(range, 0, 5), 0u);
    EXPECT_EQ(PageAt(range, 0), PageHandle());
    EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    // They are the driver's again, and another's.
    EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(5));
    EXPECT_EQ(driver_->GetMemoryInfo(DeviceId(0))->free.value(),
              kDevicePages * kPageBytes);
    // To touch them is refused.
    const StreamId stream = MakeStream();
    uint64_t word = 0;
    EXPECT_FALSE(driver_->CopyToHost(&word, address, Bytes(8), stream).ok());
    EXPECT_EQ(memory_->Find(address), range);

    const auto woken =
        memory_->Wake(weights_, {.zero_dropped = target == SleepTarget::kDrop});
    ASSERT_TRUE(woken.ok()) << woken.status();
    EXPECT_EQ(woken->bytes_moved, slept->bytes_moved);
    EXPECT_EQ(woken->pages, PageCount(5));
    statistics = memory_->GetStatistics();
    EXPECT_EQ(statistics.live.value(), 5 * kPageBytes);
    EXPECT_EQ(statistics.asleep, Bytes(0));
    EXPECT_EQ(statistics.asleep_on_host, Bytes(0));
    EXPECT_EQ(statistics.asleep_on_disk, Bytes(0));
    if (moves) {
      EXPECT_TRUE(HoldsAll(range, 100));
    } else {
      for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(Read(range, i), 0u);
    }
    memory_->ReleaseRange(range, Fence());
  }
}

TEST_F(DeviceMemorySleepTest, NeedsAnOpenSection) {
  MakeRange(weights_, 2, 0);
  auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok());
  EXPECT_EQ(memory_->Sleep(*section, OwnerId(kMaxOwners)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(memory_->Wake(OwnerId(kMaxOwners)).status().code(),
            absl::StatusCode::kInvalidArgument);
  SleepOptions nowhere;
  nowhere.target = SleepTarget::kDisk;
  EXPECT_EQ(memory_->Sleep(*section, weights_, nowhere).status().code(),
            absl::StatusCode::kInvalidArgument);
  section->End();
  EXPECT_EQ(memory_->Sleep(*section, weights_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(LivePages(weights_), 2u);
}

TEST_F(DeviceMemorySleepTest, WhatSleepsCannotBeChangedUntilItWakesUp) {
  AddressRange* const range = MakeRange(weights_, 3, 0);
  AddressRange* const next = Reserve(weights_, 1);
  ASSERT_TRUE(Sleep(weights_).ok());
  const absl::Status refused = Commit(range, 1, 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("asleep: wake it"));
  EXPECT_EQ(memory_->SetOwner(range, other_).code(),
            absl::StatusCode::kFailedPrecondition);
  // New memory of the owner is awake, and a part of the old may go.
  ASSERT_TRUE(Commit(next, 0, 1).ok());
  EXPECT_EQ(memory_->Remap(range, PageCount(0), PageAt(next, 0)).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Decommit(range, 1, 1).ok());
  EXPECT_EQ(AsleepPages(weights_), 2u);
  ASSERT_TRUE(Commit(range, 1, 1).ok());
  ASSERT_TRUE(memory_->Wake(weights_).ok());
  EXPECT_TRUE(Holds(range, 0, 0));
  EXPECT_TRUE(Holds(range, 2, 2));
  EXPECT_EQ(LivePages(weights_), 4u);
}

TEST_F(DeviceMemorySleepTest, TwiceIsNoMoreThanOnce) {
  AddressRange* const range = MakeRange(weights_, 2, 7);
  EXPECT_EQ(memory_->Wake(weights_)->pages, PageCount(0));
  EXPECT_EQ(Sleep(weights_)->pages, PageCount(2));
  EXPECT_EQ(Sleep(weights_, SleepTarget::kDrop)->pages, PageCount(0));
  EXPECT_EQ(memory_->Wake(weights_)->pages, PageCount(2));
  EXPECT_EQ(memory_->Wake(weights_)->pages, PageCount(0));
  EXPECT_TRUE(HoldsAll(range, 7));
}

TEST_F(DeviceMemorySleepTest, APartWakesUpByItsTag) {
  AddressRange* const top = MakeRange(model_, 1, 10);
  AddressRange* const weights = MakeRange(weights_, 3, 20);
  AddressRange* const kv = MakeRange(kv_, 4, 30);
  AddressRange* const other = MakeRange(other_, 2, 40);
  // One part is gone already, elsewhere.
  ASSERT_TRUE(Sleep(kv_, SleepTarget::kDisk).ok());
  EXPECT_EQ(Sleep(model_)->pages, PageCount(4));
  EXPECT_EQ(LivePages(model_), 0u);
  EXPECT_EQ(AsleepPages(model_), 8u);
  EXPECT_EQ(AsleepPages(kv_), 4u);
  EXPECT_TRUE(HoldsAll(other, 40));

  EXPECT_EQ(memory_->Wake(weights_)->pages, PageCount(3));
  EXPECT_TRUE(HoldsAll(weights, 20));
  EXPECT_EQ(AsleepPages(model_), 5u);
  // Host memory of that part is back already.
  EXPECT_EQ(memory_->GetStatistics().asleep_on_host.value(), kPageBytes);
  EXPECT_EQ(memory_->Wake(model_)->pages, PageCount(5));
  EXPECT_TRUE(HoldsAll(top, 10));
  EXPECT_TRUE(HoldsAll(weights, 20));
  EXPECT_TRUE(HoldsAll(kv, 30));
  EXPECT_EQ(AsleepPages(model_), 0u);
}

TEST_F(DeviceMemorySleepTest, SlotsThatSharedAPageShareOneAgain) {
  AddressRange* const first = MakeRange(weights_, 3, 10);
  AddressRange* const second = Reserve(weights_, 4);
  const std::vector<PageHandle> pages = {PageAt(first, 2), PageHandle(),
                                         PageAt(first, 0), PageAt(first, 2)};
  ASSERT_TRUE(memory_->CommitPages(second, PageCount(0), pages).ok());
  WriteAll(second, 1, 50);
  for (const SleepTarget target : {SleepTarget::kHost, SleepTarget::kDisk}) {
    const auto slept = Sleep(weights_, target);
    ASSERT_TRUE(slept.ok());
    EXPECT_EQ(slept->pages, PageCount(4));
    // One of the slots is given up meanwhile; the others share on.
    ASSERT_TRUE(memory_->Wake(model_).ok());
    EXPECT_EQ(LivePages(weights_), 4u);
    EXPECT_EQ(PageAt(second, 0), PageAt(first, 2));
    EXPECT_EQ(PageAt(second, 3), PageAt(first, 2));
    EXPECT_EQ(PageAt(second, 2), PageAt(first, 0));
    EXPECT_TRUE(HoldsAll(first, 10));
    EXPECT_TRUE(Holds(second, 1, 50));
  }
  ASSERT_TRUE(Sleep(weights_).ok());
  ASSERT_TRUE(Decommit(first, 2, 1).ok());
  EXPECT_EQ(AsleepPages(weights_), 4u);
  ASSERT_TRUE(memory_->Wake(weights_).ok());
  EXPECT_EQ(PageAt(second, 0), PageAt(second, 3));
  EXPECT_TRUE(Holds(second, 0, 12));
}

TEST_F(DeviceMemorySleepTest, WakesUpFromWhatOthersGiveOrNotAtAll) {
  AddressRange* const range = MakeRange(weights_, 10, 0);
  ASSERT_TRUE(Sleep(weights_).ok());
  AddressRange* const others = MakeRange(other_, kLimitPages - 4, 500);
  const auto refused = memory_->Wake(weights_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  const auto verdict = OutOfMemoryVerdict::FromStatus(refused.status());
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->requested.value(), 10 * kPageBytes);
  EXPECT_EQ(AsleepPages(weights_), 10u);
  EXPECT_TRUE(HoldsAll(others, 500));

  FakeReclaimer parked(memory_.get(), others);
  memory_->AddReclaimer(&parked);
  ASSERT_TRUE(memory_->Wake(weights_).ok());
  EXPECT_TRUE(HoldsAll(range, 0));
  EXPECT_EQ(LivePages(other_), kLimitPages - 10);
  memory_->RemoveReclaimer(&parked);
}

TEST_F(DeviceMemorySleepTest, WakesUpWithinLimitsOfAllItsOwnersTogether) {
  MakeRange(weights_, 3, 0);
  MakeRange(kv_, 3, 0);
  ASSERT_TRUE(Sleep(model_).ok());
  ASSERT_TRUE(
      memory_->SetOwnerLimits(model_, {.hard = Bytes(5 * kPageBytes)}).ok());
  const auto refused = memory_->Wake(model_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("model"));
  EXPECT_EQ(AsleepPages(model_), 6u);
  EXPECT_TRUE(memory_->Wake(kv_).ok());
  EXPECT_FALSE(memory_->Wake(weights_).ok());
  ASSERT_TRUE(
      memory_->SetOwnerLimits(model_, {.hard = Bytes(6 * kPageBytes)}).ok());
  EXPECT_TRUE(memory_->Wake(weights_).ok());
}

TEST_F(DeviceMemorySleepTest, WhatReclaimersHoldIsNotSaved) {
  class Parked : public FakeReclaimer {
   public:
    using FakeReclaimer::FakeReclaimer;
    PageCount ReclaimFrom(OwnerId owner, PageCount wanted,
                          bool /*cooling*/) override {
      return FakeReclaimer::ReclaimFrom(owner, wanted, /*cooling=*/false);
    }
  };
  MakeRange(weights_, 2, 0);
  AddressRange* const parked = MakeRange(kv_, 3, 0);
  Parked reclaimer(memory_.get(), parked);
  memory_->AddReclaimer(&reclaimer);
  EXPECT_EQ(Sleep(model_)->pages, PageCount(2));
  EXPECT_EQ(AsleepPages(kv_), 0u);
  memory_->RemoveReclaimer(&reclaimer);
}

TEST_F(DeviceMemorySleepTest, WhatCoolsIsLeftToCool) {
  const StreamId stream = MakeStream();
  AddressRange* const range = MakeRange(weights_, 4, 10);
  AddressRange* const sharer = Reserve(weights_, 1);
  const std::vector<PageHandle> shared = {PageAt(range, 1)};
  ASSERT_TRUE(memory_->CommitPages(sharer, PageCount(0), shared).ok());
  streams_.clear();  // the section does not wait for it
  {
    Gate gate(driver_.get(), stream);
    // One page alone, one that lies under a live slot as well.
    ASSERT_TRUE(Decommit(range, 0, 2, FenceOn(stream)).ok());
    const auto slept = Sleep(weights_);
    ASSERT_TRUE(slept.ok());
    EXPECT_EQ(slept->pages, PageCount(3));
    EXPECT_EQ(slept->pages_freed, PageCount(2));
    EXPECT_EQ(memory_->GetStatistics().live, Bytes(0));
    EXPECT_EQ(memory_->GetStatistics().cooling.value(), 2 * kPageBytes);
  }
  streams_.push_back(stream);
  ASSERT_TRUE(driver_->SynchronizeStream(stream).ok());
  memory_->Harvest();
  EXPECT_EQ(memory_->GetStatistics().cooling, Bytes(0));
  ASSERT_TRUE(memory_->Wake(weights_).ok());
  EXPECT_TRUE(Holds(range, 2, 12));
  EXPECT_TRUE(Holds(sharer, 0, 11));
  EXPECT_EQ(Committed(range, 0, 2), 0u);
}

TEST_F(DeviceMemorySleepTest, OthersGoOnWhileContentsAreCopied) {
  AddressRange* const range = MakeRange(weights_, 4, 10);
  AddressRange* const doomed = MakeRange(weights_, 2, 20);
  auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok());
  faulty_->DelayCalls(DriverCall::kCopyToHost, std::chrono::milliseconds(50));
  const uint64_t copies = Calls("AllocatePinned");
  std::thread sleeper([&] {
    const auto slept = memory_->Sleep(*section, weights_);
    EXPECT_TRUE(slept.ok()) << slept.status();
  });
  while (Calls("AllocatePinned") == copies) std::this_thread::yield();
  // Another owner's memory, new memory of this one, and the owner again.
  MakeRange(other_, 3, 30);
  MakeRange(weights_, 1, 40);
  EXPECT_EQ(memory_->Wake(model_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  // What changes a range that is in hand waits.
  memory_->ReleaseRange(doomed, Fence());
  sleeper.join();
  faulty_->ClearFaults();
  EXPECT_EQ(AsleepPages(weights_), 4u);
  EXPECT_EQ(LivePages(weights_), 1u);
  ASSERT_TRUE(memory_->Wake(weights_).ok());
  EXPECT_TRUE(HoldsAll(range, 10));
}

TEST_F(DeviceMemorySleepTest, PagesOfARangeInHandAreNotShared) {
  AddressRange* const range = MakeRange(weights_, 2, 10);
  AddressRange* const sharer = Reserve(weights_, 1);
  ASSERT_TRUE(Sleep(weights_).ok());
  faulty_->DelayCalls(DriverCall::kCopyToDevice, std::chrono::milliseconds(50));
  std::thread waker([&] { EXPECT_TRUE(memory_->Wake(weights_).ok()); });
  while (PageAt(range, 0) == PageHandle()) std::this_thread::yield();
  const std::vector<PageHandle> shared = {PageAt(range, 0)};
  EXPECT_EQ(memory_->CommitPages(sharer, PageCount(0), shared).code(),
            absl::StatusCode::kFailedPrecondition);
  waker.join();
  faulty_->ClearFaults();
  EXPECT_TRUE(memory_->CommitPages(sharer, PageCount(0), shared).ok());
  EXPECT_TRUE(Holds(sharer, 0, 10));
}

TEST_F(DeviceMemorySleepTest, HooksRunWhenItIsOverAndMayChangeWhatMoved) {
  class Hooks : public MemoryHooks {
   public:
    Hooks(DeviceMemory* memory, AddressRange* range)
        : memory_(memory), range_(range) {}
    void OnPagesMapped(const MappingChange& change) override {
      mapped_ += change.pages.value();
      EXPECT_EQ(memory_->Decommit(range_, PageCount(0), PageCount(1), Fence()),
                absl::OkStatus());
    }
    void OnPagesUnmapped(const MappingChange& change) override {
      unmapped_ += change.pages.value();
    }
    uint64_t mapped_ = 0;
    uint64_t unmapped_ = 0;

   private:
    DeviceMemory* const memory_;
    AddressRange* const range_;
  };
  AddressRange* const range = MakeRange(weights_, 3, 10);
  Hooks hooks(memory_.get(), range);
  memory_->AddHooks(&hooks);
  ASSERT_TRUE(Sleep(weights_).ok());
  EXPECT_EQ(hooks.unmapped_, 3u);
  ASSERT_TRUE(memory_->Wake(weights_).ok());
  EXPECT_EQ(hooks.mapped_, 3u);
  EXPECT_EQ(hooks.unmapped_, 4u);
  EXPECT_EQ(LivePages(weights_), 2u);
  memory_->RemoveHooks(&hooks);
}

TEST_F(DeviceMemorySleepTest, ADiskThatIsNotThereIsNamed) {
  AddressRange* const range = MakeRange(weights_, 2, 10);
  SleepOptions options = To(SleepTarget::kDisk);
  options.folder = "/no/such/folder";
  const auto refused = Sleep(weights_, options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("/no/such/folder"));
  EXPECT_TRUE(HoldsAll(range, 10));
  EXPECT_EQ(AsleepPages(weights_), 0u);
}

// A limit on files stands for a disk that is full.
TEST_F(DeviceMemorySleepTest, ADiskWithoutRoomIsNoLackOfDeviceMemory) {
  AddressRange* const range = MakeRange(weights_, 2, 10);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit less = before;
  less.rlim_cur = kPageBytes;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &less), 0);
  const auto refused = Sleep(weights_, To(SleepTarget::kDisk));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition)
      << refused.status();
  const std::string message(refused.status().message());
  EXPECT_THAT(message, HasSubstr("128.00 KiB"));
  EXPECT_THAT(message, HasSubstr("are free there"));
  EXPECT_THAT(message, HasSubstr(To(SleepTarget::kDisk).folder));
  EXPECT_TRUE(HoldsAll(range, 10));
  EXPECT_EQ(AsleepPages(weights_), 0u);
  EXPECT_EQ(memory_->GetStatistics().asleep_on_disk, Bytes(0));
  ASSERT_TRUE(Sleep(weights_, To(SleepTarget::kDisk)).ok());
  ASSERT_TRUE(memory_->Wake(weights_).ok());
  EXPECT_TRUE(HoldsAll(range, 10));
}

TEST_F(DeviceMemorySleepTest, WhatStillSleepsAtTheEndIsGivenBack) {
  for (const SleepTarget target : kTargets) {
    MakeRange(weights_, 2, 10);
    ASSERT_TRUE(Sleep(weights_, target).ok());
    MakeMemory(Options());
  }
}

// ---- Public reports ---------------------------------------------------------

// fzyzcjy/torch_memory_saver#92: memory freed while it was paused was released
// a second time, and resume brought it back.
TEST_F(DeviceMemorySleepTest, TorchMemorySaver92FreedWhilePausedStaysFreed) {
  for (const SleepTarget target : kTargets) {
    AddressRange* const kept = MakeRange(weights_, 3, 10);
    AddressRange* const freed = MakeRange(weights_, 5, 20);
    ASSERT_TRUE(Sleep(weights_, target).ok());
    memory_->ReleaseRange(freed, Fence());
    EXPECT_EQ(AsleepPages(weights_), 3u);
    EXPECT_EQ(memory_->GetStatistics().reserved.value(), 3 * kPageBytes);
    EXPECT_EQ(memory_->Wake(weights_)->pages, PageCount(3));
    if (target != SleepTarget::kDrop) {
      EXPECT_TRUE(HoldsAll(kept, 10));
    }
    EXPECT_EQ(memory_->GetStatistics().asleep_on_host, Bytes(0));
    memory_->ReleaseRange(kept, Fence());
    EXPECT_EQ(memory_->GetStatistics().live, Bytes(0));
  }
}

// vllm-project/vllm#36651: the garbage collector freed tensors on another
// thread in the middle of sleep, and their pages were unmapped twice.
TEST_F(DeviceMemorySleepTest, Vllm36651CollectedInTheMiddleOfSleepGoesOnce) {
  std::vector<AddressRange*> garbage;
  for (uint64_t i = 0; i < 8; ++i) garbage.push_back(MakeRange(kv_, 1, i));
  AddressRange* const kept = MakeRange(kv_, 2, 100);
  auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok());
  faulty_->DelayCalls(DriverCall::kCopyToHost, std::chrono::milliseconds(2));
  faulty_->DelayCalls(DriverCall::kCopyToDevice, std::chrono::milliseconds(2));
  std::thread collector([&] {
    for (AddressRange* const range : garbage) {
      memory_->ReleaseRange(range, Fence());
    }
  });
  EXPECT_TRUE(memory_->Sleep(*section, kv_).ok());
  EXPECT_TRUE(memory_->Wake(kv_).ok());
  collector.join();
  faulty_->ClearFaults();
  EXPECT_EQ(memory_->Health(), absl::OkStatus());
  EXPECT_EQ(LivePages(kv_), 2u);
  EXPECT_EQ(memory_->GetStatistics().asleep, Bytes(0));
  EXPECT_TRUE(HoldsAll(kept, 100));
}

// vllm-project/vllm#45615, #28714: pages were unmapped, and saved, while
// batches that had been queued before were still to write to them.
TEST_F(DeviceMemorySleepTest,
       Vllm45615And28714SleepFollowsTheWorkOfItsSection) {
  AddressRange* const range = MakeRange(kv_, 3, 10);
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  ASSERT_TRUE(driver_
                  ->LaunchHostFunction(stream,
                                       [range] {
                                         for (uint64_t i = 0; i < 3; ++i) {
                                           WriteAll(range, i, 50 + i);
                                         }
                                       })
                  .ok());
  gate.OpenAfter(std::chrono::milliseconds(10));
  ASSERT_TRUE(Sleep(kv_).ok());
  ASSERT_TRUE(memory_->Wake(kv_).ok());
  EXPECT_TRUE(HoldsAll(range, 50));
}

// vllm-project/vllm#16663, fzyzcjy/torch_memory_saver#90: the host memory of a
// sleeping model was kept after it had woken up.
TEST_F(DeviceMemorySleepTest,
       Vllm16663AndTorchMemorySaver90HostMemoryGoesBackWithTheWake) {
  AddressRange* const range = MakeRange(weights_, 20, 10);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Sleep(weights_).ok());
    EXPECT_GT(Calls("AllocatePinned"), Calls("FreePinned"));
    ASSERT_TRUE(memory_->Wake(weights_).ok());
    EXPECT_EQ(Calls("AllocatePinned"), Calls("FreePinned"));
    EXPECT_EQ(memory_->GetStatistics().asleep_on_host, Bytes(0));
  }
  EXPECT_TRUE(HoldsAll(range, 10));
}

}  // namespace
}  // namespace quire
