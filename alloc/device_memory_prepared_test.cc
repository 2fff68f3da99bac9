// Pages made ahead: by callers, and by the thread that keeps some prepared.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using ::testing::IsEmpty;

class DeviceMemoryPreparedTest : public DeviceMemoryFixture {
 protected:
  void MakeMemoryThatPrepares(uint64_t pages) {
    DeviceMemoryOptions options = Options();
    options.prepare_ahead = PageCount(pages);
    MakeMemory(options);
  }
  uint64_t Cached() const {
    return memory_->GetStatistics().cached.value() / kPageBytes;
  }
  void AwaitCached(uint64_t pages) const {
    while (Cached() != pages) std::this_thread::yield();
  }
  // Long enough for a thread that would make pages to have made some.
  static void GiveItTime() {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
};

TEST_F(DeviceMemoryPreparedTest, AThreadKeepsPagesAheadOfCommits) {
  MakeMemoryThatPrepares(6);
  AwaitCached(6);
  AddressRange* const range = Reserve(20);
  for (uint64_t i = 0; i < 20; i += 5) {
    ASSERT_EQ(Commit(range, i, 5), absl::OkStatus());
    AwaitCached(6);
  }
  // None of them had to make a page.
  EXPECT_EQ(memory_->GetStatistics().commits_from_cache, 4u);
  EXPECT_EQ(memory_->GetStatistics().pages_created, 26u);
}

TEST_F(DeviceMemoryPreparedTest, ItStopsAtTheLimitAndGoesOnWhenThatIsRaised) {
  MakeMemoryThatPrepares(6);
  AddressRange* const range = Reserve(kLimitPages);
  ASSERT_EQ(Commit(range, 0, kLimitPages - 2), absl::OkStatus());
  AwaitCached(2);
  ASSERT_EQ(memory_->SetLimit(Bytes((kLimitPages + 1) * kPageBytes)),
            absl::OkStatus());
  AwaitCached(3);
  // What it holds is nobody's: a commit finds all of it.
  EXPECT_EQ(Commit(range, 0, kLimitPages), absl::OkStatus());
  AwaitCached(1);
}

TEST_F(DeviceMemoryPreparedTest, WhatIsTrimmedIsMadeAgainAfterTheNextCommit) {
  MakeMemoryThatPrepares(4);
  AwaitCached(4);
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(4));
  GiveItTime();
  EXPECT_EQ(Cached(), 0u);
  ASSERT_EQ(Commit(Reserve(1), 0, 1), absl::OkStatus());
  AwaitCached(4);
}

TEST_F(DeviceMemoryPreparedTest, ADeviceThatRefusesIsTriedAgain) {
  faulty_->LimitMemory(DeviceId(0), Bytes(2 * kPageBytes));
  MakeMemoryThatPrepares(4);
  AwaitCached(2);
  faulty_->LimitMemory(DeviceId(0), Bytes(kDevicePages * kPageBytes));
  // Nobody says that there is more now.
  AwaitCached(4);
}

TEST_F(DeviceMemoryPreparedTest, ItEndsWithTheMemoryWhateverItIsAt) {
  faulty_->DelayCalls(DriverCall::kCreatePage, std::chrono::milliseconds(2));
  for (int i = 0; i < 10; ++i) {
    MakeMemoryThatPrepares(20);
    std::this_thread::sleep_for(std::chrono::milliseconds(i));
    memory_.reset();
    EXPECT_THAT(driver_->Leaks(), IsEmpty());
  }
}

// Remembers the threads that it runs on.
class ThreadsOfHooks : public MemoryHooks {
 public:
  void OnPressure(const PressureChange& /*change*/) override { Note(); }
  void OnPagesMapped(const MappingChange& /*change*/) override { Note(); }
  void OnPagesUnmapped(const MappingChange& /*change*/) override { Note(); }
  Bytes OnOutOfMemory(const OutOfMemoryVerdict& /*verdict*/) override {
    Note();
    return Bytes(0);
  }
  std::set<std::thread::id> threads() const {
    MutexLock lock(&mutex_);
    return threads_;
  }

 private:
  void Note() {
    MutexLock lock(&mutex_);
    threads_.insert(std::this_thread::get_id());
  }

  mutable Mutex mutex_;
  std::set<std::thread::id> threads_ ABSL_GUARDED_BY(mutex_);
};

