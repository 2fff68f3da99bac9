// The rules of virtual memory management: each is broken here, and the result
// is the one that docs/driver_rules.md gives with its reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "alloc/testing/fake_cuda_fixture.h"

namespace quire {
namespace {

using ::testing::IsEmpty;

class FakeCudaMemoryTest : public FakeCudaFixture {
 protected:
  // What the device itself may do at an address, tried by the device.
  static volatile uint8_t& ByteAt(CUdeviceptr address) {
    return *reinterpret_cast<volatile uint8_t*>(address);
  }
};

// ---- Addresses --------------------------------------------------------------

TEST_F(FakeCudaMemoryTest, ReserveTakesNoFlags) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cu_.MemAddressReserve(&address, kGranule, 0, 0, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemAddressReserve(nullptr, kGranule, 0, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemoryTest, ReserveTakesHostPagesAndPowersOfTwo) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cu_.MemAddressReserve(&address, 4095, 0, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemAddressReserve(&address, 0, 0, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemAddressReserve(&address, kGranule, 0, 4097, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemAddressReserve(&address, kGranule, 3 * kGranule, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu_.MemAddressReserve(&address, 4096, 16 * kGranule, 0, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(address % (16 * kGranule), 0u);
}

TEST_F(FakeCudaMemoryTest, AReserveHintIsFollowedWhereTheAddressesAreFree) {
  const CUdeviceptr first = Reserve(4);
  ASSERT_EQ(cu_.MemAddressFree(first, 4 * kGranule), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  ASSERT_EQ(cu_.MemAddressReserve(&address, kGranule, 0, first, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(address, first);
  // Taken now, so the hint is only that.
  CUdeviceptr other = 0;
  ASSERT_EQ(cu_.MemAddressReserve(&other, kGranule, 0, first, 0), CUDA_SUCCESS);
  EXPECT_NE(other, first);
}

TEST_F(FakeCudaMemoryTest, OutOfAddressesIsOutOfMemory) {
  FakeCudaOptions options = Options();
  options.address_space = 8 * kGranule;
  Start(options);
  const CUdeviceptr first = Reserve(6);
  CUdeviceptr address = 0;
  EXPECT_EQ(cu_.MemAddressReserve(&address, 3 * kGranule, 0, 0, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu_.MemAddressReserve(&address, size_t{1} << 63, 0, 0, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cu_.MemAddressFree(first, 6 * kGranule), CUDA_SUCCESS);
  Reserve(8);
}

TEST_F(FakeCudaMemoryTest, FreesExactlyWhatWasReserved) {
  const CUdeviceptr address = Reserve(4);
  EXPECT_EQ(cu_.MemAddressFree(address, 2 * kGranule),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemAddressFree(address + kGranule, 3 * kGranule),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu_.MemAddressFree(address, 4 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(cu_.MemAddressFree(address, 4 * kGranule),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemoryTest, AMappedRangeIsNoReservationToBeFreed) {
  const CUdeviceptr address = Reserve(4);
  for (const size_t at : {0, 2, 3}) {
    ASSERT_EQ(Map(address + at * kGranule, 1, Create(1)), CUDA_SUCCESS);
    EXPECT_EQ(cu_.MemAddressFree(address, 4 * kGranule),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(Unmap(address + at * kGranule, 1), CUDA_SUCCESS);
  }
  EXPECT_EQ(cu_.MemAddressFree(address, 4 * kGranule), CUDA_SUCCESS);
}

// ---- Physical memory --------------------------------------------------------

TEST_F(FakeCudaMemoryTest, CreateTakesNoFlags) {
  const CUmemAllocationProp properties = Properties();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cu_.MemCreate(&handle, kGranule, &properties, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemCreate(nullptr, kGranule, &properties, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemCreate(&handle, kGranule, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemoryTest, CreateTakesPinnedMemoryOfADeviceOnly) {
  CUmemGenericAllocationHandle handle = 0;
  size_t granularity = 0;
  const auto expect_refused = [&](const CUmemAllocationProp& properties) {
    EXPECT_EQ(cu_.MemCreate(&handle, kGranule, &properties, 0),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu_.MemGetAllocationGranularity(&granularity, &properties,
                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              CUDA_ERROR_INVALID_VALUE);
  };
  CUmemAllocationProp properties = Properties();
  properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  expect_refused(properties);
  properties = Properties();
  properties.location.type = CU_MEM_LOCATION_TYPE_INVALID;
  expect_refused(properties);
  properties = Properties();
  int attributes = 0;
  properties.win32HandleMetaData = &attributes;
  expect_refused(properties);
  properties = Properties();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  expect_refused(properties);
}

TEST_F(FakeCudaMemoryTest, CreateNeedsADeviceThatExists) {
  CUmemGenericAllocationHandle handle = 0;
  for (const CUdevice device : {-1, 2}) {
    const CUmemAllocationProp properties = Properties(device);
    EXPECT_EQ(cu_.MemCreate(&handle, kGranule, &properties, 0),
              CUDA_ERROR_INVALID_DEVICE);
  }
}

TEST_F(FakeCudaMemoryTest, SizesAreMultiplesOfTheGranularity) {
  const CUmemAllocationProp properties = Properties();
  size_t granularity = 0;
  ASSERT_EQ(cu_.MemGetAllocationGranularity(&granularity, &properties,
                                            CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(granularity, kGranule);
  CUmemGenericAllocationHandle handle = 0;
  for (const size_t size : {size_t{0}, size_t{4096}, kGranule + 1}) {
    EXPECT_EQ(cu_.MemCreate(&handle, size, &properties, 0),
              CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_F(FakeCudaMemoryTest, ADeviceHasSoMuchMemory) {
  const CUmemAllocationProp properties = Properties();
  const CUmemGenericAllocationHandle handle = Create(kDeviceGranules - 1);
  CUmemGenericAllocationHandle other = 0;
  EXPECT_EQ(cu_.MemCreate(&other, 2 * kGranule, &properties, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  Create(1);
  EXPECT_EQ(cu_.MemCreate(&other, kGranule, &properties, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  // Each device has its own.
  Create(kDeviceGranules, 1);
  ASSERT_EQ(cu_.MemRelease(handle), CUDA_SUCCESS);
  Create(kDeviceGranules - 1);
}

TEST_F(FakeCudaMemoryTest, WhatIsFreeIsWhatCanBeCreated) {
  EXPECT_EQ(FreeBytes(), kDeviceGranules * kGranule);
  Create(3);
  Create(5, 1);
  EXPECT_EQ(FreeBytes(), (kDeviceGranules - 3) * kGranule);
  Enter(1);
  EXPECT_EQ(FreeBytes(), (kDeviceGranules - 5) * kGranule);
}

TEST_F(FakeCudaMemoryTest, NewMemoryIsNotCleared) {
  const CUdeviceptr address = MakeMemory(2);
  EXPECT_NE(ByteAt(address), 0);
  EXPECT_NE(ByteAt(address + kGranule), 0);
}

TEST_F(FakeCudaMemoryTest, AHandleIsReleasedOnce) {
  const CUmemGenericAllocationHandle handle = Create(1);
  ASSERT_EQ(cu_.MemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cu_.MemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemRelease(12345), CUDA_ERROR_INVALID_VALUE);
  // Also where its memory still lives.
  const CUdeviceptr address = Reserve(1);
  const CUmemGenericAllocationHandle mapped = Create(1);
  ASSERT_EQ(Map(address, 1, mapped), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemRelease(mapped), CUDA_SUCCESS);
  EXPECT_EQ(cu_.MemRelease(mapped), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(Create(1), handle) << "a stale handle must stay one";
}

TEST_F(FakeCudaMemoryTest, MemoryLivesUntilHandleAndMappingsAreGone) {
  const CUdeviceptr address = Reserve(2);
  const CUmemGenericAllocationHandle handle = Create(1);
  ASSERT_EQ(Map(address, 1, handle), CUDA_SUCCESS);
  ASSERT_EQ(Map(address + kGranule, 1, handle), CUDA_SUCCESS);
  ASSERT_EQ(Grant(address, 2, Access(0)), CUDA_SUCCESS);
  // A handle may go before its mappings, and the memory stays.
  ASSERT_EQ(cu_.MemRelease(handle), CUDA_SUCCESS);
  ByteAt(address) = 7;
  EXPECT_EQ(ByteAt(address + kGranule), 7) << "one memory";
  ASSERT_EQ(Unmap(address, 1), CUDA_SUCCESS);
  EXPECT_EQ(ByteAt(address + kGranule), 7);
  EXPECT_EQ(FreeBytes(), (kDeviceGranules - 1) * kGranule);
  ASSERT_EQ(Unmap(address + kGranule, 1), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), kDeviceGranules * kGranule);
  // Or after them.
  const CUmemGenericAllocationHandle other = Create(1);
  ASSERT_EQ(Map(address, 1, other), CUDA_SUCCESS);
  ASSERT_EQ(Unmap(address, 1), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), (kDeviceGranules - 1) * kGranule);
  ASSERT_EQ(cu_.MemRelease(other), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), kDeviceGranules * kGranule);
}

// ---- Mapping ----------------------------------------------------------------

TEST_F(FakeCudaMemoryTest, MapTakesNeitherFlagsNorAnOffset) {
  const CUdeviceptr address = Reserve(2);
  const CUmemGenericAllocationHandle handle = Create(2);
  EXPECT_EQ(cu_.MemMap(address, kGranule, 0, handle, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemMap(address, kGranule, kGranule, handle, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(cuda_->memory().mappings(), IsEmpty());
}

TEST_F(FakeCudaMemoryTest, MapTakesWholeGranules) {
  const CUdeviceptr address = Reserve(2);
  const CUmemGenericAllocationHandle handle = Create(1);
  EXPECT_EQ(cu_.MemMap(address + 4096, kGranule, 0, handle, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemMap(address, 4096, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemMap(address, 0, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemoryTest, MapTakesNoMoreThanTheAllocationHas) {
  const CUdeviceptr address = Reserve(4);
  const CUmemGenericAllocationHandle handle = Create(2);
  EXPECT_EQ(Map(address, 3, handle), CUDA_ERROR_INVALID_VALUE);
  // All of it, and a part from its start.
  EXPECT_EQ(Map(address, 2, handle), CUDA_SUCCESS);
  EXPECT_EQ(Map(address + 2 * kGranule, 1, handle), CUDA_SUCCESS);
}

TEST_F(FakeCudaMemoryTest, MapNeedsAHandleThatIsNotReleased) {
  const CUdeviceptr address = Reserve(2);
  const CUmemGenericAllocationHandle handle = Create(1);
  EXPECT_EQ(Map(address, 1, 12345), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(Map(address, 1, handle), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemRelease(handle), CUDA_SUCCESS);
  // Its memory lives, but nobody may ask for it any more.
  EXPECT_EQ(Map(address + kGranule, 1, handle), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemoryTest, MapNeedsOneReservation) {
  const CUmemGenericAllocationHandle handle = Create(2);
  EXPECT_EQ(Map(kGranule, 2, handle), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr address = Reserve(2);
  EXPECT_EQ(Map(address + kGranule, 2, handle), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu_.MemAddressFree(address, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(Map(address, 2, handle), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemoryTest, ARangeIsMappedOnce) {
  const CUdeviceptr address = Reserve(4);
  ASSERT_EQ(Map(address + kGranule, 2, Create(2)), CUDA_SUCCESS);
  const CUmemGenericAllocationHandle handle = Create(2);
  for (const size_t at : {0, 1, 2}) {
    EXPECT_EQ(Map(address + at * kGranule, 2, handle),
              CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(Map(address + 3 * kGranule, 1, handle), CUDA_SUCCESS);
}

TEST_F(FakeCudaMemoryTest, UnmapTakesOneMappingWhole) {
  const CUdeviceptr address = Reserve(5);
  ASSERT_EQ(Map(address, 2, Create(2)), CUDA_SUCCESS);
  ASSERT_EQ(Map(address + 2 * kGranule, 2, Create(2)), CUDA_SUCCESS);
  EXPECT_EQ(Unmap(address, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Unmap(address + kGranule, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Unmap(address, 4), CUDA_ERROR_INVALID_VALUE) << "two mappings";
  EXPECT_EQ(Unmap(address + 4 * kGranule, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Unmap(address + 2 * kGranule, 2), CUDA_SUCCESS);
  EXPECT_EQ(Unmap(address + 2 * kGranule, 2), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemoryTest, UnmappedAddressesCanBeMappedAgain) {
  const CUdeviceptr address = MakeMemory(2);
  ASSERT_EQ(Unmap(address, 2), CUDA_SUCCESS);
  EXPECT_EQ(Map(address, 1, Create(1)), CUDA_SUCCESS);
  EXPECT_EQ(Map(address + kGranule, 1, Create(1)), CUDA_SUCCESS);
}

// ---- Access -----------------------------------------------------------------

using FakeCudaMemoryDeathTest = FakeCudaMemoryTest;

TEST_F(FakeCudaMemoryDeathTest, AMappingStartsWithoutAccess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const CUdeviceptr address = Reserve(1);
  const CUmemGenericAllocationHandle handle = Create(1);
  ASSERT_EQ(Map(address, 1, handle), CUDA_SUCCESS);
  EXPECT_DEATH(ByteAt(address) = 1, "");
  ASSERT_EQ(Grant(address, 1, Access(0)), CUDA_SUCCESS);
  ByteAt(address) = 1;
  // Also where there was one with access before.
  ASSERT_EQ(Unmap(address, 1), CUDA_SUCCESS);
  ASSERT_EQ(Map(address, 1, handle), CUDA_SUCCESS);
  EXPECT_DEATH(ByteAt(address) = 1, "");
}

TEST_F(FakeCudaMemoryDeathTest, AccessCanBeTakenBack) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const CUdeviceptr address = MakeMemory(1);
  ASSERT_EQ(Grant(address, 1, Access(1)), CUDA_SUCCESS);
  ASSERT_EQ(Grant(address, 1, Access(0, CU_MEM_ACCESS_FLAGS_PROT_NONE)),
            CUDA_SUCCESS);
  ByteAt(address) = 1;  // the other device still has it
  ASSERT_EQ(Grant(address, 1, Access(1, CU_MEM_ACCESS_FLAGS_PROT_NONE)),
            CUDA_SUCCESS);
  EXPECT_DEATH(ByteAt(address) = 1, "");
}

TEST_F(FakeCudaMemoryTest, AccessIsSetForWholeMappingsWithoutGaps) {
  const CUdeviceptr address = Reserve(5);
  ASSERT_EQ(Map(address, 2, Create(2)), CUDA_SUCCESS);
  ASSERT_EQ(Map(address + 2 * kGranule, 1, Create(1)), CUDA_SUCCESS);
  ASSERT_EQ(Map(address + 4 * kGranule, 1, Create(1)), CUDA_SUCCESS);
  struct Range {
    size_t at;
    size_t granules;
  };
  for (const Range range : {Range{0, 1}, Range{1, 1}, Range{1, 2}, Range{0, 4},
                            Range{2, 3}, Range{3, 1}, Range{0, 0}}) {
    EXPECT_EQ(Grant(address + range.at * kGranule, range.granules, Access(0)),
              CUDA_ERROR_INVALID_VALUE)
        << range.at << " +" << range.granules;
  }
  for (const auto& [at, mapping] : cuda_->memory().mappings()) {
    EXPECT_THAT(mapping.access, IsEmpty()) << "a refused call changes nothing";
  }
  EXPECT_EQ(Grant(address, 3, Access(0)), CUDA_SUCCESS);
}

TEST_F(FakeCudaMemoryTest, AccessIsGivenToDevicesOnly) {
  const CUdeviceptr address = MakeMemory(1);
  CUmemAccessDesc access = Access(0);
  access.location.type = CU_MEM_LOCATION_TYPE_INVALID;
  EXPECT_EQ(Grant(address, 1, access), CUDA_ERROR_INVALID_VALUE);
  access = Access(0, static_cast<CUmemAccess_flags>(2));  // write only
  EXPECT_EQ(Grant(address, 1, access), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemSetAccess(address, kGranule, nullptr, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemSetAccess(address, kGranule, &access, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemoryTest, AccessIsGivenToDevicesThatExist) {
  const CUdeviceptr address = MakeMemory(1);
  EXPECT_EQ(Grant(address, 1, Access(2)), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(Grant(address, 1, Access(-1)), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(FakeCudaMemoryTest, AccessIsGivenToPeersThatReachTheMemory) {
  const CUdeviceptr address = MakeMemory(1);
  EXPECT_EQ(Grant(address, 1, Access(1)), CUDA_SUCCESS);
  FakeCudaOptions options = Options();
  options.device_count = 2;
  options.peers_reach_each_other = false;
  Start(options);
  const CUdeviceptr apart = MakeMemory(1);
  EXPECT_EQ(Grant(apart, 1, Access(1)), CUDA_ERROR_INVALID_DEVICE);
}

// ---- The test's own interest ------------------------------------------------

TEST_F(FakeCudaMemoryTest, LeaksAreNamed) {
  const CUdeviceptr address = Reserve(1);
  const CUmemGenericAllocationHandle handle = Create(1);
  ASSERT_EQ(Map(address, 1, handle), CUDA_SUCCESS);
  EXPECT_THAT(cuda_->Leaks(), ::testing::SizeIs(3));
  ASSERT_EQ(cu_.MemRelease(handle), CUDA_SUCCESS);
  EXPECT_THAT(cuda_->Leaks(), ::testing::SizeIs(2));
  ASSERT_EQ(Unmap(address, 1), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemAddressFree(address, kGranule), CUDA_SUCCESS);
  EXPECT_THAT(cuda_->Leaks(), IsEmpty());
}

TEST_F(FakeCudaMemoryTest, EveryMappingOfALongRunHasItsOwnMemory) {
  FakeCudaOptions options = Options();
  options.memory_per_device = 1024 * kGranule;
  Start(options);
  const CUdeviceptr address = Reserve(1024);
  for (size_t i = 0; i < 1024; ++i) {
    ASSERT_EQ(Map(address + i * kGranule, 1, Create(1)), CUDA_SUCCESS);
  }
  ASSERT_EQ(Grant(address, 1024, Access(0)), CUDA_SUCCESS);
  for (size_t i = 0; i < 1024; ++i) ByteAt(address + i * kGranule) = i;
  for (size_t i = 0; i < 1024; ++i) {
    ASSERT_EQ(ByteAt(address + i * kGranule), i % 256);
  }
}

}  // namespace
}  // namespace quire
