// Every driver call of every operation fails once, and nothing is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DeviceMemoryFaultTest : public DeviceMemoryFixture {
 protected:
  // What a caller can see of the slots: address to (cooling, content).
  using Picture = std::map<uint64_t, std::pair<bool, uint64_t>>;
  Picture TakePicture() const {
    Picture picture;
    for (const auto& entry : memory_->CalculatePageMap()) {
      picture[entry.address.value()] = {
          entry.cooling, *entry.address.host_pointer<volatile uint64_t>()};
    }
    return picture;
  }

  // A range of 12 slots with content i in slot i, live in 2..3 and 7..8: to
  // commit all of it takes three runs, new and cached pages.
  void SetUpRange() {
    range_ = Reserve(12);
    ASSERT_TRUE(Commit(range_, 2, 2).ok());
    ASSERT_TRUE(Commit(range_, 7, 2).ok());
    for (const uint64_t slot : {2, 3, 7, 8}) Write(range_, slot, slot);
    ASSERT_TRUE(memory_->Prepare(PageCount(3)).ok());
  }

  AddressRange* range_ = nullptr;
};

TEST_F(DeviceMemoryFaultTest, ACommitThatFailsAnywhereChangesNothing) {
  for (const DriverCall call : {DriverCall::kCreatePage, DriverCall::kMap}) {
    for (const auto code :
         {absl::StatusCode::kInternal, absl::StatusCode::kResourceExhausted,
          absl::StatusCode::kInvalidArgument}) {
      for (uint64_t n = 1;; ++n) {
        MakeMemory(Options());
        SetUpRange();
        const Picture before = TakePicture();
        const DeviceMemoryStatistics old = memory_->GetStatistics();
        const uint64_t fired = faulty_->faults_fired();
        faulty_->FailCallsFrom(call, n, code);
        const absl::Status status = Commit(range_, 0, 12);
        const bool failed = faulty_->faults_fired() > fired;
        faulty_->ClearFaults();
        EXPECT_EQ(status.ok(), !failed);
        ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
        if (!failed) {
          // As many calls as there are: 5 new pages, 3 runs.
          EXPECT_EQ(n, call == DriverCall::kMap ? 4u : 6u);
          break;
        }
        EXPECT_EQ(status.code(), code) << status;
        EXPECT_EQ(OutOfMemoryVerdict::FromStatus(status).has_value(),
                  code == absl::StatusCode::kResourceExhausted);
        EXPECT_EQ(TakePicture(), before);
        const DeviceMemoryStatistics now = memory_->GetStatistics();
        EXPECT_EQ(now.in_use, old.in_use);
        EXPECT_EQ(now.cached, old.cached);
        EXPECT_EQ(now.quarantined, Bytes(0));
        EXPECT_EQ(memory_->Health(), absl::OkStatus());
        // And the memory is as usable as it was.
        EXPECT_TRUE(Commit(range_, 0, 12).ok());
        EXPECT_EQ(Read(range_, 8), 8u);
      }
    }
  }
}

TEST_F(DeviceMemoryFaultTest, APassingRefusalOfMemoryIsGotOver) {
  SetUpRange();
  faulty_->FailCall(DriverCall::kCreatePage, 1,
                    absl::StatusCode::kResourceExhausted);
  // Something that has cooled makes the second attempt worth it.
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  ASSERT_TRUE(Decommit(range_, 7, 1, FenceOn(stream)).ok());
  gate.OpenAfter(std::chrono::milliseconds(10));
  EXPECT_TRUE(Commit(range_, 0, 7).ok());
  memory_->ReleaseRange(range_, Fence());
}

