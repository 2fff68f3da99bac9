// What DeviceMemory promises, case by case. The randomised test against a model
// and the injected faults have their own files.

#include "quire/alloc/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using DeviceMemoryTest = DeviceMemoryFixture;

// ---- Creation ---------------------------------------------------------------

TEST_F(DeviceMemoryTest, RefusesPagesThatTheDeviceCannotHave) {
  for (const Bytes size : {Bytes(0), KiB(96), KiB(32), Bytes(65537)}) {
    DeviceMemoryOptions options = Options();
    options.page_size = size;
    EXPECT_EQ(
        DeviceMemory::Create(driver_.get(), &owners_, options).status().code(),
        absl::StatusCode::kInvalidArgument)
        << size.value();
  }
}

TEST_F(DeviceMemoryTest, RefusesPagesOfMoreThanTwoGibibytes) {
  memory_.reset();
  DeviceMemoryOptions options = Options();
  options.page_size = GiB(4);
  const auto memory = DeviceMemory::Create(driver_.get(), &owners_, options);
  EXPECT_TRUE(absl::IsInvalidArgument(memory.status())) << memory.status();
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("4.00 GiB"));
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(DeviceMemoryTest, RefusesLimitsAndAddressSpacesBelowOnePage) {
  memory_.reset();
  DeviceMemoryOptions options = Options();
  options.limit = Bytes(kPageBytes - 1);
  EXPECT_FALSE(DeviceMemory::Create(driver_.get(), &owners_, options).ok());
  options = Options();
  options.address_space = Bytes(kPageBytes - 1);
  EXPECT_FALSE(DeviceMemory::Create(driver_.get(), &owners_, options).ok());
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

TEST_F(DeviceMemoryTest, TakesWhatTheDeviceHasFreeAsTheDefaultLimit) {
  const PageHandle taken = *driver_->CreatePage(DeviceId(0), kPage);
  DeviceMemoryOptions options = Options();
  options.limit = Bytes(0);
  options.address_space = Bytes(0);
  MakeMemory(options);
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.limit.value(), (kDevicePages - 1) * kPageBytes);
  EXPECT_EQ(statistics.address_space, GiB(64));
  memory_.reset();
  ASSERT_TRUE(driver_->ReleasePage(taken).ok());
}

TEST_F(DeviceMemoryTest, AnAddressSpaceThatCannotBeReservedIsCutDown) {
  DeviceMemoryOptions options = Options();
  options.limit = GiB(uint64_t{1} << 20);  // 16 PiB of addresses exist nowhere
  options.address_space = Bytes(0);
  // The host has 47 bits of addresses, 128 TiB, less than the limit itself.
  const auto memory = DeviceMemory::Create(driver_.get(), &owners_, options);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  options.limit = GiB(uint64_t{1} << 14);  // 16 TiB; 16 times that do not fit
  const auto smaller = DeviceMemory::Create(driver_.get(), &owners_, options);
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  EXPECT_GE((*smaller)->GetStatistics().address_space, options.limit);
}

// ---- Addresses --------------------------------------------------------------

TEST_F(DeviceMemoryTest, RangesHaveTheAlignmentAskedFor) {
  AddressRange* const odd = Reserve(1);
  for (const Bytes alignment :
       {Bytes(0), Bytes(1), Bytes(512), kPage, KiB(128), KiB(512)}) {
    const auto range = memory_->ReserveRange(PageCount(3), kOwner, alignment);
    ASSERT_TRUE(range.ok()) << range.status();
    const uint64_t unit = std::max(alignment, kPage).value();
    EXPECT_EQ((*range)->address().value() % unit, 0u) << alignment.value();
    memory_->ReleaseRange(*range, Fence());
  }
  EXPECT_EQ(
      memory_->ReserveRange(PageCount(1), kOwner, Bytes(3)).status().code(),
      absl::StatusCode::kInvalidArgument);
  memory_->ReleaseRange(odd, Fence());
}

