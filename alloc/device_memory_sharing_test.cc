// One physical page under several slots: CommitPages, PageAt, Remap, and what
// the rest of DeviceMemory makes of such pages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

constexpr PageHandle kAny;

class DeviceMemorySharingTest : public DeviceMemoryFixture {
 protected:
  PageHandle PageAt(const AddressRange* range, uint64_t slot) const {
    return memory_->PageAt(range, PageCount(slot));
  }
  absl::Status CommitPages(AddressRange* range, uint64_t first,
                           const std::vector<PageHandle>& pages) {
    return memory_->CommitPages(range, PageCount(first), pages);
  }
  absl::Status Remap(AddressRange* range, uint64_t first,
                     const std::vector<PageHandle>& pages) {
    return memory_->Remap(range, PageCount(first), pages);
  }
  // In pages.
  struct Figures {
    uint64_t live, cooling, mapped, shared, in_use;
    bool operator==(const Figures&) const = default;
  };
  Figures GetFigures() const {
    const DeviceMemoryStatistics statistics = memory_->GetStatistics();
    return {statistics.live.value() / kPageBytes,
            statistics.cooling.value() / kPageBytes,
            statistics.mapped.value() / kPageBytes,
            statistics.shared.value() / kPageBytes,
            statistics.in_use.value() / kPageBytes};
  }
};

TEST_F(DeviceMemorySharingTest, TheEndOfOneRangeIsTheStartOfAnother) {
  AddressRange* const first = Reserve(3);
  AddressRange* const second = Reserve(3);
  ASSERT_EQ(Commit(first, 0, 3), absl::OkStatus());
  const PageHandle tail = PageAt(first, 2);
  const uint64_t maps = Calls("Map");
  ASSERT_EQ(CommitPages(second, 0, {tail, kAny, kAny}), absl::OkStatus());
  EXPECT_EQ(Calls("Map"), maps + 1);
  EXPECT_EQ(PageAt(second, 0), tail);
  EXPECT_NE(PageAt(second, 1), tail);
  EXPECT_EQ(Committed(second, 0, 3), 3u);
  Write(first, 2, 42);
  EXPECT_EQ(Read(second, 0), 42u);
  EXPECT_EQ(GetFigures(), (Figures{5, 0, 6, 1, 5}));
  EXPECT_EQ(memory_->live_bytes(), Bytes(5 * kPageBytes));
  EXPECT_EQ(memory_->GetLiveByOwner()[kOwner.value()], Bytes(5 * kPageBytes));

  // The page stays as long as one of them has it.
  memory_->ReleaseRange(first, Fence());
  EXPECT_EQ(Read(second, 0), 42u);
  EXPECT_EQ(GetFigures(), (Figures{3, 0, 3, 0, 5}));
  memory_->ReleaseRange(second, Fence());
  EXPECT_EQ(GetFigures(), (Figures{0, 0, 0, 0, 5}));
  EXPECT_EQ(memory_->live_bytes(), Bytes(0));
}

TEST_F(DeviceMemorySharingTest, OnePageFillsAWholeRange) {
  AddressRange* const one = Reserve(1);
  ASSERT_EQ(Commit(one, 0, 1), absl::OkStatus());
  const PageHandle page = PageAt(one, 0);
  // More slots than there are pages: none is taken.
  AddressRange* const many = Reserve(kLimitPages + 8);
  ASSERT_EQ(
      CommitPages(many, 0, std::vector<PageHandle>(kLimitPages + 8, page)),
      absl::OkStatus());
  EXPECT_EQ(GetFigures(), (Figures{1, 0, kLimitPages + 9, kLimitPages + 8, 1}));
  EXPECT_EQ(memory_->GetStatistics().commits_from_cache, 1u);
  ASSERT_EQ(Decommit(many, 3, kLimitPages), absl::OkStatus());
  EXPECT_EQ(GetFigures(), (Figures{1, 0, 9, 8, 1}));
  memory_->ReleaseRange(one, Fence());
  memory_->ReleaseRange(many, Fence());
  EXPECT_EQ(GetFigures(), (Figures{0, 0, 0, 0, 1}));
}

