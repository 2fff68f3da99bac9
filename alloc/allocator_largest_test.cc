// What GetLargestPossible promises can be had at once, and more cannot.

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "alloc/testing/allocator_fixture.h"

namespace quire {
namespace {

// Random owners' memory comes and goes under random limits; after each step one
// owner is asked.
class AllocatorLargestTest : public AllocatorFixture,
                             public ::testing::WithParamInterface<uint64_t> {
 protected:
  struct Block {
    DeviceAddress address;
    StreamId stream;
  };

  AllocatorLargestTest()
      : random_(GetParam()),
        streams_used_{StreamId(), MakeStream(), MakeStream()} {
    for (const char* const name : {"server", "server/llama", "server/llama/kv",
                                   "server/whisper", "other"}) {
      tenants_.push_back(owners_.Register(name));
    }
    tenants_.push_back(kUnnamedOwner);
  }

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  OwnerId Tenant() { return tenants_[Below(tenants_.size())]; }

  void ChangeLimits() {
    if (Below(4) == 0) {
      ASSERT_EQ(memory_->SetLimit(Bytes((4 + Below(kLimitPages)) * kPageBytes)),
                absl::OkStatus());
      return;
    }
    OwnerLimits limits;
    if (Below(2) == 0) limits.hard = Bytes(Below(kLimitPages) * kPageBytes);
    if (Below(2) == 0) limits.soft = Bytes(Below(kLimitPages) * kPageBytes);
    if (Below(2) == 0) {
      limits.reserved_minimum = Bytes(Below(kLimitPages / 2) * kPageBytes);
    }
    // Not every combination can be.
    (void)memory_->SetOwnerLimits(Tenant(), limits);
  }
  void AllocateSome(uint64_t size) {
    AllocateOptions options;
    options.owner = Tenant();
    options.stream = streams_used_[Below(streams_used_.size())];
    const auto address = allocator_->Allocate(Bytes(size), options);
    if (address.ok()) live_.push_back({*address, options.stream});
  }
  void FreeSome() {
    if (live_.empty()) return;
    const size_t i = Below(live_.size());
    Free(live_[i].address, live_[i].stream);
    live_[i] = live_.back();
    live_.pop_back();
  }
  // A request may be up to `slack` longer than what is promised.
  void CheckPromise(OwnerId owner, uint64_t slack) {
    const uint64_t largest = allocator_->GetLargestPossible(owner).value();
    SCOPED_TRACE(owners_.Name(owner) + ": " + std::to_string(largest) +
                 " bytes");
    AllocateOptions options;
    options.owner = owner;
    if (largest > 0) {
      const auto address = allocator_->Allocate(Bytes(largest), options);
      ASSERT_TRUE(address.ok()) << address.status();
      Free(*address);
      // Parts of pages that were in empty slabs may be free by now.
      const Bytes again = allocator_->GetLargestPossible(owner);
      ASSERT_GE(again, Bytes(largest));
      ASSERT_LE(again, Bytes(largest + slack));
    }
    // Where more is in use than limits allow, nothing is promised; what is idle
    // may be used again all the same.
    if (largest > 0) ExpectOutOfMemory(largest + slack + 1, options);
  }
  void FreeAll() {
    while (!live_.empty()) FreeSome();
  }

  std::mt19937_64 random_;
  std::vector<StreamId> streams_used_;
  std::vector<OwnerId> tenants_;
  std::vector<Block> live_;
};

TEST_P(AllocatorLargestTest, OfWholePagesIsExact) {
  for (int step = 0; step < 150 && !HasFailure(); ++step) {
    switch (Below(5)) {
      case 0:
        ChangeLimits();
        break;
      case 1:
      case 2:
        AllocateSome((1 + Below(6)) * kPageBytes);
        break;
      default:
        FreeSome();
    }
    CheckPromise(Tenant(), 0);
  }
  FreeAll();
}

TEST_P(AllocatorLargestTest, OfAnySizeIsExactToTheEndsOfItsRange) {
  for (int step = 0; step < 150 && !HasFailure(); ++step) {
    switch (Below(6)) {
      case 0:
        ChangeLimits();
        break;
      case 1:
        AllocateSome(Below(kPageBytes / 4));
        break;
      case 2:
      case 3:
        AllocateSome(kPageBytes / 4 + Below(4 * kPageBytes));
        break;
      default:
        FreeSome();
    }
    CheckPromise(Tenant(), 2 * kPageBytes);
  }
  FreeAll();
}

INSTANTIATE_TEST_SUITE_P(Seeds, AllocatorLargestTest,
                         ::testing::Range<uint64_t>(1, 9));

using AllocatorLargestOfTest = AllocatorFixture;

TEST_F(AllocatorLargestOfTest, WhatOthersHaveReservedIsNotPromised) {
  const OwnerId first = owners_.Register("first");
  const OwnerId second = owners_.Register("second");
  OwnerLimits limits;
  limits.reserved_minimum = Bytes(10 * kPageBytes);
  ASSERT_EQ(memory_->SetOwnerLimits(first, limits), absl::OkStatus());
  const Bytes rest = Bytes((kLimitPages - 10) * kPageBytes);
  EXPECT_EQ(allocator_->GetLargestPossible(second), rest);
  EXPECT_EQ(allocator_->GetLargestPossible(first),
            Bytes(kLimitPages * kPageBytes));
  // Idle memory is as good as none: the reservation is still owed.
  AllocateOptions options;
  options.owner = first;
  const auto address = allocator_->Allocate(Bytes(4 * kPageBytes), options);
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(allocator_->GetLargestPossible(second), rest);
  Free(*address);
  EXPECT_EQ(allocator_->GetLargestPossible(second), rest);
  options.owner = second;
  const auto all = allocator_->Allocate(rest, options);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(allocator_->GetLargestPossible(second), Bytes(0));
  EXPECT_EQ(allocator_->GetLargestPossible(first), limits.reserved_minimum);
  Free(*all);
}

TEST_F(AllocatorLargestOfTest, WhatTheHeadroomTakesIsNotPromised) {
  allocator_.reset();
  DeviceMemoryOptions options = Options();
  options.headroom = Bytes(4 * kPageBytes);
  MakeMemory(options);
  MakeAllocator();
  const DeviceAddress held = AllocatePages(3);
  // Another process has taken the rest but for six pages.
  faulty_->LimitMemory(DeviceId(0), Bytes(9 * kPageBytes));
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(2 * kPageBytes));
  ExpectOutOfMemory(3 * kPageBytes);
  Free(AllocatePages(2));
  Free(held);
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(5 * kPageBytes));
  Free(AllocatePages(5));
}