TEST_F(DeviceMemoryTest, RefusesRangesWithoutPagesAndOwnersOutOfBounds) {
  EXPECT_EQ(memory_->ReserveRange(PageCount(0), kOwner).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      memory_->ReserveRange(PageCount(1), OwnerId(UINT32_MAX)).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceMemoryTest, FindsTheRangeOfEveryAddressAndNothingElse) {
  AddressRange* const a = Reserve(2);
  AddressRange* const b = Reserve(3);
  int marker = 0;
  b->set_user_data(&marker);
  for (AddressRange* const range : {a, b}) {
    const uint64_t base = range->address().value();
    const uint64_t size = range->pages().value() * kPageBytes;
    EXPECT_EQ(memory_->Find(DeviceAddress(base)), range);
    EXPECT_EQ(memory_->Find(DeviceAddress(base + size - 1)), range);
  }
  EXPECT_EQ(memory_->Find(b->address())->user_data(), &marker);
  EXPECT_EQ(memory_->Find(DeviceAddress()), nullptr);
  EXPECT_EQ(memory_->Find(DeviceAddress(UINT64_MAX)), nullptr);
  EXPECT_FALSE(memory_->Contains(DeviceAddress(UINT64_MAX)));
  EXPECT_TRUE(memory_->Contains(a->address()));
  const DeviceAddress gone = a->address();
  memory_->ReleaseRange(a, Fence());
  EXPECT_EQ(memory_->Find(gone), nullptr);
  EXPECT_TRUE(memory_->Contains(gone));
  memory_->ReleaseRange(b, Fence());
}

TEST_F(DeviceMemoryTest, RunningOutOfAddressesIsNotRunningOutOfMemory) {
  AddressRange* const all = Reserve(kAddressPages);
  ASSERT_TRUE(Commit(all, 0, 3).ok());
  const auto more = memory_->ReserveRange(PageCount(2), kOwner);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  const auto verdict = OutOfMemoryVerdict::FromStatus(more.status());
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->kind, ShortageKind::kAddressSpace);
  EXPECT_EQ(verdict->requested.value(), 2 * kPageBytes);
  EXPECT_EQ(verdict->limit.value(), kAddressPages * kPageBytes);
  EXPECT_EQ(verdict->free, Bytes(0));
  // Who holds what is said here too.
  ASSERT_EQ(verdict->owners.size(), 1u);
  EXPECT_EQ(verdict->owners[0].second.value(), 3 * kPageBytes);
  memory_->ReleaseRange(all, Fence());
  // More than there will ever be, without an overflow on the way.
  EXPECT_EQ(
      memory_->ReserveRange(PageCount(UINT64_MAX), kOwner).status().code(),
      absl::StatusCode::kResourceExhausted);
}

TEST_F(DeviceMemoryTest, AddressesOfACoolingRangeReturnWhenItHasCooled) {
  AddressRange* const all = Reserve(kAddressPages);
  ASSERT_TRUE(Commit(all, 5, 1).ok());
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  memory_->ReleaseRange(all, FenceOn(stream));
  EXPECT_EQ(memory_->GetStatistics().reserved.value(),
            kAddressPages * kPageBytes);
  gate.OpenAfter(std::chrono::milliseconds(20));
  // Waits for the fence and then has every address.
  AddressRange* const again = Reserve(kAddressPages);
  ASSERT_NE(again, nullptr);
  memory_->ReleaseRange(again, Fence());
  EXPECT_EQ(memory_->GetStatistics().reserved, Bytes(0));
}

// ---- Backing ----------------------------------------------------------------