TEST_F(DeviceMemorySharingTest, PageAtKnowsLiveSlotsOnly) {
  AddressRange* const range = Reserve(4);
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  ASSERT_EQ(Commit(range, 0, 2), absl::OkStatus());
  ASSERT_EQ(Decommit(range, 1, 1, FenceOn(stream)), absl::OkStatus());
  EXPECT_NE(PageAt(range, 0), kAny);
  EXPECT_EQ(PageAt(range, 1), kAny);  // cooling
  EXPECT_EQ(PageAt(range, 2), kAny);  // unbacked
  EXPECT_EQ(PageAt(range, 4), kAny);  // none
  EXPECT_EQ(PageAt(range, UINT64_MAX), kAny);
  gate.Open();
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemorySharingTest, RefusesWhatCannotBeSharedAndChangesNothing) {
  const OwnerId kv = owners_.Register("kv");
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  AddressRange* const source = Reserve(3);
  AddressRange* const foreign = *memory_->ReserveRange(PageCount(1), kv);
  AddressRange* const range = Reserve(4);
  ASSERT_EQ(Commit(source, 0, 2), absl::OkStatus());
  ASSERT_EQ(Commit(foreign, 0, 1), absl::OkStatus());
  ASSERT_EQ(Commit(range, 3, 1), absl::OkStatus());
  const PageHandle page = PageAt(source, 0);
  const PageHandle cooling = PageAt(source, 1);
  ASSERT_EQ(Decommit(source, 1, 1, FenceOn(stream)), absl::OkStatus());
  ASSERT_EQ(memory_->Prepare(PageCount(2)), absl::OkStatus());
  const Figures before = GetFigures();
  const auto refusal = [&](const std::vector<PageHandle>& pages) {
    const absl::Status status = CommitPages(range, 1, pages);
    EXPECT_EQ(GetFigures(), before);
    return status.code();
  };
  using Code = absl::StatusCode;
  EXPECT_EQ(refusal({kAny, cooling}), Code::kFailedPrecondition);
  EXPECT_EQ(refusal({PageAt(foreign, 0)}), Code::kFailedPrecondition);
  EXPECT_EQ(refusal({kAny, page, kAny}), Code::kFailedPrecondition);
  EXPECT_EQ(refusal({page, PageHandle(UINT64_MAX)}), Code::kNotFound);
  EXPECT_EQ(refusal({page, page, page, page}), Code::kInvalidArgument);
  EXPECT_EQ(Remap(range, 2, {page, page}).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Remap(range, 3, {cooling}).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Remap(range, 3, {PageAt(foreign, 0)}).code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(Remap(range, 3, {kAny}).code(), Code::kNotFound);
  EXPECT_EQ(Remap(range, 3, {page, page}).code(), Code::kInvalidArgument);
  EXPECT_EQ(GetFigures(), before);
  EXPECT_EQ(CommitPages(range, 0, {}), absl::OkStatus());
  EXPECT_EQ(CommitPages(range, 1, {page, kAny}), absl::OkStatus());
  gate.Open();
  for (AddressRange* const each : {source, foreign, range}) {
    memory_->ReleaseRange(each, Fence());
  }
}

TEST_F(DeviceMemorySharingTest, APageCoolsWhenItsLastLiveSlotDoes) {
  const StreamId early = MakeStream();
  const StreamId late = MakeStream();
  Gate early_gate(driver_.get(), early);
  Gate late_gate(driver_.get(), late);
  AddressRange* const a = Reserve(1);
  AddressRange* const b = Reserve(1);
  ASSERT_EQ(Commit(a, 0, 1), absl::OkStatus());
  ASSERT_EQ(CommitPages(b, 0, {PageAt(a, 0)}), absl::OkStatus());
  ASSERT_EQ(Decommit(a, 0, 1, FenceOn(late)), absl::OkStatus());
  EXPECT_EQ(GetFigures(), (Figures{1, 0, 2, 1, 1}));
  ASSERT_EQ(Decommit(b, 0, 1, FenceOn(early)), absl::OkStatus());
  EXPECT_EQ(GetFigures(), (Figures{0, 1, 2, 1, 1}));
  // One slot has cooled: the other one may still be in use.
  early_gate.Open();
  ASSERT_EQ(driver_->SynchronizeStream(early), absl::OkStatus());
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(0));
  EXPECT_EQ(GetFigures(), (Figures{0, 1, 1, 0, 1}));
  // And comes back as it was.
  Write(a, 0, 7);
  ASSERT_EQ(Commit(a, 0, 1), absl::OkStatus());
  EXPECT_EQ(Read(a, 0), 7u);
  ASSERT_EQ(CommitPages(b, 0, {PageAt(a, 0)}), absl::OkStatus());
  ASSERT_EQ(Decommit(a, 0, 1, FenceOn(late)), absl::OkStatus());
  late_gate.Open();
  ASSERT_EQ(driver_->SynchronizeStream(late), absl::OkStatus());
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(0));
  EXPECT_EQ(Read(b, 0), 7u);
  memory_->ReleaseRange(a, Fence());
  memory_->ReleaseRange(b, Fence());
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(1));
}

