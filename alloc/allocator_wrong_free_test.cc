// What Free says of addresses that it must not take: the table in allocator.h.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/sleep.h"

namespace quire {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

class AllocatorWrongFreeTest : public AllocatorFixture {
 protected:
  // A slot of a small slab, one of a slab of whole pages, and pages.
  static constexpr uint64_t kSizes[] = {100, kPageBytes / 3,
                                        3 * kPageBytes + 100};

  // Of an address and of some inside what lay there.
  void ExpectRefused(DeviceAddress address, uint64_t size,
                     absl::StatusCode of_start, absl::StatusCode of_inside) {
    const AllocatorStatistics before = Statistics();
    EXPECT_EQ(allocator_->Free(address).code(), of_start) << size << " bytes";
    for (const uint64_t offset : {uint64_t{8}, size / 2, size - 1}) {
      const absl::Status status =
          allocator_->Free(DeviceAddress(address.value() + offset));
      EXPECT_EQ(status.code(), of_inside)
          << offset << " in " << size << " bytes: " << status;
    }
    EXPECT_EQ(Statistics().total_frees, before.total_frees);
    EXPECT_EQ(Statistics().live_bytes, before.live_bytes);
  }
};

TEST_F(AllocatorWrongFreeTest, DoubleFreesAreFoundWhileMemoryIsKeptOrCools) {
  const StreamId stream = MakeStream();
  for (const uint64_t size : {uint64_t{100}, 3 * kPageBytes}) {
    // Keeps the slab, where it is one.
    const DeviceAddress other = Allocate(size);
    const DeviceAddress free = Allocate(size, stream);
    const DeviceAddress cooling = Allocate(size, stream);
    Gate gate(driver_.get(), stream);
    Free(free);
    Free(cooling, stream);
    const AllocatorStatistics before = Statistics();
    for (const DeviceAddress address : {free, cooling}) {
      for (const StreamId on : {StreamId(), stream}) {
        EXPECT_EQ(allocator_->Free(address, on).code(),
                  absl::StatusCode::kFailedPrecondition);
        EXPECT_EQ(allocator_->RecordStream(address, stream).code(),
                  absl::StatusCode::kFailedPrecondition);
      }
      EXPECT_FALSE(allocator_->Find(address).has_value());
    }
    EXPECT_EQ(Statistics().cooling_bytes, before.cooling_bytes);
    EXPECT_EQ(Statistics().cached_bytes, before.cached_bytes);
    EXPECT_EQ(Statistics().total_frees, before.total_frees);
    gate.Open();
    Free(other);
  }
}

TEST_F(AllocatorWrongFreeTest, ForeignAndInteriorAddressesAreRefused) {
  const DeviceAddress small = Allocate(1000);
  const DeviceAddress large = AllocatePages(3);
  AddressRange* const foreign = Reserve(2);
  ASSERT_EQ(Commit(foreign, 0, 2), absl::OkStatus());
  int not_a_span = 0;
  const auto refused = [this](uint64_t address) {
    EXPECT_EQ(allocator_->Free(DeviceAddress(address)).code(),
              absl::StatusCode::kInvalidArgument)
        << std::hex << address;
  };
  for (const uint64_t address :
       {uint64_t{0}, uint64_t{1}, UINT64_MAX, small.value() + 1,
        small.value() + 256, small.value() + 999, small.value() - 256,
        large.value() + 1, large.value() + kPageBytes,
        large.value() + 3 * kPageBytes - 1, large.value() + 3 * kPageBytes,
        reinterpret_cast<uint64_t>(&not_a_span)}) {
    refused(address);
  }
  // Whatever a stranger keeps with a range, it is not taken for ours.
  for (const uintptr_t data : {uintptr_t{0}, uintptr_t{1}, uintptr_t{2},
                               reinterpret_cast<uintptr_t>(&not_a_span)}) {
    foreign->set_user_data(reinterpret_cast<void*>(data));
    refused(foreign->address().value());
    EXPECT_FALSE(allocator_->Find(foreign->address()).has_value());
  }
  memory_->ReleaseRange(foreign, Fence());
  EXPECT_EQ(Statistics().live_allocations, 2u);
  Free(small);
  Free(large);
}

TEST_F(AllocatorWrongFreeTest, InsideOfWhatIsLiveIsTheCallersMistake) {
  for (const uint64_t size : kSizes) {
    const DeviceAddress address = Allocate(size);
    for (const uint64_t offset : {uint64_t{8}, size / 2, size - 1}) {
      const DeviceAddress inside(address.value() + offset);
      EXPECT_EQ(allocator_->Free(inside).code(), kInvalid);
      EXPECT_EQ(allocator_->Pin(inside).code(), kInvalid);
    }
    Free(address);
  }
}

TEST_F(AllocatorWrongFreeTest, WhatWasFreedIsKnownBeforeAndAfterATrim) {
  for (const uint64_t size : kSizes) {
    const DeviceAddress address = Allocate(size);
    Free(address);
    ExpectRefused(address, size, kPrecondition, kPrecondition);
    allocator_->Trim();
    EXPECT_EQ(Statistics().mapped_bytes, 0u);
    ExpectRefused(address, size, kPrecondition, kPrecondition);
    memory_->Trim();
    ExpectRefused(address, size, kPrecondition, kPrecondition);
  }
}

TEST_F(AllocatorWrongFreeTest, WhatLayInADetourIsKnownWhenItIsGone) {
  // Two free runs that are too short one by one.
  std::vector<DeviceAddress> pieces;
  for (int i = 0; i < 4; ++i) pieces.push_back(AllocatePages(kLimitPages / 4));
  Free(pieces[0]);
  Free(pieces[2]);
  const DeviceAddress detour = AllocatePages(kLimitPages / 2);
  Free(detour);
  Free(pieces[1]);
  Free(pieces[3]);
  allocator_->Trim();
  ExpectRefused(detour, kLimitPages / 2 * kPageBytes, kPrecondition,
                kPrecondition);
}

TEST_F(AllocatorWrongFreeTest, SleepChangesNothingOfIt) {
  const OwnerId owner = owners_.Register("model");
  for (const uint64_t size : kSizes) {
    const auto allocate = [&] {
      return allocator_->Allocate(Bytes(size), {.owner = owner}).value();
    };
    const DeviceAddress freed = allocate();
    const DeviceAddress live = allocate();
    const DeviceAddress stays = allocate();
    Free(freed);
    {
      auto section = QuiescentSection::Begin(memory_.get(), {});
      ASSERT_TRUE(section.ok()) << section.status();
      ASSERT_TRUE(allocator_->Sleep(*section, owner).ok());
    }
    ExpectRefused(freed, size, kPrecondition, kPrecondition);
    EXPECT_EQ(allocator_->Free(DeviceAddress(live.value() + 8)).code(),
              kInvalid);
    Free(live);
    ExpectRefused(live, size, kPrecondition, kPrecondition);
    ASSERT_TRUE(allocator_->Wake(owner).ok());
    ExpectRefused(live, size, kPrecondition, kPrecondition);
    Free(stays);
    ExpectRefused(stays, size, kPrecondition, kPrecondition);
  }
}

TEST_F(AllocatorWrongFreeTest, OfAnotherAllocatorIsForeignWhoeverHadItBefore) {
  for (const uint64_t size : kSizes) {
    // Leaves addresses behind that the other one may come by.
    const DeviceAddress before = Allocate(size);
    Free(before);
    allocator_->Trim();
    const auto other = DeviceAllocator::Create(memory_.get());
    const DeviceAddress foreign = other->Allocate(Bytes(size)).value();
    ExpectRefused(foreign, size, kInvalid, kInvalid);
    EXPECT_EQ(other->Free(foreign), absl::OkStatus());
  }
}

TEST_F(AllocatorWrongFreeTest, OfAnotherDeviceIsForeign) {
  auto driver = TestDriver::Create(DriverOptions());
  ASSERT_TRUE(driver.ok()) << driver.status();
  auto memory = DeviceMemory::Create(driver->get(), &owners_, Options());
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto other = DeviceAllocator::Create(memory->get());
  for (const uint64_t size : kSizes) {
    const DeviceAddress own = Allocate(size);
    const DeviceAddress foreign = other->Allocate(Bytes(size)).value();
    ExpectRefused(foreign, size, kInvalid, kInvalid);
    EXPECT_EQ(other->Free(foreign), absl::OkStatus());
    ExpectRefused(foreign, size, kInvalid, kInvalid);
    Free(own);
  }
}

}  // namespace
}  // namespace quire
