// Limits of a device memory and of its owners, while it is in use.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "alloc/testing/fake_reclaimer.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class DeviceMemoryLimitsTest : public DeviceMemoryFixture {
 protected:
  static Bytes Pages(uint64_t pages) { return Bytes(pages * kPageBytes); }
  AddressRange* ReserveFor(OwnerId owner, uint64_t pages) {
    const auto range = memory_->ReserveRange(PageCount(pages), owner);
    EXPECT_TRUE(range.ok()) << range.status();
    return range.ok() ? *range : nullptr;
  }
  AddressRange* CommitFor(OwnerId owner, uint64_t pages) {
    AddressRange* const range = ReserveFor(owner, pages);
    EXPECT_EQ(Commit(range, 0, pages), absl::OkStatus());
    return range;
  }
  static OutOfMemoryVerdict VerdictOf(const absl::Status& status) {
    const auto verdict = OutOfMemoryVerdict::FromStatus(status);
    EXPECT_TRUE(verdict.has_value()) << status;
    return verdict.value_or(OutOfMemoryVerdict());
  }
  uint64_t LiveOf(OwnerId owner) const {
    return memory_->GetOwnerStatistics(owner).live.value() / kPageBytes;
  }

  OwnerId server_ = owners_.Register("server");
  OwnerId llama_ = owners_.Register("llama", server_);
  OwnerId kv_ = owners_.Register("kv", llama_);
  OwnerId whisper_ = owners_.Register("whisper", server_);
};

// ---- Of owners --------------------------------------------------------------

TEST_F(DeviceMemoryLimitsTest, AHardLimitHoldsForTheOwnerAndAllBelowIt) {
  ASSERT_EQ(memory_->SetOwnerLimits(llama_, {.hard = Pages(10)}),
            absl::OkStatus());
  CommitFor(llama_, 4);
  AddressRange* const range = ReserveFor(kv_, 8);
  const OutOfMemoryVerdict verdict = VerdictOf(Commit(range, 0, 7));
  EXPECT_EQ(verdict.kind, ShortageKind::kLimit);
  EXPECT_EQ(verdict.requested, Pages(7));
  EXPECT_EQ(verdict.free, Pages(6));
  EXPECT_EQ(verdict.owner_limit,
            (OwnerShortage{"server/llama", Pages(10), Pages(4)}));
  EXPECT_THAT(verdict.advice, HasSubstr("server/llama"));
  EXPECT_EQ(Committed(range, 0, 8), 0u);
  EXPECT_EQ(Commit(range, 0, 6), absl::OkStatus());
  // Others are free to take the rest.
  CommitFor(whisper_, kLimitPages - 10);
  const OwnerStatistics statistics = memory_->GetOwnerStatistics(llama_);
  EXPECT_EQ(statistics.own_live, Pages(4));
  EXPECT_EQ(statistics.live, Pages(10));
  EXPECT_EQ(statistics.peak_live, Pages(10));
  EXPECT_EQ(statistics.hard_room, Bytes(0));
  EXPECT_EQ(statistics.limits, (OwnerLimits{.hard = Pages(10)}));
  EXPECT_EQ(memory_->GetOwnerStatistics(server_).live, Pages(kLimitPages));
  EXPECT_EQ(memory_->GetLiveByOwner()[server_.value()], Bytes(0));
}

