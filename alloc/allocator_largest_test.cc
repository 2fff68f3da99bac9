// What GetLargestPossible promises can be had at once, and more cannot.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
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

TEST_F(AllocatorLargestOfTest, NothingIsPromisedToOwnersThatCannotBe) {
  EXPECT_EQ(allocator_->GetLargestPossible(OwnerId(kMaxOwners)), Bytes(0));
  EXPECT_EQ(allocator_->GetLargestPossible(OwnerId(UINT32_MAX)), Bytes(0));
}

}  // namespace
}  // namespace quire