TEST_F(DeviceMemorySharingTest, ACommitReclaimsWhatItsNewPagesNeed) {
  AddressRange* const shared = Reserve(1);
  AddressRange* const held = Reserve(kLimitPages - 1);
  ASSERT_EQ(Commit(shared, 0, 1), absl::OkStatus());
  ASSERT_EQ(Commit(held, 0, kLimitPages - 1), absl::OkStatus());
  // Held by a reclaimer that gives one slot each time it is asked; two slots
  // have one page.
  AddressRange* const twice = Reserve(2);
  ASSERT_EQ(Decommit(held, 0, 1), absl::OkStatus());
  ASSERT_EQ(Commit(twice, 0, 1), absl::OkStatus());
  ASSERT_EQ(CommitPages(twice, 1, {PageAt(twice, 0)}), absl::OkStatus());
  class OneSlotAtATime : public PageReclaimer {
   public:
    OneSlotAtATime(DeviceMemory* memory, AddressRange* range)
        : memory_(memory), range_(range) {}
    PageCount Reclaim(PageCount) override {
      if (next_ == range_->pages().value()) return PageCount(0);
      EXPECT_EQ(
          memory_->Decommit(range_, PageCount(next_++), PageCount(1), Fence()),
          absl::OkStatus());
      return PageCount(1);
    }
    PageCount Reclaimable() const override {
      return PageCount(range_->pages().value() - next_);
    }
    std::string ReclaimerName() const override { return "one slot"; }

   private:
    DeviceMemory* const memory_;
    AddressRange* const range_;
    uint64_t next_ = 0;
  };
  OneSlotAtATime reclaimer(memory_.get(), twice);
  memory_->AddReclaimer(&reclaimer);
  AddressRange* const range = Reserve(2);
  EXPECT_EQ(CommitPages(range, 0, {PageAt(shared, 0), kAny}), absl::OkStatus());
  // Nothing is left to give: the verdict is of the one page that is missing.
  const absl::Status status =
      CommitPages(Reserve(2), 0, {PageAt(shared, 0), kAny});
  const auto verdict = OutOfMemoryVerdict::FromStatus(status);
  ASSERT_TRUE(verdict.has_value()) << status;
  EXPECT_EQ(verdict->requested, kPage);
  EXPECT_EQ(verdict->kind, ShortageKind::kLimit);
  memory_->RemoveReclaimer(&reclaimer);
}

