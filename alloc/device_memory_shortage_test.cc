// What DeviceMemory does when pages are short: whom it asks, what it waits for,
// and what it says in the end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "alloc/testing/fake_reclaimer.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using DeviceMemoryShortageTest = DeviceMemoryFixture;

TEST_F(DeviceMemoryShortageTest, AFailedCommitChangesNothing) {
  AddressRange* const range = Reserve(kLimitPages + 1);
  ASSERT_TRUE(Commit(range, 3, 2).ok());
  const DeviceMemoryStatistics before = memory_->GetStatistics();
  EXPECT_EQ(Commit(range, 0, kLimitPages + 1).code(),
            absl::StatusCode::kResourceExhausted);
  const DeviceMemoryStatistics after = memory_->GetStatistics();
  EXPECT_EQ(Committed(range, 0, kLimitPages + 1), 2u);
  EXPECT_EQ(after.in_use, before.in_use);
  EXPECT_EQ(after.cached, before.cached);
  EXPECT_EQ(after.commits, before.commits);
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryShortageTest, TheLimitIsToldApartFromTheDevice) {
  AddressRange* const range = Reserve(kLimitPages + 1);
  ASSERT_TRUE(Commit(range, 0, kLimitPages).ok());
  const absl::Status status = Commit(range, kLimitPages, 1);
  const auto verdict = OutOfMemoryVerdict::FromStatus(status);
  ASSERT_TRUE(verdict.has_value()) << status;
  EXPECT_EQ(verdict->kind, ShortageKind::kLimit);
  EXPECT_EQ(verdict->requested, kPage);
  EXPECT_EQ(verdict->limit.value(), kLimitPages * kPageBytes);
  EXPECT_EQ(verdict->device_total.value(), kDevicePages * kPageBytes);
  ASSERT_EQ(verdict->owners.size(), 1u);
  EXPECT_EQ(verdict->owners[0].first, "weights");
  EXPECT_EQ(verdict->owners[0].second.value(), kLimitPages * kPageBytes);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(limit)"));
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryShortageTest, WhatAnotherProcessHoldsIsToldApart) {
  // Pages that this pool does not know of.
  std::vector<PageHandle> foreign;
  for (uint64_t i = 0; i < kDevicePages - 4; ++i) {
    foreign.push_back(*driver_->CreatePage(DeviceId(0), kPage));
  }
  AddressRange* const range = Reserve(6);
  const absl::Status status = Commit(range, 0, 6);
  const auto verdict = OutOfMemoryVerdict::FromStatus(status);
  ASSERT_TRUE(verdict.has_value()) << status;
  EXPECT_EQ(verdict->kind, ShortageKind::kOtherProcess);
  EXPECT_EQ(verdict->free.value(), 4 * kPageBytes);
  EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
  for (const PageHandle page : foreign) {
    ASSERT_TRUE(driver_->ReleasePage(page).ok());
  }
  EXPECT_TRUE(Commit(range, 0, 6).ok());
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryShortageTest, KernelMappingsAreToldApart) {
  if (driver_->name() != "host") GTEST_SKIP() << "only HostDriver counts them";
  HostDriverOptions options = DriverOptions();
  options.mapping_limit = 12;
  MakeDriver(options);
  MakeMemory(Options());
  AddressRange* const range = Reserve(kLimitPages);
  absl::Status status;
  uint64_t committed = 0;
  for (uint64_t i = 0; i < kLimitPages && status.ok(); i += 2) {
    status = Commit(range, i, 1);
    if (status.ok()) ++committed;
  }
  const auto verdict = OutOfMemoryVerdict::FromStatus(status);
  ASSERT_TRUE(verdict.has_value()) << status;
  EXPECT_EQ(verdict->kind, ShortageKind::kMappings);
  EXPECT_THAT(verdict->advice, HasSubstr("kernel mappings"));
  EXPECT_EQ(memory_->GetStatistics().live.value(), committed * kPageBytes);
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryShortageTest, ReclaimersAreAskedForWhatIsMissingInOrder) {
  AddressRange* const first = Reserve(3);
  AddressRange* const second = Reserve(kLimitPages - 3);
  ASSERT_TRUE(Commit(first, 0, 3).ok());
  ASSERT_TRUE(Commit(second, 0, kLimitPages - 3).ok());
  FakeReclaimer a(memory_.get(), first);
  FakeReclaimer b(memory_.get(), second);
  memory_->AddReclaimer(&a);
  memory_->AddReclaimer(&b);
  AddressRange* const range = Reserve(5);
  ASSERT_TRUE(Commit(range, 0, 5).ok());
  EXPECT_THAT(a.asked_, ::testing::ElementsAre(5u));
  EXPECT_THAT(b.asked_, ::testing::ElementsAre(2u));
  // Trim counts what reclaimers hold as cached.
  EXPECT_EQ(memory_->Trim(PageCount(kLimitPages)).pages_freed, PageCount(0));
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed,
            PageCount(kLimitPages - 5));
  memory_->RemoveReclaimer(&a);
  memory_->RemoveReclaimer(&b);
  for (AddressRange* const each : {first, second, range}) {
    memory_->ReleaseRange(each, Fence());
  }
}