TEST_F(DeviceMemoryTest, CommitsAreReadableAndKeepTheirContents) {
  AddressRange* const range = Reserve(4);
  ASSERT_TRUE(Commit(range, 1, 2).ok());
  Write(range, 1, 11);
  Write(range, 2, 22);
  // The live slot in the middle stays as it is.
  ASSERT_TRUE(Commit(range, 0, 4).ok());
  EXPECT_EQ(Read(range, 1), 11);
  EXPECT_EQ(Read(range, 2), 22);
  EXPECT_EQ(Committed(range, 0, 4), 4u);
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryTest, MapsAContiguousRunWithOneCall) {
  AddressRange* const range = Reserve(16);
  ASSERT_TRUE(Commit(range, 0, 16).ok());
  EXPECT_EQ(Calls("Map"), 1u);
  ASSERT_TRUE(Decommit(range, 4, 2).ok());
  ASSERT_TRUE(Decommit(range, 10, 1).ok());
  EXPECT_EQ(Calls("Unmap"), 2u);
  // Two runs are missing: two calls.
  ASSERT_TRUE(Commit(range, 0, 16).ok());
  EXPECT_EQ(Calls("Map"), 3u);
  memory_->ReleaseRange(range, Fence());
  EXPECT_EQ(Calls("Unmap"), 3u);
}

TEST_F(DeviceMemoryTest, CachedPagesAreUsedBeforeNewOnesAreCreated) {
  ASSERT_TRUE(memory_->Prepare(PageCount(3)).ok());
  EXPECT_EQ(memory_->GetStatistics().cached.value(), 3 * kPageBytes);
  AddressRange* const range = Reserve(8);
  ASSERT_TRUE(Commit(range, 0, 2).ok());
  EXPECT_EQ(Calls("CreatePage"), 3u);
  EXPECT_EQ(memory_->GetStatistics().commits_from_cache, 1u);
  ASSERT_TRUE(Commit(range, 2, 2).ok());
  EXPECT_EQ(Calls("CreatePage"), 4u);
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.commits, 2u);
  EXPECT_EQ(statistics.commits_from_cache, 1u);
  // Nothing to do is no commit.
  ASSERT_TRUE(Commit(range, 0, 4).ok());
  EXPECT_EQ(memory_->GetStatistics().commits, 2u);
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryTest, RefusesSlotsOutsideTheRange) {
  AddressRange* const range = Reserve(4);
  for (const auto& [first, count] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 5}, {4, 1}, {5, 0}, {1, UINT64_MAX}, {UINT64_MAX, 1}}) {
    EXPECT_EQ(Commit(range, first, count).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Decommit(range, first, count).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Committed(range, first, count), 0u);
  }
  EXPECT_TRUE(Commit(range, 4, 0).ok());
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryTest, PagesBeyondTheCacheLimitGoBackAtOnce) {
  DeviceMemoryOptions options = Options();
  options.cache_limit = PageCount(2);
  MakeMemory(options);
  AddressRange* const range = Reserve(5);
  ASSERT_TRUE(Commit(range, 0, 5).ok());
  ASSERT_TRUE(Decommit(range, 0, 5).ok());
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.cached.value(), 2 * kPageBytes);
  EXPECT_EQ(statistics.in_use.value(), 2 * kPageBytes);
  EXPECT_EQ(statistics.pages_released, 3u);
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryTest, PreparesUpToTheLimitAndNoFurther) {
  ASSERT_TRUE(memory_->Prepare(PageCount(UINT64_MAX)).ok());
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.cached, statistics.limit);
  EXPECT_EQ(statistics.growable, Bytes(0));
  ASSERT_TRUE(memory_->Prepare(PageCount(1)).ok());
  EXPECT_EQ(Calls("CreatePage"), kLimitPages);
  EXPECT_EQ(memory_->Trim(PageCount(5)).pages_freed,
            PageCount(kLimitPages - 5));
  EXPECT_EQ(memory_->Trim(PageCount(5)).pages_freed, PageCount(0));
}

// ---- Cooling ----------------------------------------------------------------

