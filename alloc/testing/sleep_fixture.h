// Owners of a small DeviceMemory that sleep and wake up.

#ifndef QUIRE_ALLOC_TESTING_SLEEP_FIXTURE_H_
#define QUIRE_ALLOC_TESTING_SLEEP_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "alloc/testing/device_memory_fixture.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/sleep.h"

namespace quire {

class SleepFixture : public DeviceMemoryFixture {
 protected:
  static constexpr SleepTarget kTargets[] = {
      SleepTarget::kHost, SleepTarget::kDisk, SleepTarget::kDrop};

  SleepFixture()
      : model_(owners_.Register("model")),
        weights_(owners_.Register("model/weights")),
        kv_(owners_.Register("model/kv")),
        other_(owners_.Register("other")) {}

  static SleepOptions To(SleepTarget target) {
    SleepOptions options;
    options.target = target;
    options.folder = ::testing::TempDir();
    return options;
  }
  absl::StatusOr<SleepReport> Sleep(OwnerId owner,
                                    SleepTarget target = SleepTarget::kHost) {
    return Sleep(owner, To(target));
  }
  absl::StatusOr<SleepReport> Sleep(OwnerId owner,
                                    const SleepOptions& options) {
    auto section = QuiescentSection::Begin(memory_.get(), streams_);
    EXPECT_TRUE(section.ok()) << section.status();
    return memory_->Sleep(*section, owner, options);
  }

  AddressRange* Reserve(OwnerId owner, uint64_t pages) {
    const auto range = memory_->ReserveRange(PageCount(pages), owner);
    EXPECT_TRUE(range.ok()) << range.status();
    return *range;
  }
  // A range that is live, with words that start from `content`.
  AddressRange* MakeRange(OwnerId owner, uint64_t pages, uint64_t content) {
    AddressRange* const range = Reserve(owner, pages);
    EXPECT_EQ(Commit(range, 0, pages), absl::OkStatus());
    for (uint64_t i = 0; i < pages; ++i) WriteAll(range, i, content + i);
    return range;
  }
  // The whole page, so that what is copied in part shows.
  static void WriteAll(AddressRange* range, uint64_t slot, uint64_t value) {
    volatile uint64_t* const words = &Word(range, slot);
    for (uint64_t i = 0; i < kPageBytes / 8; ++i)
      words[i] = value * 1000003 + i;
  }
  static bool Holds(AddressRange* range, uint64_t slot, uint64_t value) {
    volatile uint64_t* const words = &Word(range, slot);
    for (uint64_t i = 0; i < kPageBytes / 8; ++i) {
      if (words[i] != value * 1000003 + i) return false;
    }
    return true;
  }
  static bool HoldsAll(AddressRange* range, uint64_t content) {
    for (uint64_t i = 0; i < range->pages().value(); ++i) {
      if (!Holds(range, i, content + i)) return false;
    }
    return true;
  }
  uint64_t LivePages(OwnerId owner) const {
    return memory_->GetOwnerStatistics(owner).live.value() / kPageBytes;
  }
  uint64_t AsleepPages(OwnerId owner) const {
    return memory_->GetOwnerStatistics(owner).asleep.value() / kPageBytes;
  }
  PageHandle PageAt(const AddressRange* range, uint64_t slot) const {
    return memory_->PageAt(range, PageCount(slot));
  }

  const OwnerId model_;
  const OwnerId weights_;
  const OwnerId kv_;
  const OwnerId other_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_SLEEP_FIXTURE_H_