TEST_F(DeviceMemoryFaultTest, ARollbackThatIsRefusedTooQuarantinesAndSaysSo) {
  SetUpRange();
  // The third run cannot be mapped and the second not be unmapped.
  faulty_->FailCall(DriverCall::kMap, 3, absl::StatusCode::kInternal);
  faulty_->FailCall(DriverCall::kUnmap, 1, absl::StatusCode::kInternal);
  const DeviceMemoryStatistics old = memory_->GetStatistics();
  EXPECT_EQ(Commit(range_, 0, 12).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  const DeviceMemoryStatistics now = memory_->GetStatistics();
  EXPECT_EQ(now.quarantined.value(), 3 * kPageBytes);  // slots 4 to 6
  EXPECT_EQ(now.live, old.live);
  EXPECT_EQ(memory_->Health().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(memory_->Health().message()), HasSubstr("3 pages"));
  // The quarantined slots refuse, the others still work.
  EXPECT_EQ(Commit(range_, 4, 1).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Commit(range_, 0, 4).ok());
  EXPECT_TRUE(Commit(range_, 7, 5).ok());
  EXPECT_TRUE(Decommit(range_, 0, 12).ok());
  // The range keeps its addresses for good, the pages are tried at the end.
  memory_->ReleaseRange(range_, Fence());
  EXPECT_EQ(memory_->GetStatistics().reserved.value(), 12 * kPageBytes);
  EXPECT_EQ(memory_->GetStatistics().mapped.value(), 3 * kPageBytes);
  memory_.reset();
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(DeviceMemoryFaultTest, ARunThatTheDriverLostIsQuarantined) {
  SetUpRange();
  faulty_->FailCall(DriverCall::kMap, 2, absl::StatusCode::kDataLoss);
  EXPECT_EQ(Commit(range_, 0, 12).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(memory_->GetStatistics().quarantined.value(), 3 * kPageBytes);
  EXPECT_EQ(Committed(range_, 0, 12), 4u);
  EXPECT_EQ(Read(range_, 3), 3u);
  memory_->ReleaseRange(range_, Fence());
}

TEST_F(DeviceMemoryFaultTest, AnUnmapThatIsRefusedOnceLosesNothing) {
  for (uint64_t n = 1; n <= 2; ++n) {
    MakeMemory(Options());
    SetUpRange();
    const uint64_t largest =
        memory_->CalculateLargestCommit(OwnerId(0)).value();
    faulty_->FailCall(DriverCall::kUnmap, n, absl::StatusCode::kInternal);
    EXPECT_TRUE(Decommit(range_, 0, 12).ok());
    EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    EXPECT_EQ(memory_->GetStatistics().quarantined, Bytes(0));
    EXPECT_EQ(memory_->GetStatistics().live, Bytes(0));
    EXPECT_EQ(memory_->GetStatistics().cooling, Bytes(0));
    EXPECT_GE(memory_->CalculateLargestCommit(OwnerId(0)).value(), largest);
    EXPECT_EQ(memory_->Health(), absl::OkStatus());
    memory_.reset();
    EXPECT_THAT(driver_->Leaks(), IsEmpty());
  }
}

TEST_F(DeviceMemoryFaultTest, AnUnmapThatIsRefusedTwiceLosesTrackOfNothing) {
  SetUpRange();
  faulty_->FailCallsFrom(DriverCall::kUnmap, 1, absl::StatusCode::kInternal);
  EXPECT_EQ(Decommit(range_, 0, 12).code(), absl::StatusCode::kDataLoss);
  faulty_->ClearFaults();
  EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(memory_->GetStatistics().quarantined.value(), 4 * kPageBytes);
  EXPECT_EQ(memory_->GetStatistics().live, Bytes(0));
  EXPECT_EQ(memory_->Health().code(), absl::StatusCode::kDataLoss);
  memory_.reset();
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(DeviceMemoryFaultTest, AnUnmapForWantOfMappingsIsTriedAgain) {
  SetUpRange();
  // Once for the decommit itself, once for the look at what cools that follows.
  for (const uint64_t n : {1, 2}) {
    faulty_->FailCall(DriverCall::kUnmap, n,
                      absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(Decommit(range_, 0, 4).ok());
  EXPECT_EQ(memory_->GetStatistics().cooling.value(), 2 * kPageBytes);
  EXPECT_EQ(memory_->GetStatistics().quarantined, Bytes(0));
  memory_->Trim(PageCount(UINT64_MAX));
  EXPECT_EQ(memory_->GetStatistics().cooling, Bytes(0));
  // A refusal that lasts is waited for by nobody.
  faulty_->FailCallsFrom(DriverCall::kUnmap, 1,
                         absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Decommit(range_, 7, 2).ok());
  AddressRange* const more = Reserve(kLimitPages);
  EXPECT_EQ(Commit(more, 0, kLimitPages).code(),
            absl::StatusCode::kResourceExhausted);
  faulty_->ClearFaults();
  EXPECT_TRUE(Commit(more, 0, kLimitPages).ok());
  memory_->ReleaseRange(range_, Fence());
  memory_->ReleaseRange(more, Fence());
}

TEST_F(DeviceMemoryFaultTest, APageThatIsNotReleasedStillCounts) {
  ASSERT_TRUE(memory_->Prepare(PageCount(4)).ok());
  faulty_->FailCall(DriverCall::kReleasePage, 2, absl::StatusCode::kInternal);
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(3));
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.in_use, kPage);
  EXPECT_EQ(statistics.quarantined, kPage);
  EXPECT_EQ(statistics.growable.value(), (kLimitPages - 1) * kPageBytes);
  EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  EXPECT_THAT(std::string(memory_->Health().message()),
              HasSubstr("not released"));
  // It is offered again with the next that are given back,
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(1));
  EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
  EXPECT_EQ(memory_->Health(), absl::OkStatus());
  // and where its place is wanted.
  ASSERT_TRUE(memory_->Prepare(PageCount(1)).ok());
  faulty_->FailCall(DriverCall::kReleasePage, 1, absl::StatusCode::kInternal);
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(0));
  EXPECT_EQ(Commit(Reserve(kLimitPages), 0, kLimitPages), absl::OkStatus());
  EXPECT_EQ(memory_->GetStatistics().quarantined, Bytes(0));
  memory_.reset();
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(DeviceMemoryFaultTest, PreparesAllOrNothing) {
  for (uint64_t n = 1; n <= 5; ++n) {
    faulty_->FailCall(DriverCall::kCreatePage, n, absl::StatusCode::kInternal);
    EXPECT_EQ(memory_->Prepare(PageCount(5)).code(),
              absl::StatusCode::kInternal);
    EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
  }
  faulty_->LimitMemory(DeviceId(0), Bytes(4 * kPageBytes));
  const auto verdict =
      OutOfMemoryVerdict::FromStatus(memory_->Prepare(PageCount(5)));
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->requested.value(), 5 * kPageBytes);
  EXPECT_EQ(verdict->free.value(), 4 * kPageBytes);
}

TEST_F(DeviceMemoryFaultTest, AFenceThatTheDriverCannotTellOfIsNotWaitedFor) {
  AddressRange* const range = Reserve(kLimitPages);
  ASSERT_TRUE(Commit(range, 0, kLimitPages).ok());
  ASSERT_TRUE(Decommit(range, 0, 4).ok());
  ASSERT_TRUE(Commit(range, 0, 4).ok());
  const Fence fence = FenceOn(MakeStream());
  faulty_->FailCallsFrom(DriverCall::kQueryEvent, 1,
                         absl::StatusCode::kInternal);
  // The work may still be running: the pages must not be touched.
  ASSERT_TRUE(Decommit(range, 0, 4, fence).ok());
  AddressRange* const more = Reserve(4);
  const absl::Status status = Commit(more, 0, 4);
  const auto verdict = OutOfMemoryVerdict::FromStatus(status);
  ASSERT_TRUE(verdict.has_value()) << status;
  EXPECT_EQ(verdict->kind, ShortageKind::kCooling);
  EXPECT_EQ(verdict->cooling.value(), 4 * kPageBytes);
  faulty_->ClearFaults();
  EXPECT_TRUE(Commit(more, 0, 4).ok());
  memory_->ReleaseRange(range, Fence());
  memory_->ReleaseRange(more, Fence());
}

TEST_F(DeviceMemoryFaultTest, ADeviceThatGivesNoAnswerStillGetsAVerdict) {
  AddressRange* const range = Reserve(kLimitPages + 1);
  faulty_->FailCallsFrom(DriverCall::kGetMemoryInfo, 1,
                         absl::StatusCode::kUnavailable);
  const auto verdict =
      OutOfMemoryVerdict::FromStatus(Commit(range, 0, kLimitPages + 1));
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->kind, ShortageKind::kLimit);
  faulty_->ClearFaults();
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryFaultTest, ACreateThatFailsAnywhereLeavesNothing) {
  memory_.reset();
  DeviceMemoryOptions options = Options();
  options.limit = Bytes(0);
  for (uint64_t n = 1;; ++n) {
    const uint64_t fired = faulty_->faults_fired();
    faulty_->FailCall(n, absl::StatusCode::kInternal);
    auto memory = DeviceMemory::Create(faulty_.get(), &owners_, options);
    const bool failed = faulty_->faults_fired() > fired;
    faulty_->ClearFaults();
    EXPECT_EQ(memory.ok(), !failed);
    if (!failed) break;
    EXPECT_THAT(driver_->Leaks(), IsEmpty());
  }
}

// ---- Shared pages -----------------------------------------------------------

class SharedPageFaultTest : public DeviceMemoryFaultTest {
 protected:
  static constexpr absl::StatusCode kCodes[] = {
      absl::StatusCode::kInternal, absl::StatusCode::kResourceExhausted,
      absl::StatusCode::kDataLoss};

  // `source_` has two pages with contents 100 and 101; `range_` has them as
  // well, in slots 1 and 2, and a page of its own in slot 3.
  void SetUpSharing() {
    source_ = Reserve(2);
    range_ = Reserve(6);
    ASSERT_TRUE(Commit(source_, 0, 2).ok());
    for (const uint64_t slot : {0, 1}) Write(source_, slot, 100 + slot);
    pages_ = {memory_->PageAt(source_, PageCount(0)),
              memory_->PageAt(source_, PageCount(1))};
    ASSERT_TRUE(memory_->CommitPages(range_, PageCount(1), pages_).ok());
    ASSERT_TRUE(Commit(range_, 3, 1).ok());
    Write(range_, 3, 3);
  }
  // Runs `operation` with one fault after another until none fires, on a fresh
  // memory each time. `picture_` and `statistics_` are those before it.
  void WithEachFault(
      const std::function<absl::Status()>& operation,
      const std::function<void(const absl::Status&, absl::StatusCode)>& check) {
    for (const absl::StatusCode code : kCodes) {
      for (uint64_t n = 1;; ++n) {
        SCOPED_TRACE(n);
        SCOPED_TRACE(static_cast<int>(code));
        MakeMemory(Options());
        SetUpSharing();
        picture_ = TakePicture();
        statistics_ = memory_->GetStatistics();
        const uint64_t fired = faulty_->faults_fired();
        faulty_->FailCall(n, code);
        const absl::Status status = operation();
        const bool failed = faulty_->faults_fired() > fired;
        faulty_->ClearFaults();
        ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
        if (!failed) {
          EXPECT_EQ(status, absl::OkStatus());
          EXPECT_GT(n, 2u);
          break;
        }
        check(status, code);
        // The source has lost nothing, whatever became of the other range.
        EXPECT_EQ(Committed(source_, 0, 2), 2u);
        EXPECT_EQ(Read(source_, 0), 100u);
        EXPECT_EQ(Read(source_, 1), 101u);
        memory_.reset();
        EXPECT_THAT(driver_->Leaks(), IsEmpty());
      }
    }
  }

  AddressRange* source_ = nullptr;
  std::vector<PageHandle> pages_;
  Picture picture_;
  DeviceMemoryStatistics statistics_;
};

TEST_F(SharedPageFaultTest, ACommitOfPagesThatFailsAnywhereChangesNothing) {
  const auto commit = [&] {
    return memory_->CommitPages(
        range_, PageCount(4), std::vector<PageHandle>{PageHandle(), pages_[0]});
  };
  WithEachFault(commit, [&](const absl::Status& status, absl::StatusCode code) {
    // A passing lack is got over by asking again where something was freed;
    // nothing was here.
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(TakePicture(), picture_);
    const DeviceMemoryStatistics now = memory_->GetStatistics();
    EXPECT_EQ(now.live, statistics_.live);
    EXPECT_EQ(now.peak_live, statistics_.peak_live);
    if (memory_->Health().ok()) {
      EXPECT_EQ(now.in_use, statistics_.in_use);
      EXPECT_EQ(commit(), absl::OkStatus());
      EXPECT_EQ(Read(range_, 5), 100u);
    } else {
      // The driver lost the run: the shared page is live elsewhere, the new one
      // is not.
      EXPECT_EQ(code, absl::StatusCode::kDataLoss);
      EXPECT_EQ(now.quarantined, kPage);
      EXPECT_EQ(now.mapped.value(),
                statistics_.mapped.value() + 2 * kPageBytes);
      EXPECT_EQ(commit().code(), absl::StatusCode::kDataLoss);
    }
  });
}

TEST_F(SharedPageFaultTest, ARemapThatFailsAnywhereIsUndone) {
  // Slots 2 and 3 both get the first page: the page of slot 3 comes free.
  const auto remap = [&] {
    return memory_->Remap(range_, PageCount(2),
                          std::vector<PageHandle>{pages_[0], pages_[0]});
  };
  WithEachFault(remap, [&](const absl::Status& status, absl::StatusCode code) {
    EXPECT_EQ(status.code(), code) << status;
    const DeviceMemoryStatistics now = memory_->GetStatistics();
    EXPECT_EQ(now.in_use, statistics_.in_use);
    if (memory_->Health().ok()) {
      EXPECT_EQ(TakePicture(), picture_);
      EXPECT_EQ(remap(), absl::OkStatus());
      EXPECT_EQ(Read(range_, 3), 100u);
    } else {
      EXPECT_EQ(code, absl::StatusCode::kDataLoss);
      EXPECT_EQ(Committed(range_, 0, 6), 1u);
      EXPECT_EQ(now.mapped, statistics_.mapped);
      EXPECT_EQ(remap().code(), absl::StatusCode::kFailedPrecondition);
    }
  });
}

TEST_F(SharedPageFaultTest, ARemapThatCannotBeUndoneIsQuarantined) {
  SetUpSharing();
  faulty_->FailCall(DriverCall::kMap, 1, absl::StatusCode::kInternal);
  faulty_->FailCall(DriverCall::kMap, 2, absl::StatusCode::kInternal);
  EXPECT_EQ(memory_
                ->Remap(range_, PageCount(2),
                        std::vector<PageHandle>{pages_[0], pages_[0]})
                .code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
  // Slot 2 had a page that is live elsewhere, slot 3 the only slot of its page.
  const DeviceMemoryStatistics now = memory_->GetStatistics();
  EXPECT_EQ(now.quarantined, kPage);
  EXPECT_EQ(now.live.value(), 2 * kPageBytes);
  EXPECT_EQ(now.mapped.value(), 5 * kPageBytes);
  EXPECT_EQ(now.shared.value(), 2 * kPageBytes);
  EXPECT_EQ(memory_->Health().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(range_, 1), 100u);
  EXPECT_EQ(Commit(range_, 2, 1).code(), absl::StatusCode::kDataLoss);
  // A page that also lies in quarantine is not handed out again.
  memory_->ReleaseRange(source_, Fence());
  EXPECT_EQ(memory_->GetStatistics().live, kPage);
  EXPECT_EQ(memory_->GetStatistics().quarantined.value(), 2 * kPageBytes);
  memory_->ReleaseRange(range_, Fence());
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(1));
  memory_.reset();
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(SharedPageFaultTest, ARemapForWantOfMappingsSaysSo) {
  SetUpSharing();
  faulty_->FailCallsFrom(DriverCall::kMap, 1,
                         absl::StatusCode::kResourceExhausted);
  faulty_->FailCallsFrom(DriverCall::kUnmap, 1,
                         absl::StatusCode::kResourceExhausted);
  const absl::Status status = memory_->Remap(range_, PageCount(3), pages_[0]);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const auto verdict = OutOfMemoryVerdict::FromStatus(
      memory_->DescribeMappingShortage(PageCount(1), kOwner, status));
  ASSERT_TRUE(verdict.has_value()) << status;
  EXPECT_EQ(verdict->kind, ShortageKind::kMappings);
  EXPECT_EQ(verdict->requested, kPage);
  faulty_->ClearFaults();
  EXPECT_EQ(Read(range_, 3), 3u);
}

}  // namespace
}  // namespace quire