TEST_F(DeviceMemorySharingTest, TryCommitPagesDoesNotWait) {
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  AddressRange* const old = Reserve(kLimitPages - 1);
  AddressRange* const range = Reserve(1);
  ASSERT_EQ(Commit(old, 0, kLimitPages - 1), absl::OkStatus());
  ASSERT_EQ(Commit(range, 0, 1), absl::OkStatus());
  memory_->ReleaseRange(old, FenceOn(stream));
  AddressRange* const more = Reserve(2);
  const std::vector<PageHandle> pages = {PageAt(range, 0), kAny};
  EXPECT_EQ(memory_->TryCommitPages(more, PageCount(0), pages).code(),
            absl::StatusCode::kResourceExhausted);
  gate.OpenAfter(std::chrono::milliseconds(20));
  EXPECT_EQ(memory_->CommitPages(more, PageCount(0), pages), absl::OkStatus());
}

// ---- Remap ------------------------------------------------------------------

TEST_F(DeviceMemorySharingTest, SlotsMoveOverEachOtherAndPagesComeFree) {
  AddressRange* const range = Reserve(4);
  ASSERT_EQ(Commit(range, 0, 4), absl::OkStatus());
  for (uint64_t i = 0; i < 4; ++i) Write(range, i, 10 + i);
  const PageHandle page = PageAt(range, 0);
  const uint64_t maps = Calls("Map");
  const uint64_t unmaps = Calls("Unmap");
  ASSERT_EQ(Remap(range, 1, {page, page}), absl::OkStatus());
  EXPECT_EQ(Calls("Map"), maps + 1);
  EXPECT_EQ(Calls("Unmap"), unmaps + 1);
  EXPECT_EQ(Read(range, 1), 10u);
  EXPECT_EQ(Read(range, 2), 10u);
  EXPECT_EQ(Read(range, 3), 13u);
  EXPECT_EQ(GetFigures(), (Figures{2, 0, 4, 2, 4}));
  EXPECT_EQ(memory_->Trim(PageCount(0)).pages_freed, PageCount(2));
  // The page that a slot has already is no work.
  ASSERT_EQ(Remap(range, 1, {page, page}), absl::OkStatus());
  EXPECT_EQ(Calls("Map"), maps + 1);
  EXPECT_EQ(memory_->Remap(range, PageCount(0), PageAt(range, 3)),
            absl::OkStatus());
  EXPECT_EQ(Read(range, 0), 13u);
  EXPECT_EQ(Read(range, 1), 10u);
  EXPECT_EQ(GetFigures(), (Figures{2, 0, 4, 2, 2}));
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemorySharingTest, PagesMayChangePlaces) {
  AddressRange* const range = Reserve(3);
  ASSERT_EQ(Commit(range, 0, 3), absl::OkStatus());
  for (uint64_t i = 0; i < 3; ++i) Write(range, i, 10 + i);
  ASSERT_EQ(
      Remap(range, 0, {PageAt(range, 2), PageAt(range, 0), PageAt(range, 1)}),
      absl::OkStatus());
  EXPECT_EQ(Read(range, 0), 12u);
  EXPECT_EQ(Read(range, 1), 10u);
  EXPECT_EQ(Read(range, 2), 11u);
  EXPECT_EQ(GetFigures(), (Figures{3, 0, 3, 0, 3}));
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemorySharingTest, AFreedPageBeyondTheCacheLimitGoesBack) {
  DeviceMemoryOptions options = Options();
  options.cache_limit = PageCount(0);
  MakeMemory(options);
  AddressRange* const range = Reserve(2);
  ASSERT_EQ(Commit(range, 0, 2), absl::OkStatus());
  ASSERT_EQ(Remap(range, 0, {PageAt(range, 1)}), absl::OkStatus());
  EXPECT_EQ(GetFigures(), (Figures{1, 0, 2, 1, 1}));
  memory_->ReleaseRange(range, Fence());
  EXPECT_EQ(GetFigures(), (Figures{0, 0, 0, 0, 0}));
}

// ---- Owners and reports -----------------------------------------------------