// Lets a stream go on when an owner is asked for what cools, which is after all
// were asked for what is free.
class OpensLate : public PageReclaimer {
 public:
  explicit OpensLate(std::function<void()> open) : open_(std::move(open)) {}
  PageCount Reclaim(PageCount) override { return PageCount(0); }
  PageCount ReclaimFrom(OwnerId, PageCount, bool cooling) override {
    if (cooling) open_();
    return PageCount(0);
  }
  PageCount Reclaimable() const override { return PageCount(0); }
  std::string ReclaimerName() const override { return "opens late"; }

 private:
  const std::function<void()> open_;
};

TEST_F(AllocatorLargestOfTest, WhatIsDoneWhileEverybodyIsAskedIsToBeHad) {
  const OwnerId hungry = owners_.Register("hungry");
  const OwnerId careful = owners_.Register("careful");
  // Either too few pages exist, or too few that are not reserved.
  for (const uint64_t reserved : {0, 10}) {
    for (const uint64_t wanted : {Bytes(64).value(), 3 * kPageBytes}) {
      SCOPED_TRACE(std::to_string(reserved) + " pages reserved, " +
                   std::to_string(wanted) + " bytes wanted");
      allocator_.reset();
      MakeMemory(Options());
      const StreamId stream = MakeStream();
      Gate gate(driver_.get(), stream);
      OpensLate opener([&] {
        gate.Open();
        EXPECT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
      });
      memory_->AddReclaimer(
          &opener);  // before the allocator: it is asked first
      MakeAllocator();
      OwnerLimits limits;
      limits.reserved_minimum = Bytes(reserved * kPageBytes);
      ASSERT_EQ(memory_->SetOwnerLimits(careful, limits), absl::OkStatus());
      // Beyond its soft limit, so that it is asked before others.
      AllocateOptions options;
      options.owner = hungry;
      ASSERT_EQ(memory_->SetOwnerLimits(hungry, {.soft = kPage}),
                absl::OkStatus());
      const auto held = allocator_->Allocate(Bytes(2 * kPageBytes), options);
      ASSERT_TRUE(held.ok()) << held.status();
      const uint64_t rest = kLimitPages - reserved - 2;
      Free(AllocatePages(rest, stream), stream);
      EXPECT_EQ(allocator_->GetLargestPossible(hungry),
                Bytes(rest * kPageBytes));
      const auto address = allocator_->Allocate(Bytes(wanted), options);
      EXPECT_TRUE(address.ok()) << address.status();
      allocator_.reset();
      memory_->RemoveReclaimer(&opener);
    }
  }
}