TEST_F(DeviceMemoryShortageTest,
       ReclaimersAreNotAskedForWhatCanStillBeCreated) {
  AddressRange* const held = Reserve(3);
  ASSERT_TRUE(Commit(held, 0, 3).ok());
  FakeReclaimer reclaimer(memory_.get(), held);
  memory_->AddReclaimer(&reclaimer);
  AddressRange* const range = Reserve(kLimitPages - 2);
  ASSERT_TRUE(Commit(range, 0, kLimitPages - 2).ok());
  EXPECT_THAT(reclaimer.asked_, ::testing::ElementsAre(1u));
  memory_->RemoveReclaimer(&reclaimer);
  memory_->ReleaseRange(held, Fence());
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryShortageTest, AShortageCanBeSeenAndDescribedBeforeACommit) {
  AddressRange* const held = Reserve(3);
  AddressRange* const range = Reserve(kLimitPages - 3);
  ASSERT_TRUE(Commit(held, 0, 3).ok());
  ASSERT_TRUE(Commit(range, 0, kLimitPages - 3).ok());
  EXPECT_EQ(memory_->ReclaimablePages(), PageCount(0));
  FakeReclaimer reclaimer(memory_.get(), held);
  memory_->AddReclaimer(&reclaimer);
  EXPECT_EQ(memory_->ReclaimablePages(), PageCount(3));
  const absl::Status status = memory_->DescribeShortage(PageCount(4));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  const auto verdict = OutOfMemoryVerdict::FromStatus(status);
  ASSERT_TRUE(verdict.has_value()) << status;
  EXPECT_EQ(verdict->requested, Bytes(4 * kPageBytes));
  EXPECT_THAT(reclaimer.asked_, IsEmpty());
  memory_->RemoveReclaimer(&reclaimer);
  memory_->ReleaseRange(held, Fence());
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryShortageTest, WhatReclaimersGiveMayStillBeCooling) {
  AddressRange* const held = Reserve(kLimitPages);
  ASSERT_TRUE(Commit(held, 0, kLimitPages).ok());
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  FakeReclaimer reclaimer(memory_.get(), held);
  reclaimer.fence_ = FenceOn(stream);
  memory_->AddReclaimer(&reclaimer);
  gate.OpenAfter(std::chrono::milliseconds(20));
  AddressRange* const range = Reserve(5);
  EXPECT_TRUE(Commit(range, 0, 5).ok());
  // No more was taken than was missing, however long it took to cool.
  EXPECT_THAT(reclaimer.asked_, ::testing::ElementsAre(5u));
  memory_->RemoveReclaimer(&reclaimer);
  memory_->ReleaseRange(held, Fence());
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryShortageTest, MoreThanTheLimitEmptiesNobodysCache) {
  AddressRange* const held = Reserve(4);
  ASSERT_TRUE(Commit(held, 0, 4).ok());
  FakeReclaimer reclaimer(memory_.get(), held);
  memory_->AddReclaimer(&reclaimer);
  AddressRange* const range = Reserve(kLimitPages + 1);
  EXPECT_FALSE(Commit(range, 0, kLimitPages + 1).ok());
  EXPECT_THAT(reclaimer.asked_, IsEmpty());
  memory_->RemoveReclaimer(&reclaimer);
  memory_->ReleaseRange(held, Fence());
  memory_->ReleaseRange(range, Fence());
}

class EmptyPromises : public PageReclaimer {
 public:
  PageCount Reclaim(PageCount wanted) override { return wanted; }
  PageCount Reclaimable() const override { return PageCount(UINT64_MAX); }
  std::string ReclaimerName() const override { return "promises"; }
};