TEST_F(DeviceMemorySharingTest, ARangeThatSharesAPageKeepsItsOwner) {
  const OwnerId kv = owners_.Register("kv");
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  AddressRange* const a = Reserve(3);
  AddressRange* const b = Reserve(2);
  ASSERT_EQ(Commit(a, 0, 1), absl::OkStatus());
  // Within one range nothing stands against it, and the page counts once.
  ASSERT_EQ(CommitPages(a, 1, {PageAt(a, 0), kAny}), absl::OkStatus());
  ASSERT_EQ(memory_->SetOwner(a, kv), absl::OkStatus());
  EXPECT_EQ(memory_->GetLiveByOwner()[kv.value()], Bytes(2 * kPageBytes));
  ASSERT_EQ(memory_->SetOwner(a, kOwner), absl::OkStatus());
  EXPECT_EQ(memory_->GetLiveByOwner()[kv.value()], Bytes(0));

  ASSERT_EQ(CommitPages(b, 0, {PageAt(a, 2)}), absl::OkStatus());
  for (AddressRange* const range : {a, b}) {
    const absl::Status status = memory_->SetOwner(range, kv);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("shares page"));
    EXPECT_EQ(range->owner(), kOwner);
    EXPECT_EQ(memory_->SetOwner(range, kOwner), absl::OkStatus());
  }
  // A slot that cools may come back to life, and then it shares again.
  ASSERT_EQ(Decommit(b, 0, 1, FenceOn(stream)), absl::OkStatus());
  EXPECT_FALSE(memory_->SetOwner(b, kv).ok());
  EXPECT_FALSE(memory_->SetOwner(a, kv).ok());
  gate.Open();
  ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  memory_->Trim(PageCount(0));
  EXPECT_EQ(memory_->SetOwner(b, kv), absl::OkStatus());
  EXPECT_EQ(memory_->SetOwner(a, OwnerId(kMaxOwners)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(memory_->GetLiveByOwner()[kOwner.value()], Bytes(2 * kPageBytes));
  memory_->ReleaseRange(a, Fence());
  memory_->ReleaseRange(b, Fence());
}

TEST_F(DeviceMemorySharingTest, ThePageMapShowsEverySlotAndTheTraceEveryPage) {
  EventTrace trace(16);
  DeviceMemoryOptions options = Options();
  options.trace = &trace;
  MakeMemory(options);
  AddressRange* const a = Reserve(2);
  AddressRange* const b = Reserve(3);
  ASSERT_EQ(Commit(a, 0, 2), absl::OkStatus());
  ASSERT_EQ(CommitPages(b, 0, {PageAt(a, 1), kAny, PageAt(a, 1)}),
            absl::OkStatus());
  ASSERT_EQ(CommitPages(Reserve(1), 0, {PageAt(a, 0)}), absl::OkStatus());
  std::vector<uint64_t> pages;
  for (const auto& entry : memory_->CalculatePageMap()) {
    pages.push_back(entry.page.value());
  }
  const auto at = [&](AddressRange* range, uint64_t slot) {
    return PageAt(range, slot).value();
  };
  EXPECT_THAT(pages, ::testing::ElementsAre(at(a, 0), at(a, 1), at(a, 1),
                                            at(b, 1), at(a, 1), at(a, 0)));
  ASSERT_EQ(Decommit(a, 0, 2), absl::OkStatus());
  ASSERT_EQ(Remap(b, 1, {PageAt(b, 0)}), absl::OkStatus());
  // The sum of a trace is the live pages, whoever shares them.
  int64_t live = 0;
  for (const TraceEvent& event : trace.Events()) {
    if (event.action != TraceAction::kCommit &&
        event.action != TraceAction::kDecommit) {
      continue;
    }
    const auto size = static_cast<int64_t>(event.size.value() / kPageBytes);
    live += event.action == TraceAction::kCommit ? size : -size;
    EXPECT_EQ(event.in_use.value(), static_cast<uint64_t>(live) * kPageBytes);
  }
  EXPECT_EQ(live, 2);
  memory_.reset();
}

}  // namespace
}  // namespace quire