TEST_F(DeviceMemoryLimitsTest, MoreThanAHardLimitEmptiesNobodysCache) {
  AddressRange* const cached = CommitFor(kv_, 4);
  FakeReclaimer reclaimer(memory_.get(), cached);
  memory_->AddReclaimer(&reclaimer);
  ASSERT_EQ(memory_->SetOwnerLimits(llama_, {.hard = Pages(6)}),
            absl::OkStatus());
  AddressRange* const range = ReserveFor(llama_, 7);
  EXPECT_EQ(Commit(range, 0, 7).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(reclaimer.asked_, IsEmpty());
  EXPECT_THAT(reclaimer.asked_for_, IsEmpty());
  // As much as the limit comes from the owner's own cache and nobody else's.
  EXPECT_EQ(Commit(range, 0, 5), absl::OkStatus());
  EXPECT_THAT(reclaimer.asked_, IsEmpty());
  EXPECT_THAT(reclaimer.asked_for_, ElementsAre(Pair(llama_, 3u)));
  EXPECT_EQ(LiveOf(llama_), 6u);
  memory_->RemoveReclaimer(&reclaimer);
}

TEST_F(DeviceMemoryLimitsTest, CachesBeyondASoftLimitGoFirst) {
  AddressRange* const patient = CommitFor(whisper_, 10);
  AddressRange* const greedy = CommitFor(kv_, kLimitPages - 10);
  FakeReclaimer first(memory_.get(), patient);
  FakeReclaimer second(memory_.get(), greedy);
  memory_->AddReclaimer(&first);
  memory_->AddReclaimer(&second);
  ASSERT_EQ(memory_->SetOwnerLimits(llama_, {.soft = Pages(kLimitPages - 13)}),
            absl::OkStatus());
  EXPECT_EQ(memory_->GetOwnerStatistics(llama_).over_soft, Pages(3));
  AddressRange* const range = ReserveFor(kOwner, 5);
  EXPECT_EQ(Commit(range, 0, 5), absl::OkStatus());
  // Three from the owner beyond its limit, then two in the usual order.
  EXPECT_EQ(LiveOf(kv_), kLimitPages - 13);
  EXPECT_EQ(LiveOf(whisper_), 8u);
  EXPECT_THAT(first.asked_, ElementsAre(2u));
  EXPECT_THAT(second.asked_, IsEmpty());
  memory_->RemoveReclaimer(&first);
  memory_->RemoveReclaimer(&second);
}

TEST_F(DeviceMemoryLimitsTest, AReservedMinimumIsNotToBeHadByOthers) {
  ASSERT_EQ(memory_->SetOwnerLimits(llama_, {.reserved_minimum = Pages(12)}),
            absl::OkStatus());
  EXPECT_EQ(memory_->GetOwnerStatistics(whisper_).allowance,
            Pages(kLimitPages - 12));
  AddressRange* const range = ReserveFor(whisper_, kLimitPages);
  const OutOfMemoryVerdict verdict =
      VerdictOf(Commit(range, 0, kLimitPages - 11));
  EXPECT_EQ(verdict.kind, ShortageKind::kLimit);
  EXPECT_EQ(verdict.reserved_for_others, Pages(12));
  EXPECT_EQ(verdict.free, Pages(kLimitPages - 12));
  EXPECT_EQ(verdict.owner_limit, std::nullopt);
  EXPECT_THAT(verdict.advice, HasSubstr("reserved for other owners"));
  EXPECT_EQ(Commit(range, 0, kLimitPages - 12), absl::OkStatus());
  CommitFor(kv_, 12);
  EXPECT_EQ(memory_->GetStatistics().live, Pages(kLimitPages));
}

TEST_F(DeviceMemoryLimitsTest, WhatCachesGiveMakesRoomBesideAMinimum) {
  ASSERT_EQ(memory_->SetOwnerLimits(llama_, {.reserved_minimum = Pages(12)}),
            absl::OkStatus());
  AddressRange* const cached = CommitFor(whisper_, kLimitPages - 12);
  FakeReclaimer reclaimer(memory_.get(), cached);
  memory_->AddReclaimer(&reclaimer);
  CommitFor(kOwner, 4);
  EXPECT_THAT(reclaimer.asked_, ElementsAre(4u));
  memory_->RemoveReclaimer(&reclaimer);
}

TEST_F(DeviceMemoryLimitsTest, ALimitMayFallBelowWhatIsUsed) {
  AddressRange* const range = CommitFor(kv_, 10);
  ASSERT_EQ(
      memory_->SetOwnerLimits(llama_, {.soft = Pages(2), .hard = Pages(4)}),
      absl::OkStatus());
  OwnerStatistics statistics = memory_->GetOwnerStatistics(llama_);
  EXPECT_EQ(statistics.over_hard, Pages(6));
  EXPECT_EQ(statistics.over_soft, Pages(8));
  EXPECT_EQ(statistics.hard_room, Bytes(0));
  EXPECT_EQ(statistics.allowance, Bytes(0));
  AddressRange* const more = ReserveFor(llama_, 2);
  EXPECT_EQ(VerdictOf(Commit(more, 0, 1)).owner_limit,
            (OwnerShortage{"server/llama", Pages(4), Pages(10)}));
  // What it has, it keeps; what is given up does not come back.
  EXPECT_EQ(Commit(range, 0, 10), absl::OkStatus());
  ASSERT_EQ(Decommit(range, 3, 7), absl::OkStatus());
  EXPECT_FALSE(Commit(range, 3, 2).ok());
  EXPECT_EQ(Commit(range, 3, 1), absl::OkStatus());
  // And a limit taken away is none.
  ASSERT_EQ(memory_->SetOwnerLimits(llama_, {}), absl::OkStatus());
  EXPECT_EQ(Commit(range, 0, 10), absl::OkStatus());
  statistics = memory_->GetOwnerStatistics(llama_);
  EXPECT_EQ(statistics.over_hard, Bytes(0));
  EXPECT_EQ(statistics.hard_room, Bytes(UINT64_MAX));
}

TEST_F(DeviceMemoryLimitsTest, WhatComesBackFromCoolingCountsAgain) {
  ASSERT_EQ(memory_->SetOwnerLimits(kv_, {.hard = Pages(4)}), absl::OkStatus());
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  AddressRange* const range = CommitFor(kv_, 4);
  // Two slots of one page, which counts once when it comes back.
  ASSERT_EQ(Decommit(range, 1, 1), absl::OkStatus());
  const std::vector<PageHandle> first = {memory_->PageAt(range, PageCount(0))};
  ASSERT_EQ(memory_->CommitPages(range, PageCount(1), first), absl::OkStatus());
  ASSERT_EQ(Decommit(range, 0, 4, FenceOn(stream)), absl::OkStatus());
  EXPECT_EQ(LiveOf(kv_), 0u);
  AddressRange* const more = CommitFor(kv_, 2);
  EXPECT_EQ(VerdictOf(Commit(range, 0, 4)).owner_limit->owner,
            "server/llama/kv");
  EXPECT_EQ(Commit(range, 0, 3), absl::OkStatus());
  EXPECT_EQ(LiveOf(kv_), 4u);
  gate.Open();
  memory_->ReleaseRange(more, Fence());
}

TEST_F(DeviceMemoryLimitsTest, APageUnderSeveralSlotsCountsOnce) {
  ASSERT_EQ(memory_->SetOwnerLimits(kv_, {.hard = Pages(1)}), absl::OkStatus());
  AddressRange* const range = CommitFor(kv_, 1);
  AddressRange* const more = ReserveFor(kv_, 4);
  const std::vector<PageHandle> pages(3, memory_->PageAt(range, PageCount(0)));
  EXPECT_EQ(memory_->CommitPages(more, PageCount(0), pages), absl::OkStatus());
  EXPECT_FALSE(Commit(more, 3, 1).ok());
  EXPECT_EQ(LiveOf(kv_), 1u);
}

TEST_F(DeviceMemoryLimitsTest, PagesChangeHandsUnderTheLimitsOfTheirNewOwner) {
  ASSERT_EQ(memory_->SetOwnerLimits(kv_, {.hard = Pages(3)}), absl::OkStatus());
  AddressRange* const range = CommitFor(whisper_, 4);
  const absl::Status refused = memory_->SetOwner(range, kv_);
  EXPECT_EQ(VerdictOf(refused).owner_limit,
            (OwnerShortage{"server/llama/kv", Pages(3), Bytes(0)}));
  EXPECT_EQ(range->owner(), whisper_);
  EXPECT_EQ(LiveOf(whisper_), 4u);
  ASSERT_EQ(Decommit(range, 0, 1), absl::OkStatus());
  EXPECT_EQ(memory_->SetOwner(range, kv_), absl::OkStatus());
  EXPECT_EQ(LiveOf(whisper_), 0u);
  EXPECT_EQ(memory_->GetOwnerStatistics(kv_).peak_live, Pages(3));
}

TEST_F(DeviceMemoryLimitsTest, RefusesLimitsThatMakeNoSense) {
  using Code = absl::StatusCode;
  const auto code = [&](OwnerId owner, OwnerLimits limits) {
    return memory_->SetOwnerLimits(owner, limits).code();
  };
  const Bytes less(kPageBytes - 1);
  EXPECT_EQ(code(kv_, {.soft = less}), Code::kInvalidArgument);
  EXPECT_EQ(code(kv_, {.hard = less}), Code::kInvalidArgument);
  EXPECT_EQ(code(kv_, {.soft = Pages(2), .hard = Pages(1)}),
            Code::kInvalidArgument);
  EXPECT_EQ(code(kv_, {.hard = Pages(1), .reserved_minimum = Pages(2)}),
            Code::kInvalidArgument);
  EXPECT_EQ(code(OwnerId(kMaxOwners), {}), Code::kInvalidArgument);
  EXPECT_EQ(code(kv_, {.reserved_minimum = Bytes(UINT64_MAX)}),
            Code::kFailedPrecondition);
  EXPECT_EQ(code(kv_, {.soft = Bytes(UINT64_MAX)}), Code::kOk);
  EXPECT_EQ(memory_->GetOwnerStatistics(OwnerId(kMaxOwners)).live, Bytes(0));
  std::vector<OwnerId> known;
  for (const OwnerStatistics& each : memory_->GetOwnerStatistics()) {
    known.push_back(each.owner);
  }
  EXPECT_THAT(known, ElementsAre(server_, llama_, kv_));
}

// ---- Of the memory ----------------------------------------------------------

TEST_F(DeviceMemoryLimitsTest, TheLimitOfTheMemoryMayChange) {
  AddressRange* const range = CommitFor(kOwner, 10);
  ASSERT_EQ(memory_->Prepare(PageCount(6)), absl::OkStatus());
  // Unmapped pages go back at once, as far as that is needed.
  ASSERT_EQ(memory_->SetLimit(Pages(13)), absl::OkStatus());
  EXPECT_EQ(memory_->limit(), Pages(13));
  DeviceMemoryStatistics statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.limit, Pages(13));
  EXPECT_EQ(statistics.in_use, Pages(13));
  EXPECT_EQ(statistics.cached, Pages(3));
  EXPECT_EQ(statistics.over_limit, Bytes(0));
  ASSERT_EQ(memory_->SetLimit(Pages(4)), absl::OkStatus());
  statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.over_limit, Pages(6));
  EXPECT_EQ(statistics.growable, Bytes(0));
  EXPECT_EQ(statistics.cached, Bytes(0));
  AddressRange* const more = ReserveFor(kOwner, 2);
  EXPECT_EQ(VerdictOf(Commit(more, 0, 1)).kind, ShortageKind::kLimit);
  // Pages that are given up go back until the limit is met.
  ASSERT_EQ(Decommit(range, 0, 8), absl::OkStatus());
  statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.in_use, Pages(4));
  EXPECT_EQ(statistics.cached, Pages(2));
  EXPECT_EQ(Commit(more, 0, 2), absl::OkStatus());
  ASSERT_EQ(memory_->SetLimit(Pages(5)), absl::OkStatus());
  EXPECT_EQ(Commit(range, 0, 1), absl::OkStatus());
  EXPECT_FALSE(Commit(range, 1, 1).ok());
  EXPECT_EQ(memory_->SetLimit(Bytes(kPageBytes - 1)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceMemoryLimitsTest, ACommitThatWaitsSeesAHigherLimit) {
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  AddressRange* const range = CommitFor(kOwner, kLimitPages);
  // Something cools for as long as it takes, so that the commit does wait.
  ASSERT_EQ(Decommit(range, 0, 1, FenceOn(stream)), absl::OkStatus());
  AddressRange* const more = ReserveFor(kOwner, 4);
  std::thread raiser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(memory_->SetLimit(Pages(kLimitPages + 4)), absl::OkStatus());
  });
  EXPECT_EQ(Commit(more, 0, 4), absl::OkStatus());
  raiser.join();
  gate.Open();
}

