// A forked child cannot use the parent's device memory, and does no harm.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/fork_guard.h"
#include "alloc/testing/device_memory_fixture.h"
#include "alloc/testing/run_in_child.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/runtime.h"

namespace quire {
namespace {

TEST(ForkGuardTest, KnowsChildrenOfChildren) {
  const ForkGuard guard;
  EXPECT_FALSE(guard.in_child());
  EXPECT_EQ(guard.Check(), absl::OkStatus());
  EXPECT_EQ(RunInChild([&] {
              if (!guard.in_child()) return 1;
              if (!absl::IsFailedPrecondition(guard.Check())) return 2;
              // What the child makes is its own, and not its child's.
              const ForkGuard own;
              if (own.in_child()) return 3;
              return RunInChild(
                  [&] { return own.in_child() && guard.in_child() ? 0 : 4; });
            }),
            0);
  EXPECT_FALSE(guard.in_child());
}

class DeviceMemoryForkTest : public DeviceMemoryFixture {
 protected:
  DeviceMemoryForkTest() {
    DeviceMemoryOptions options = Options();
    options.prepare_ahead = PageCount(4);
    MakeMemory(options);
    range_ = Reserve(8);
    EXPECT_EQ(Commit(range_, 0, 4), absl::OkStatus());
  }

  // In the parent; a test's fork is inside of it.
  QuiescentSection BeginSection() {
    auto section = QuiescentSection::Begin(memory_.get(), {});
    EXPECT_TRUE(section.ok()) << section.status();
    return *std::move(section);
  }
  // The number of the first call that was not refused, or 0.
  int CallEverything(const QuiescentSection& section) {
    const PageHandle any;
    const absl::Status calls[] = {
        memory_->ReserveRange(PageCount(1), kOwner).status(),
        Commit(range_, 0, 8),
        memory_->TryCommit(range_, PageCount(4), PageCount(1)),
        memory_->CommitPages(range_, PageCount(4), {&any, 1}),
        memory_->TryCommitPages(range_, PageCount(4), {&any, 1}),
        memory_->Remap(range_, PageCount(0), any),
        Decommit(range_, 0, 4),
        memory_->Gather(kOwner, PageCount(1), PageCount(1), Bytes(0), true),
        memory_->TryMakeRange(kOwner, Bytes(0), {&any, 1}).status(),
        memory_->TryReserveRange(PageCount(1), kOwner, Bytes(0)).status(),
        memory_->TryBackSlots(range_, PageCount(4), PageCount(1)),
        memory_->Prepare(PageCount(8)),
        memory_->SetOwner(range_, kUnnamedOwner),
        memory_->SetLimit(MiB(1)),
        memory_->SetOwnerLimits(kOwner, {.hard = MiB(1)}),
        memory_->DescribeShortage(PageCount(1)),
        memory_->DescribeMappingShortage(PageCount(1), kOwner,
                                         absl::OkStatus()),
        memory_->Sleep(section, kOwner).status(),
        memory_->Wake(kOwner).status(),
        QuiescentSection::Begin(memory_.get(), {}).status(),
        memory_->Health(),
        memory_->CheckInvariants(),
    };
    int number = 1;
    for (const absl::Status& status : calls) {
      if (!absl::IsFailedPrecondition(status)) return number;
      ++number;
    }
    // Those that return no status do nothing.
    memory_->ReleaseRange(range_, Fence());
    memory_->AddReclaimer(nullptr);
    memory_->RemoveReclaimer(nullptr);
    memory_->AddHooks(nullptr);
    memory_->RemoveHooks(nullptr);
    std::vector<PageHandle> pages;
    memory_->AppendPages(range_, PageCount(0), PageCount(4), &pages);
    const bool empty =
        pages.empty() && memory_->CalculateLargestCommit(kOwner).zero() &&
        memory_->Trim(PageCount(0)).pages_freed.zero() &&
        memory_->Harvest().zero() && memory_->ReclaimablePages().zero() &&
        memory_->CommittedPages(range_, PageCount(0), PageCount(8)).zero() &&
        memory_->PageAt(range_, PageCount(0)) == PageHandle() &&
        memory_->GetStatistics().live.zero() &&
        memory_->GetOwnerStatistics().empty() &&
        memory_->GetOwnerStatistics(kOwner).live.zero() &&
        memory_->GetLiveByOwner().empty() &&
        memory_->CalculatePageMap().empty() &&
        !memory_->AskOutOfMemoryHooks(absl::ResourceExhaustedError("")) &&
        memory_->in_forked_child();
    return empty ? 0 : number;
  }

  AddressRange* range_;
};

TEST_F(DeviceMemoryForkTest, EveryCallIsRefusedAndTheParentGoesOn) {
  for (uint64_t i = 0; i < 4; ++i) Write(range_, i, 40 + i);
  const DeviceMemoryStatistics before = memory_->GetStatistics();
  QuiescentSection section = BeginSection();
  EXPECT_EQ(RunInChild([&] {
              if (const int number = CallEverything(section); number != 0) {
                return number;
              }
              section.End();
              memory_.reset();
              return 0;
            }),
            0);
  EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(memory_->GetStatistics().live, before.live);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Read(range_, i), 40 + i);
  EXPECT_EQ(Commit(range_, 0, 8), absl::OkStatus());
  EXPECT_FALSE(memory_->in_forked_child());
}

TEST_F(DeviceMemoryForkTest, AChildDoesNotWaitForLocksOfThreadsItDoesNotHave) {
  if (!kChildrenOfThreadsMayAllocate) {
    GTEST_SKIP() << "the sanitizer's allocator may hang in such a child";
  }
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        const auto range = memory_->ReserveRange(PageCount(4), kOwner);
        ASSERT_TRUE(range.ok()) << range.status();
        EXPECT_EQ(Commit(*range, 0, 4), absl::OkStatus());
        memory_->ReleaseRange(*range, Fence());
      }
    });
  }
  const QuiescentSection section = BeginSection();
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(RunInChild([&] {
                const int number = CallEverything(section);
                memory_.reset();
                return number;
              }),
              0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
}

TEST(RuntimeForkTest, AChildMayEndTheRuntimeOfItsParent) {
  HostDriverOptions driver_options;
  driver_options.memory_per_device = MiB(64);
  auto driver = HostDriver::Create(driver_options);
  ASSERT_TRUE(driver.ok()) << driver.status();
  RuntimeOptions options;
  options.prepare_ahead = PageCount(2);
  auto runtime = Runtime::Create(*std::move(driver), options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  // The driver has a thread that the child does not have.
  const auto stream = (*runtime)->driver()->CreateStream(DeviceId(0));
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(RunInChild([&] {
              runtime->reset();
              return 0;
            }),
            0);
  const auto address = (*runtime)->allocator()->Allocate(MiB(3));
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ((*runtime)->allocator()->Free(*address), absl::OkStatus());
  EXPECT_EQ((*runtime)->driver()->DestroyStream(*stream), absl::OkStatus());
}

}  // namespace
}  // namespace quire