TEST_F(DeviceMemoryTest, ACoolingSlotIsMappedAndComesBackWithoutADriverCall) {
  AddressRange* const range = Reserve(4);
  ASSERT_TRUE(Commit(range, 0, 4).ok());
  Write(range, 2, 7);
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  ASSERT_TRUE(Decommit(range, 1, 2, FenceOn(stream)).ok());
  EXPECT_EQ(Committed(range, 0, 4), 2u);
  DeviceMemoryStatistics statistics = memory_->GetStatistics();
  EXPECT_EQ(statistics.live.value(), 2 * kPageBytes);
  EXPECT_EQ(statistics.cooling.value(), 2 * kPageBytes);
  EXPECT_EQ(statistics.mapped.value(), 4 * kPageBytes);
  EXPECT_EQ(Read(range, 2), 7);  // work that is still queued may do this

  const uint64_t maps = Calls("Map");
  const uint64_t unmaps = Calls("Unmap");
  const uint64_t creates = Calls("CreatePage");
  ASSERT_TRUE(Commit(range, 0, 4).ok());
  EXPECT_EQ(Calls("Map"), maps);
  EXPECT_EQ(Calls("Unmap"), unmaps);
  EXPECT_EQ(Calls("CreatePage"), creates);
  EXPECT_EQ(Read(range, 2), 7);
  gate.Open();
  ASSERT_TRUE(driver_->SynchronizeStream(stream).ok());
  // The completed fence must not take away what was revived.
  memory_->Trim(PageCount(0));
  EXPECT_EQ(Committed(range, 0, 4), 4u);
  EXPECT_EQ(Read(range, 2), 7);
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryTest, ASlotCoolsAgainUnderALaterFence) {
  AddressRange* const range = Reserve(2);
  ASSERT_TRUE(Commit(range, 0, 2).ok());
  const StreamId early = MakeStream();
  const StreamId late = MakeStream();
  Gate early_gate(driver_.get(), early);
  Gate late_gate(driver_.get(), late);
  ASSERT_TRUE(Decommit(range, 0, 2, FenceOn(early)).ok());
  ASSERT_TRUE(Commit(range, 0, 1).ok());
  ASSERT_TRUE(Decommit(range, 0, 1, FenceOn(late)).ok());
  early_gate.Open();
  ASSERT_TRUE(driver_->SynchronizeStream(early).ok());
  memory_->Trim(PageCount(0));
  // Slot 1 has gone with the early fence, slot 0 waits for the late one.
  EXPECT_EQ(memory_->GetStatistics().cooling, kPage);
  late_gate.Open();
  ASSERT_TRUE(driver_->SynchronizeStream(late).ok());
  memory_->Trim(PageCount(0));
  EXPECT_EQ(memory_->GetStatistics().cooling, Bytes(0));
  memory_->ReleaseRange(range, Fence());
}

TEST_F(DeviceMemoryTest, ARangeMayDieWhileItsFenceStillHoldsOthers) {
  AddressRange* const dying = Reserve(2);
  AddressRange* const other = Reserve(2);
  ASSERT_TRUE(Commit(dying, 0, 2).ok());
  ASSERT_TRUE(Commit(other, 0, 2).ok());
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  const Fence fence = FenceOn(stream);
  ASSERT_TRUE(Decommit(dying, 0, 2, fence).ok());
  ASSERT_TRUE(Decommit(other, 0, 2, fence).ok());
  ASSERT_TRUE(Commit(dying, 0, 2).ok());
  memory_->ReleaseRange(dying, Fence());
  EXPECT_EQ(memory_->GetStatistics().reserved.value(), 2 * kPageBytes);
  gate.Open();
  ASSERT_TRUE(driver_->SynchronizeStream(stream).ok());
  memory_->Trim(PageCount(0));
  EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
  memory_->ReleaseRange(other, Fence());
}

TEST_F(DeviceMemoryTest, TheDestructorWaitsForWhatCools) {
  AddressRange* const range = Reserve(3);
  ASSERT_TRUE(Commit(range, 0, 3).ok());
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  memory_->ReleaseRange(range, FenceOn(stream));
  AddressRange* const kept = Reserve(2);
  ASSERT_TRUE(Commit(kept, 0, 2).ok());
  gate.OpenAfter(std::chrono::milliseconds(20));
  memory_.reset();
  ASSERT_TRUE(driver_->DestroyStream(stream).ok());
  EXPECT_THAT(driver_->Leaks(), IsEmpty());
}

}  // namespace
}  // namespace quire