TEST_F(DeviceMemoryShortageTest,
       AReclaimerThatPromisesAndDoesNotGiveEndsInAnError) {
  AddressRange* const range = Reserve(kLimitPages + 1);
  ASSERT_TRUE(Commit(range, 0, kLimitPages).ok());
  EmptyPromises promises;
  EmptyPromises more_promises;
  memory_->AddReclaimer(&promises);
  memory_->AddReclaimer(&more_promises);
  const auto verdict =
      OutOfMemoryVerdict::FromStatus(Commit(range, kLimitPages, 1));
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->kind, ShortageKind::kFragmentation);
  memory_->RemoveReclaimer(&promises);
  memory_->RemoveReclaimer(&more_promises);
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryShortageTest, TryCommitDoesNotWait) {
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  AddressRange* const old = Reserve(kLimitPages);
  ASSERT_EQ(Commit(old, 0, kLimitPages), absl::OkStatus());
  memory_->ReleaseRange(old, FenceOn(stream));
  AddressRange* const range = Reserve(2);
  const auto try_commit = [&] {
    return memory_->TryCommit(range, PageCount(0), PageCount(2));
  };
  EXPECT_EQ(try_commit().code(), absl::StatusCode::kResourceExhausted);
  gate.Open();
  ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  EXPECT_EQ(try_commit(), absl::OkStatus());
  EXPECT_EQ(Committed(range, 0, 2), 2u);
  memory_->ReleaseRange(range, Fence());
}

// ---- Verdicts ---------------------------------------------------------------

class Sparse : public PageReclaimer {
 public:
  PageCount Reclaim(PageCount) override { return PageCount(0); }
  PageCount Reclaimable() const override { return PageCount(0); }
  CompactionEstimate EstimateCompaction() const override {
    ++asked_;
    return {PageCount(3), PageCount(5)};
  }
  std::string ReclaimerName() const override { return "sparse"; }

  mutable int asked_ = 0;
};

TEST_F(DeviceMemoryShortageTest, TheVerdictSaysWhatCompactionWouldFree) {
  Sparse sparse;
  Sparse more;
  memory_->AddReclaimer(&sparse);
  memory_->AddReclaimer(&more);
  AddressRange* const range = Reserve(kLimitPages + 10);
  ASSERT_EQ(Commit(range, 0, kLimitPages), absl::OkStatus());
  const auto verdict =
      OutOfMemoryVerdict::FromStatus(Commit(range, kLimitPages, 7));
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->kind, ShortageKind::kFragmentation);
  EXPECT_EQ(verdict->mesh_frees.value(), 6 * kPageBytes);
  EXPECT_EQ(verdict->relocation_frees.value(), 10 * kPageBytes);
  EXPECT_THAT(verdict->advice, HasSubstr("mesh and relocate"));
  // Those who try again are not kept waiting for an estimate.
  const int asked = sparse.asked_;
  EXPECT_FALSE(
      memory_->TryCommit(range, PageCount(kLimitPages), PageCount(7)).ok());
  EXPECT_FALSE(
      memory_->DescribeShortage(PageCount(1), kOwner, VerdictDetail::kBrief)
          .ok());
  EXPECT_EQ(sparse.asked_, asked);
  memory_->RemoveReclaimer(&sparse);
  memory_->RemoveReclaimer(&more);
}

class NoSleep final : public Sparse {
 public:
  explicit NoSleep(OwnerId owner) : owner_(owner) {}
  bool CanSleep(OwnerId owner) const override { return owner != owner_; }

 private:
  const OwnerId owner_;
};