TEST_F(DeviceMemoryLimitsTest, HeadroomIsLeftOfWhatIsFreeAtThatTime) {
  DeviceMemoryOptions options = Options();
  options.limit = Pages(kDevicePages);
  options.headroom = Pages(8);
  MakeMemory(options);
  AddressRange* const range = ReserveFor(kOwner, kDevicePages);
  const OutOfMemoryVerdict verdict =
      VerdictOf(Commit(range, 0, kDevicePages - 7));
  EXPECT_EQ(verdict.kind, ShortageKind::kLimit);
  EXPECT_EQ(verdict.free, Pages(kDevicePages - 8));
  EXPECT_THAT(verdict.advice, HasSubstr("headroom"));
  EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
  EXPECT_EQ(Commit(range, 0, 20), absl::OkStatus());
  // Another process takes what it finds: the headroom stays its own.
  std::vector<PageHandle> foreign;
  for (int i = 0; i < 24; ++i) {
    foreign.push_back(*driver_->CreatePage(DeviceId(0), kPage));
  }
  EXPECT_FALSE(Commit(range, 20, 1).ok());
  EXPECT_FALSE(memory_->Prepare(PageCount(1)).ok());
  // Pages that exist may be used.
  ASSERT_EQ(Decommit(range, 0, 10), absl::OkStatus());
  EXPECT_EQ(Commit(range, 10, 14), absl::OkStatus());
  for (const PageHandle page : foreign) {
    ASSERT_EQ(driver_->ReleasePage(page), absl::OkStatus());
  }
  EXPECT_EQ(Commit(range, 0, 10), absl::OkStatus());
  // A driver that does not say what is free gives no page.
  faulty_->FailCallsFrom(DriverCall::kGetMemoryInfo, 1,
                         absl::StatusCode::kUnavailable);
  EXPECT_EQ(memory_->CalculateLargestCommit(kOwner), PageCount(0));
  EXPECT_EQ(Commit(range, 24, 1).code(), absl::StatusCode::kUnavailable);
  faulty_->ClearFaults();
  EXPECT_EQ(Commit(range, 24, 1), absl::OkStatus());
}

TEST_F(DeviceMemoryLimitsTest, TheDefaultLimitLeavesTheHeadroom) {
  DeviceMemoryOptions options = Options();
  options.limit = Bytes(0);
  options.headroom = Pages(5);
  MakeMemory(options);
  EXPECT_EQ(memory_->GetStatistics().limit, Pages(kDevicePages - 5));
  memory_.reset();
  options.headroom = Pages(kDevicePages);
  EXPECT_EQ(
      DeviceMemory::Create(faulty_.get(), &owners_, options).status().code(),
      absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace quire