// Where reservations come to more than there is, a page that is given up is
// lost: what an owner has of its own serves it as it lies.
TEST_F(AllocatorLargestOfTest, RoomOfItsOwnIsNotGivenUpForPagesOfOthers) {
  const OwnerId careful = owners_.Register("careful");
  OwnerLimits limits;
  limits.reserved_minimum = Bytes(8 * kPageBytes);
  ASSERT_EQ(memory_->SetOwnerLimits(careful, limits), absl::OkStatus());
  AllocatePages(4);
  const DeviceAddress page = AllocatePages(1);
  ASSERT_EQ(memory_->SetLimit(Bytes(6 * kPageBytes)), absl::OkStatus());
  Free(page);
  EXPECT_EQ(allocator_->GetLargestPossible(), kPage);
  // Slabs of this class have two pages.
  constexpr uint64_t kSlot = 24 << 10;
  Allocate(kSlot);
  EXPECT_EQ(allocator_->GetLargestPossible(), Bytes(kPageBytes - kSlot));
  Allocate(kSlot);
}

TEST_F(AllocatorLargestOfTest, ACommitWaitsForThePartsOfAPage) {
  const StreamId one = MakeStream();
  const StreamId other = MakeStream();
  Free(AllocatePages(3));  // which lie side by side
  const DeviceAddress first = Allocate(kPageBytes * 3 / 2, one);
  const DeviceAddress second = Allocate(kPageBytes * 3 / 2, other);
  ASSERT_EQ(second.value(), first.value() + kPageBytes * 3 / 2);
  AllocatePages(kLimitPages - 3);
  Gate gate(driver_.get(), one);
  Gate other_gate(driver_.get(), other);
  Free(first, one);
  Free(second, other);
  // Of three pages the outer two are in use again; half of the third cools on
  // each stream.
  EXPECT_EQ(AllocatePages(1, one), first);
  const auto last =
      allocator_->Allocate(kPage, {.stream = other, .alignment = kPage});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->value(), first.value() + 2 * kPageBytes);
  EXPECT_EQ(allocator_->GetLargestPossible(kOwner), kPage);
  AddressRange* const range = Reserve(1);
  gate.OpenAfter(std::chrono::milliseconds(1));
  other_gate.OpenAfter(std::chrono::milliseconds(10));
  EXPECT_EQ(Commit(range, 0, 1), absl::OkStatus());
  memory_->ReleaseRange(range, Fence());
}

TEST_F(AllocatorLargestOfTest, NothingIsPromisedToOwnersThatCannotBe) {
  EXPECT_EQ(allocator_->GetLargestPossible(OwnerId(kMaxOwners)), Bytes(0));
  EXPECT_EQ(allocator_->GetLargestPossible(OwnerId(UINT32_MAX)), Bytes(0));
}

}  // namespace
}  // namespace quire
