// Each driver call of each call of a DeviceMemory fails once. What fails
// changes nothing, what is done again succeeds, and nothing is left behind.
// Sleep and Wake: device_memory_sleep_fault_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "alloc/testing/fault_sweep.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

class DeviceMemorySweepTest
    : public DeviceMemoryFixture,
      public ::testing::WithParamInterface<absl::StatusCode> {
 protected:
  // What a caller can see of the slots: address to page and (cooling, content).
  using Picture =
      std::map<uint64_t, std::pair<PageHandle, std::pair<bool, uint64_t>>>;
  Picture TakePicture() const {
    Picture picture;
    for (const auto& entry : memory_->CalculatePageMap()) {
      picture[entry.address.value()] = {
          entry.page,
          {entry.cooling, *entry.address.host_pointer<volatile uint64_t>()}};
    }
    return picture;
  }

  // A range of 12 slots: 2, 3, 7 and 8 are live, 5 shares the page of 2, 9 and
  // 10 have cooled and nobody has looked; three pages are cached. The device is
  // asked what is free, since some of that is left to others.
  void Prepare() {
    DeviceMemoryOptions options = Options();
    options.headroom = Bytes(4 * kPageBytes);
    MakeMemory(options);
    range_ = Reserve(12);
    ASSERT_TRUE(Commit(range_, 2, 2).ok());
    ASSERT_TRUE(Commit(range_, 7, 4).ok());
    for (const uint64_t slot : {2, 3, 7, 8}) Write(range_, slot, slot);
    pages_ = {memory_->PageAt(range_, PageCount(2)),
              memory_->PageAt(range_, PageCount(3))};
    ASSERT_TRUE(
        memory_->CommitPages(range_, PageCount(5), {&pages_.front(), 1}).ok());
    ASSERT_TRUE(memory_->Prepare(PageCount(3)).ok());
    Gate gate(driver_.get(), stream_);
    ASSERT_TRUE(Decommit(range_, 9, 2, FenceOn(stream_)).ok());
    gate.Open();
    ASSERT_TRUE(driver_->SynchronizeStream(stream_).ok());
  }

  void Sweep(const std::function<absl::Status()>& operation) {
    Picture picture;
    DeviceMemoryStatistics before;
    FailEachDriverCall(
        faulty_.get(), GetParam(),
        [&] {
          Prepare();
          picture = TakePicture();
          before = memory_->GetStatistics();
        },
        operation,
        [&](const absl::Status& status, bool /*failed*/) {
          CheckOutcome(picture, before, status, operation);
        });
  }

  void CheckOutcome(const Picture& before, const DeviceMemoryStatistics& old,
                    const absl::Status& status,
                    const std::function<absl::Status()>& operation) {
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    if (!status.ok() && memory_->Health().ok()) {
      EXPECT_EQ(LiveOf(TakePicture()), LiveOf(before)) << status;
      EXPECT_EQ(memory_->GetStatistics().live, old.live);
      EXPECT_LE(memory_->GetStatistics().in_use, old.in_use);
      EXPECT_EQ(memory_->GetStatistics().reserved, old.reserved);
      EXPECT_EQ(operation(), absl::OkStatus()) << "after " << status;
    }
    // Whatever became of it, others go on.
    ASSERT_EQ(memory_->SetLimit(Options().limit), absl::OkStatus());
    AddressRange* const other = Reserve(2);
    EXPECT_EQ(Commit(other, 0, 2), absl::OkStatus()) << "after " << status;
    memory_->ReleaseRange(other, Fence());
    ASSERT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    memory_.reset();
    // Only the streams and events of the test are left.
    ASSERT_EQ(driver_->Leaks().size(), streams_.size() + events_)
        << ::testing::PrintToString(driver_->Leaks());
  }
  // What has cooled may be unmapped at any time.
  static Picture LiveOf(Picture picture) {
    std::erase_if(picture,
                  [](const auto& slot) { return slot.second.second.first; });
    return picture;
  }
  // For calls that say nothing of failures.
  template <typename Call>
  void SweepSilent(Call call) {
    Sweep([call] {
      call();
      return absl::OkStatus();
    });
  }

  const StreamId stream_ = MakeStream();
  size_t events_ = 0;
  AddressRange* range_ = nullptr;
  std::vector<PageHandle> pages_;
};

TEST_P(DeviceMemorySweepTest, Backing) {
  Sweep([&] { return Commit(range_, 0, 12); });
  Sweep(
      [&] { return memory_->TryCommit(range_, PageCount(0), PageCount(12)); });
  const auto with_pages = [&](auto commit) {
    const std::vector<PageHandle> pages = {PageHandle(), pages_[1]};
    return (memory_.get()->*commit)(range_, PageCount(0), pages);
  };
  Sweep([&] { return with_pages(&DeviceMemory::CommitPages); });
  Sweep([&] { return with_pages(&DeviceMemory::TryCommitPages); });
  Sweep([&] {
    return memory_->Remap(range_, PageCount(7),
                          std::vector<PageHandle>{pages_[0], pages_[0]});
  });
}

TEST_P(DeviceMemorySweepTest, PreparingApartFromCommitting) {
  for (const bool wait : {false, true}) {
    Sweep([&] {
      return memory_->Gather(kOwner, PageCount(8), PageCount(8), Bytes(0),
                             wait);
    });
  }
  Sweep([&]() -> absl::Status {
    const std::vector<PageHandle> pages = {PageHandle(), pages_[0],
                                           PageHandle()};
    return memory_->TryMakeRange(kOwner, Bytes(0), pages).status();
  });
  Sweep([&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(
        AddressRange* const range,
        memory_->TryReserveRange(PageCount(3), kOwner, Bytes(0)));
    const absl::Status status =
        memory_->TryBackSlots(range, PageCount(0), PageCount(3));
    if (!status.ok()) memory_->ReleaseRange(range, Fence());
    return status;
  });
  Sweep([&] { return memory_->Prepare(PageCount(9)); });
}

TEST_P(DeviceMemorySweepTest, GivingBack) {
  SweepSilent([&] { memory_->Harvest(); });
  SweepSilent([&] { memory_->Trim(PageCount(0)); });
  SweepSilent([&] { memory_->ReleaseRange(range_, Fence()); });
  SweepSilent([&] { (void)Decommit(range_, 0, 12); });
  Sweep([&] { return memory_->SetLimit(kPage); });
}

TEST_P(DeviceMemorySweepTest, Questions) {
  SweepSilent([&] { memory_->CalculateLargestCommit(kOwner); });
  SweepSilent([&] { (void)memory_->DescribeShortage(PageCount(40)); });
  SweepSilent([&] { memory_->GetStatistics(); });
  SweepSilent([&] { memory_->CalculatePageMap(); });
}

// The section is not left open, and what was waited for is waited for again.
TEST_P(DeviceMemorySweepTest, QuiescentSections) {
  const StreamId other = MakeStream();
  const EventId event = *driver_->CreateEvent(DeviceId(0));
  ++events_;
  Sweep([&]() -> absl::Status {
    EXPECT_FALSE(memory_->in_quiescence());
    const std::vector<StreamId> streams = {stream_, other};
    const auto section =
        QuiescentSection::Begin(memory_.get(), streams, {&event, 1});
    EXPECT_EQ(memory_->in_quiescence(), section.ok());
    return section.status();
  });
  EXPECT_EQ(driver_->DestroyEvent(event), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Codes, DeviceMemorySweepTest,
                         ::testing::Values(absl::StatusCode::kResourceExhausted,
                                           absl::StatusCode::kUnavailable));

}  // namespace
}  // namespace quire