// kvcached#371: the thread that made pages ahead wanted the interpreter's lock,
// whose holder waited for it. Here it runs nothing of the program: a caller may
// hold what its own hooks take.
TEST_F(DeviceMemoryPreparedTest, Kvcached371TheThreadRunsNothingOfTheProgram) {
  ThreadsOfHooks hooks;
  faulty_->DelayCalls(DriverCall::kCreatePage, std::chrono::microseconds(200));
  MakeMemoryThatPrepares(6);
  memory_->AddHooks(&hooks);
  for (int round = 0; round < 10; ++round) {
    AddressRange* const range = Reserve(kLimitPages);
    // Up to both levels of pressure, beyond the limit, and back.
    for (uint64_t i = 0; i < kLimitPages; i += 8) {
      EXPECT_EQ(Commit(range, i, 8), absl::OkStatus());
    }
    EXPECT_FALSE(Commit(Reserve(1), 0, 1).ok());
    memory_->ReleaseRange(range, Fence());
    GiveItTime();
    memory_->Trim(PageCount(0));
    memory_->RemoveHooks(&hooks);
    MakeMemoryThatPrepares(6);
    memory_->AddHooks(&hooks);
  }
  memory_->RemoveHooks(&hooks);
  EXPECT_EQ(hooks.threads(),
            std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST_F(DeviceMemoryPreparedTest, ManyThreadsTakeWhatItMakes) {
  MakeMemoryThatPrepares(8);
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (int step = 0; step < 200; ++step) {
        const auto range = memory_->ReserveRange(PageCount(6), kOwner);
        ASSERT_TRUE(range.ok()) << range.status();
        ASSERT_EQ(Commit(*range, 0, 6), absl::OkStatus());
        Write(*range, 5, id);
        if (step % 16 == 0) memory_->Trim(PageCount(0));
        ASSERT_EQ(Read(*range, 5), id);
        memory_->ReleaseRange(*range, Fence());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
}

// ---- Page sizes -------------------------------------------------------------

// The sizes that are used on devices: everything is counted in pages of them.
TEST_F(DeviceMemoryPreparedTest, PagesOfAllSizesBehaveAlike) {
  memory_.reset();
  for (const Bytes page : {MiB(2), MiB(16), MiB(32)}) {
    SCOPED_TRACE(page.value());
    HostDriverOptions driver_options;
    driver_options.granularity = MiB(2);
    driver_options.memory_per_device = Bytes(10 * page.value());
    MakeDriver(driver_options);
    DeviceMemoryOptions options;
    options.page_size = page;
    options.limit = Bytes(8 * page.value());
    options.address_space = Bytes(64 * page.value());
    options.prepare_ahead = PageCount(2);
    MakeMemory(options);
    const auto made = memory_->ReserveRange(PageCount(9), kOwner);
    ASSERT_TRUE(made.ok()) << made.status();
    AddressRange* const range = *made;
    EXPECT_EQ(range->address().value() % page.value(), 0u);
    ASSERT_EQ(Commit(range, 0, 4), absl::OkStatus());
    const auto word = [&](uint64_t slot) -> volatile uint64_t& {
      return *DeviceAddress(range->address().value() + slot * page.value() +
                            page.value() - sizeof(uint64_t))
                  .host_pointer<volatile uint64_t>();
    };
    for (uint64_t i = 0; i < 4; ++i) word(i) = i;
    const std::vector<PageHandle> shared = {
        PageHandle(), memory_->PageAt(range, PageCount(3))};
    ASSERT_EQ(memory_->CommitPages(range, PageCount(4), shared),
              absl::OkStatus());
    EXPECT_EQ(word(5), 3u);
    EXPECT_EQ(memory_->GetStatistics().live.value(), 5 * page.value());
    EXPECT_EQ(memory_->GetStatistics().shared, page);
    ASSERT_EQ(Commit(range, 6, 3), absl::OkStatus());
    const auto other = memory_->ReserveRange(PageCount(1), kOwner);
    ASSERT_TRUE(other.ok()) << other.status();
    const auto verdict = OutOfMemoryVerdict::FromStatus(Commit(*other, 0, 1));
    ASSERT_TRUE(verdict.has_value());
    EXPECT_EQ(verdict->kind, ShortageKind::kLimit);
    EXPECT_EQ(verdict->requested, page);
    ASSERT_EQ(Decommit(range, 0, 9), absl::OkStatus());
    EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(8));
    EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    memory_.reset();
    EXPECT_THAT(driver_->Leaks(), IsEmpty());
  }
}

}  // namespace
}  // namespace quire