TEST_F(DeviceMemoryShortageTest, TheVerdictSaysWhatSleepOfOthersWouldFree) {
  const OwnerId server = owners_.Register("server");
  const OwnerId asks = owners_.Register("server/asks");
  const OwnerId part = owners_.Register("server/asks/part");
  const OwnerId beside = owners_.Register("server/beside");
  const OwnerId pinned = owners_.Register("server/pinned");
  std::vector<AddressRange*> ranges;
  uint64_t pages = 1;
  // A different number for each, so that no sum is another's.
  for (const OwnerId owner : {server, asks, part, beside, pinned}) {
    const auto range = memory_->ReserveRange(PageCount(pages), owner);
    ASSERT_TRUE(range.ok()) << range.status();
    ASSERT_EQ(Commit(*range, 0, pages), absl::OkStatus());
    ranges.push_back(*range);
    pages *= 2;
  }
  NoSleep reclaimer(pinned);
  memory_->AddReclaimer(&reclaimer);
  const auto verdict_for = [&](OwnerId owner, VerdictDetail detail) {
    return OutOfMemoryVerdict::FromStatus(
               memory_->DescribeShortage(PageCount(kLimitPages), owner, detail))
        .value_or(OutOfMemoryVerdict());
  };
  // Who asks cannot sleep meanwhile, nor can those above; its parts can.
  EXPECT_EQ(verdict_for(asks, VerdictDetail::kFull).sleep_frees,
            Bytes((4 + 8) * kPageBytes));
  EXPECT_EQ(verdict_for(beside, VerdictDetail::kFull).sleep_frees,
            Bytes((2 + 4) * kPageBytes));
  EXPECT_EQ(verdict_for(kOwner, VerdictDetail::kFull).sleep_frees,
            Bytes((1 + 2 + 4 + 8) * kPageBytes));
  EXPECT_EQ(verdict_for(kOwner, VerdictDetail::kBrief).sleep_frees, Bytes(0));
  memory_->RemoveReclaimer(&reclaimer);
  EXPECT_EQ(verdict_for(kOwner, VerdictDetail::kFull).sleep_frees,
            Bytes(31 * kPageBytes));
  for (AddressRange* const range : ranges) {
    memory_->ReleaseRange(range, Fence());
  }
}

TEST_F(DeviceMemoryShortageTest, TheVerdictNamesStreamsThatAreAwaited) {
  const StreamId fast = MakeStream();
  const StreamId slow = MakeStream();
  Gate fast_gate(driver_.get(), fast);
  Gate slow_gate(driver_.get(), slow);
  AddressRange* const range = Reserve(kLimitPages + 4);
  ASSERT_EQ(Commit(range, 0, kLimitPages), absl::OkStatus());
  ASSERT_EQ(Decommit(range, 0, 2, FenceOn(fast)), absl::OkStatus());
  ASSERT_EQ(Decommit(range, 2, 5, FenceOn(slow)), absl::OkStatus());
  const std::vector<StreamId> both = {fast, slow};
  const auto fence = Fence::Record(faulty_.get(), DeviceId(0), both);
  ASSERT_TRUE(fence.ok()) << fence.status();
  ASSERT_EQ(Decommit(range, 7, 1, *fence), absl::OkStatus());
  const auto verdict = OutOfMemoryVerdict::FromStatus(
      memory_->TryCommit(range, PageCount(kLimitPages), PageCount(4)));
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->kind, ShortageKind::kCooling);
  EXPECT_THAT(
      verdict->awaited,
      ::testing::ElementsAre(AwaitedStream{slow, Bytes(6 * kPageBytes)},
                             AwaitedStream{fast, Bytes(3 * kPageBytes)}));
}

TEST_F(DeviceMemoryShortageTest, TheVerdictTellsWhatHappenedBefore) {
  EventTrace trace(64);
  DeviceMemoryOptions options = Options();
  options.trace = &trace;
  MakeMemory(options);
  AddressRange* const range = Reserve(kLimitPages + 10);
  for (uint64_t i = 0; i < kLimitPages; ++i) {
    ASSERT_EQ(Commit(range, i, 1), absl::OkStatus());
  }
  trace.Mark("prefill");
  const auto verdict =
      OutOfMemoryVerdict::FromStatus(Commit(range, kLimitPages, 2));
  ASSERT_TRUE(verdict.has_value());
  ASSERT_EQ(verdict->recent.size(), 16u);
  const RecentEvent& mark = verdict->recent.back();
  EXPECT_EQ(mark.action, "mark");
  EXPECT_EQ(mark.label, "prefill");
  EXPECT_EQ(mark.nanoseconds_before, 0u);
  const RecentEvent& commit = verdict->recent[14];
  EXPECT_EQ(commit.action, "commit");
  EXPECT_EQ(commit.owner, "weights");
  EXPECT_EQ(commit.size, kPage);
  for (size_t i = 1; i < 16; ++i) {
    EXPECT_LE(verdict->recent[i].nanoseconds_before,
              verdict->recent[i - 1].nanoseconds_before);
  }
  memory_.reset();
}

}  // namespace
}  // namespace quire
