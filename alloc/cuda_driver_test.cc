#include "quire/alloc/cuda_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "alloc/cuda_driver_impl.h"
#include "alloc/cuda_function_table.h"
#include "alloc/testing/cuda_driver_fixture.h"
#include "alloc/testing/expect_status.h"
#include "alloc/testing/fake_cuda.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::SizeIs;

// ---- Start ------------------------------------------------------------------

TEST(CudaFunctionTableTest, SaysWhyThereIsNoDriver) {
  EXPECT_STATUS(kUnavailable, "libquire-no-such-driver.so.1",
                LoadCudaFunctionTable("libquire-no-such-driver.so.1").status());
  // A library, but not the driver.
  EXPECT_STATUS(kUnavailable, "no cuGetProcAddress",
                LoadCudaFunctionTable("libm.so.6").status());
}

TEST(CudaDriverStartTest, IsThereOrUnavailableOnAnyMachine) {
  const auto driver = CreateCudaDriver();
  if (driver.ok()) {
    EXPECT_GT((*driver)->device_count(), 0);
    return;
  }
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kUnavailable)
      << driver.status();
  EXPECT_FALSE(driver.status().message().empty());
}

// dmlc/xgboost#12217: a virtual GPU without virtual memory management ended the
// process.
TEST(CudaDriverStartTest, Xgboost12217IsUnavailableWithoutAUsableDevice) {
  const auto none = *FakeCuda::Create({.device_count = 0});
  EXPECT_STATUS(kUnavailable, "no CUDA device",
                CreateCudaDriverOn(none->Table()).status());
  const auto old = *FakeCuda::Create({.has_virtual_memory = false});
  EXPECT_STATUS(kUnavailable, "no virtual memory management",
                CreateCudaDriverOn(old->Table()).status());
  const auto cuda = *FakeCuda::Create();
  for (const char* const function :
       {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
        "cuDeviceGetAttribute", "cuDeviceTotalMem",
        "cuMemGetAllocationGranularity"}) {
    cuda->FailCall(function, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_STATUS(kUnavailable, function,
                  CreateCudaDriverOn(cuda->Table()).status());
  }
  EXPECT_TRUE(CreateCudaDriverOn(cuda->Table()).ok());
  EXPECT_THAT(cuda->Leaks(), IsEmpty());
  EXPECT_THAT(cuda->ContextLeaks(), IsEmpty());
}

// ---- With a device ----------------------------------------------------------

using CudaDriverTest = CudaDriverFixture;

TEST_F(CudaDriverTest, DescribesItsDevices) {
  EXPECT_EQ(driver_->name(), "cuda");
  EXPECT_FALSE(driver_->device_memory_is_host_memory());
  const auto info = driver_->GetDeviceInfo(DeviceId(0));
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->name, "fake device 0");
  EXPECT_EQ(info->total_memory, MiB(128));
  EXPECT_EQ(info->minimum_granularity, kPage);
  CreatePage();
  EXPECT_EQ(driver_->GetMemoryInfo(DeviceId(0))->free, MiB(126));
  EXPECT_STATUS(kInvalidArgument, "no device 1",
                driver_->GetMemoryInfo(DeviceId(1)).status());
}

TEST_F(CudaDriverTest, MapsARunWithOneAccessCall) {
  const DeviceAddress base = Reserve(4);
  ASSERT_TRUE(driver_->Map(At(base, 1), CreatePages(3)).ok());
  EXPECT_THAT(Mappings(), SizeIs(3));
  EXPECT_TRUE(AllAccessible());
  EXPECT_EQ(cuda_->CallsOf("cuMemSetAccess"), 1);
  ASSERT_TRUE(driver_->Unmap(At(base, 1), Bytes(3 * kPageBytes)).ok());
  EXPECT_THAT(Mappings(), IsEmpty());
  EXPECT_TRUE(driver_->ReleaseAddress(base, Bytes(4 * kPageBytes)).ok());
}

TEST_F(CudaDriverTest, AdoptsStreamsOfTheProgramAndLeavesThemToIt) {
  const CudaFunctionTable table = cuda_->Table();
  CUcontext context = nullptr;
  ASSERT_EQ(table.DevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(table.CtxPushCurrent(context), CUDA_SUCCESS);
  CUstream native = nullptr;
  ASSERT_EQ(table.StreamCreate(&native, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);

  const StreamId stream = *driver_->AdoptStream(DeviceId(0), native);
  EXPECT_EQ(*driver_->AdoptStream(DeviceId(0), native), stream);
  EXPECT_STATUS(kInvalidArgument, "no device 7",
                driver_->AdoptStream(DeviceId(7), native).status());
  const EventId event = *driver_->CreateEvent(DeviceId(0));
  EXPECT_EQ(driver_->RecordEvent(event, stream), absl::OkStatus());
  EXPECT_EQ(driver_->SynchronizeEvent(event), absl::OkStatus());
  EXPECT_EQ(driver_->DestroyEvent(event), absl::OkStatus());
  EXPECT_EQ(driver_->DestroyStream(stream), absl::OkStatus());
  EXPECT_STATUS(kNotFound, "", driver_->SynchronizeStream(stream));

  // It is still the program's; and one that is not given up is left alone at
  // the end, since it may be gone by then.
  ASSERT_TRUE(driver_->AdoptStream(DeviceId(0), native).ok());
  ASSERT_EQ(table.StreamDestroy(native), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  ASSERT_EQ(table.CtxPopCurrent(&popped), CUDA_SUCCESS);
  ASSERT_EQ(table.DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  const int destroyed = cuda_->CallsOf("cuStreamDestroy");
  driver_.reset();
  EXPECT_EQ(cuda_->CallsOf("cuStreamDestroy"), destroyed);
}

TEST_F(CudaDriverTest, GrantsAccessToEveryPeerThatReachesTheDevice) {
  Start({.device_count = 3});
  const DeviceAddress base = Reserve(1);
  ASSERT_TRUE(driver_->Map(base, std::vector{CreatePage(DeviceId(1))}).ok());
  EXPECT_THAT(Mappings().begin()->second.access,
              ElementsAre(Key(0), Key(1), Key(2)));
}

TEST_F(CudaDriverTest, AMapThatFailsAtAnyStepIsUndone) {
  const DeviceAddress base = Reserve(3);
  const std::vector<PageHandle> pages = CreatePages(3);
  for (int step = 1; step <= 4; ++step) {
    const char* const function = step <= 3 ? "cuMemMap" : "cuMemSetAccess";
    cuda_->FailCall(function, step <= 3 ? step : 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_STATUS(kResourceExhausted, function, driver_->Map(base, pages));
    EXPECT_THAT(Mappings(), IsEmpty()) << "step " << step;
  }
  EXPECT_TRUE(driver_->Map(base, pages).ok());
  EXPECT_TRUE(AllAccessible());
}

TEST_F(CudaDriverTest, AMapThatCannotBeUndoneIsQuarantined) {
  const DeviceAddress base = Reserve(3);
  const std::vector<PageHandle> pages = CreatePages(3);
  cuda_->FailCall("cuMemSetAccess", 1, CUDA_ERROR_OUT_OF_MEMORY);
  cuda_->FailCall("cuMemUnmap", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_STATUS(kDataLoss, "quarantine", driver_->Map(base, pages));
  // Only the page that could not be undone is lost.
  EXPECT_THAT(Mappings(), SizeIs(1));
  EXPECT_STATUS(kFailedPrecondition, "in quarantine",
                driver_->Map(At(base, 1), std::vector{pages[1]}));
  EXPECT_STATUS(kFailedPrecondition, "quarantine",
                driver_->Unmap(At(base, 1), kPage));
  EXPECT_STATUS(kFailedPrecondition, "quarantine",
                driver_->ReleaseAddress(base, Bytes(3 * kPageBytes)));
  EXPECT_TRUE(driver_->Map(base, std::vector{pages[0]}).ok());
  EXPECT_TRUE(driver_->Map(At(base, 2), std::vector{pages[2]}).ok());
  // The page is still mapped, so its memory is not given up.
  EXPECT_TRUE(driver_->ReleasePage(pages[1]).ok());
  EXPECT_EQ(cuda_->memory().handle_count(), 3u);
}

TEST_F(CudaDriverTest, AnUnmapThatFailsIsUndone) {
  const DeviceAddress base = Reserve(3);
  const std::vector<PageHandle> pages = CreatePages(3);
  ASSERT_TRUE(driver_->Map(base, pages).ok());
  // Also where the handle is released: the memory must still be there.
  ASSERT_TRUE(driver_->ReleasePage(pages[0]).ok());
  for (int step = 1; step <= 3; ++step) {
    cuda_->FailCall("cuMemUnmap", step, CUDA_ERROR_UNKNOWN);
    EXPECT_STATUS(kInternal, "cuMemUnmap",
                  driver_->Unmap(base, Bytes(3 * kPageBytes)));
    EXPECT_THAT(Mappings(), SizeIs(3)) << "step " << step;
    EXPECT_TRUE(AllAccessible()) << "step " << step;
  }
  EXPECT_TRUE(driver_->Unmap(base, Bytes(3 * kPageBytes)).ok());
}

TEST_F(CudaDriverTest, AnUnmapThatCannotBeUndoneIsQuarantined) {
  for (const char* const function : {"cuMemMap", "cuMemSetAccess"}) {
    const DeviceAddress base = Reserve(3);
    ASSERT_TRUE(driver_->Map(base, CreatePages(3)).ok());
    cuda_->FailCall("cuMemUnmap", 3, CUDA_ERROR_UNKNOWN);
    cuda_->FailCall(function, 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_STATUS(kDataLoss, "quarantine",
                  driver_->Unmap(base, Bytes(3 * kPageBytes)));
    EXPECT_STATUS(kFailedPrecondition, "quarantine",
                  driver_->Map(base, CreatePages(1)));
    // The page that was never unmapped is as it was.
    EXPECT_TRUE(driver_->Unmap(At(base, 2), kPage).ok());
  }
}

TEST_F(CudaDriverTest, AReleasedPageLivesUntilItsLastMapping) {
  const DeviceAddress base = Reserve(2);
  const PageHandle page = CreatePage();
  ASSERT_TRUE(driver_->Map(base, std::vector{page, page}).ok());
  ASSERT_TRUE(driver_->ReleasePage(page).ok());
  EXPECT_STATUS(kNotFound, "was released", driver_->ReleasePage(page));
  ASSERT_TRUE(driver_->Unmap(base, kPage).ok());
  EXPECT_EQ(driver_->GetMemoryInfo(DeviceId(0))->free, MiB(126));
  ASSERT_TRUE(driver_->Unmap(At(base, 1), kPage).ok());
  EXPECT_EQ(driver_->GetMemoryInfo(DeviceId(0))->free, MiB(128));
  EXPECT_EQ(cuda_->memory().handle_count(), 0u);
}

TEST_F(CudaDriverTest, AReleaseThatFailsKeepsThePage) {
  const PageHandle page = CreatePage();
  cuda_->FailCall("cuMemRelease", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_STATUS(kInternal, "cuMemRelease", driver_->ReleasePage(page));
  EXPECT_TRUE(driver_->ReleasePage(page).ok());
}

TEST_F(CudaDriverTest, OutOfMemoryAndOutOfAddressesAreToldApart) {
  CreatePages(64);
  const absl::Status memory = driver_->CreatePage(DeviceId(0), kPage).status();
  EXPECT_STATUS(kResourceExhausted,
                "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: out of memory", memory);
  EXPECT_STATUS(kResourceExhausted, "2.00 MiB of physical memory on device 0",
                memory);
  cuda_->FailCall("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_STATUS(kResourceExhausted, "out of addresses",
                driver_->ReserveAddress(kPage, Bytes(0)).status());
  // A result that no driver can name.
  cuda_->FailCall("cuMemAddressReserve", 1, static_cast<CUresult>(998));
  EXPECT_STATUS(kInternal, "error 998",
                driver_->ReserveAddress(kPage, Bytes(0)).status());
}

decltype(CudaFunctionTable::MemAddressReserve) well_behaved_reserve = nullptr;
decltype(CudaFunctionTable::MemAddressFree) well_behaved_free = nullptr;

// Addresses that are a page off what was asked for.
CUresult ReserveMisaligned(CUdeviceptr* address, size_t size, size_t alignment,
                           CUdeviceptr, unsigned long long flags) {
  const CUresult result =
      well_behaved_reserve(address, size + alignment, alignment, 0, flags);
  if (result != CUDA_SUCCESS) return result;
  const CUdeviceptr off = *address + CudaDriverFixture::kPageBytes;
  EXPECT_EQ(well_behaved_free(*address, size + alignment), CUDA_SUCCESS);
  return well_behaved_reserve(address, size, 0, off, flags);
}

TEST(CudaDriverFailureTest, AddressesThatAreNotAlignedAreGivenBack) {
  const auto cuda = *FakeCuda::Create();
  CudaFunctionTable table = cuda->Table();
  well_behaved_reserve = table.MemAddressReserve;
  well_behaved_free = table.MemAddressFree;
  table.MemAddressReserve = &ReserveMisaligned;
  const auto driver = *CreateCudaDriverOn(table);
  EXPECT_STATUS(kInternal, "is not aligned to 8388608",
                driver->ReserveAddress(MiB(2), MiB(8)).status());
  EXPECT_THAT(cuda->Leaks(), IsEmpty());
}

TEST_F(CudaDriverTest, RefusesMisuseBeforeTheDriverIsAsked) {
  const DeviceAddress base = Reserve(2);
  const PageHandle page = CreatePage();
  const int maps = cuda_->CallsOf("cuMemMap");
  EXPECT_STATUS(kInvalidArgument, "one reserved range",
                driver_->Map(At(base, 1), std::vector{page, page}));
  EXPECT_STATUS(kNotFound, "page 99",
                driver_->Map(base, std::vector{page, PageHandle(99)}));
  EXPECT_STATUS(kInvalidArgument, "no pages", driver_->Map(base, {}));
  EXPECT_EQ(cuda_->CallsOf("cuMemMap"), maps);
  EXPECT_STATUS(kInvalidArgument, "granularity",
                driver_->CreatePage(DeviceId(0), KiB(64)).status());
  EXPECT_STATUS(kInvalidArgument, "alignment 3",
                driver_->ReserveAddress(kPage, Bytes(3)).status());
  ASSERT_TRUE(driver_->Map(base, std::vector{page}).ok());
  EXPECT_STATUS(kFailedPrecondition, "still mapped",
                driver_->ReleaseAddress(base, Bytes(2 * kPageBytes)));
  EXPECT_STATUS(kFailedPrecondition, "nothing is mapped",
                driver_->Unmap(base, Bytes(2 * kPageBytes)));
}

// ---- Streams, events, work --------------------------------------------------

TEST_F(CudaDriverTest, AnEventThatIsNotReadyIsNoError) {
  const StreamId stream = *driver_->CreateStream(DeviceId(0));
  const EventId event = *driver_->CreateEvent(DeviceId(0));
  std::promise<void> gate;
  ASSERT_TRUE(
      driver_
          ->LaunchHostFunction(
              stream, [opened = gate.get_future().share()] { opened.wait(); })
          .ok());
  ASSERT_TRUE(driver_->RecordEvent(event, stream).ok());
  EXPECT_FALSE(*driver_->QueryEvent(event));
  gate.set_value();
  EXPECT_TRUE(driver_->SynchronizeEvent(event).ok());
  EXPECT_TRUE(*driver_->QueryEvent(event));
  cuda_->FailCall("cuEventQuery", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_STATUS(kInternal, "cuEventQuery", driver_->QueryEvent(event).status());
  EXPECT_TRUE(driver_->SynchronizeEvent(event).ok());
  EXPECT_TRUE(driver_->WaitEvent(stream, event).ok());
}

TEST_F(CudaDriverTest, WorksInTheContextOfTheDeviceWhateverIsCurrent) {
  Start({.device_count = 3});
  const CudaFunctionTable others = cuda_->Table();
  CUcontext foreign = nullptr;
  ASSERT_EQ(others.DevicePrimaryCtxRetain(&foreign, 2), CUDA_SUCCESS);
  ASSERT_EQ(others.CtxPushCurrent(foreign), CUDA_SUCCESS);
  for (const int32_t device : {1, 0, 1}) {
    const StreamId stream = *driver_->CreateStream(DeviceId(device));
    const EventId event = *driver_->CreateEvent(DeviceId(device));
    const DeviceAddress base = Reserve(2);
    ASSERT_TRUE(driver_
                    ->Map(base, std::vector{CreatePage(DeviceId(device)),
                                            CreatePage(DeviceId(device))})
                    .ok());
    uint8_t byte = 0;
    EXPECT_TRUE(driver_->CopyToDevice(base, &byte, Bytes(1), stream).ok());
    EXPECT_TRUE(driver_->CopyToHost(&byte, base, Bytes(1), stream).ok());
    EXPECT_TRUE(
        driver_->CopyOnDevice(base, At(base, 1), Bytes(1), stream).ok());
    EXPECT_TRUE(driver_->Fill(base, 1, kPage, stream).ok());
    EXPECT_TRUE(driver_->RecordEvent(event, stream).ok());
    EXPECT_TRUE(driver_->WaitEvent(stream, event).ok());
    EXPECT_TRUE(driver_->SynchronizeStream(stream).ok());
    EXPECT_TRUE(driver_->DestroyEvent(event).ok());
    EXPECT_TRUE(driver_->DestroyStream(stream).ok());
  }
  EXPECT_THAT(cuda_->contexts().stack(), ElementsAre(foreign));
  EXPECT_EQ(others.CtxPopCurrent(&foreign), CUDA_SUCCESS);
  EXPECT_EQ(others.DevicePrimaryCtxRelease(2), CUDA_SUCCESS);
}

TEST_F(CudaDriverTest, RetainsTheContextsOfDevicesInUseOnly) {
  Start({.device_count = 3});
  Reserve(1);
  CreatePage(DeviceId(1));
  EXPECT_EQ(cuda_->CallsOf("cuDevicePrimaryCtxRetain"), 0);
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(driver_->CreateStream(DeviceId(2)).ok());
  ASSERT_TRUE(driver_->AllocatePinned(KiB(4)).ok());
  EXPECT_EQ(cuda_->CallsOf("cuDevicePrimaryCtxRetain"), 1);
  EXPECT_EQ(cuda_->contexts().retained(2), 1);
  cuda_->FailCall("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_STATUS(kResourceExhausted, "cuDevicePrimaryCtxRetain",
                driver_->CreateStream(DeviceId(0)).status());
  EXPECT_TRUE(driver_->CreateStream(DeviceId(0)).ok());
}

TEST_F(CudaDriverTest, CopiesAreCheckedAtTheCall) {
  const StreamId stream = *driver_->CreateStream(DeviceId(0));
  const DeviceAddress base = Reserve(2);
  ASSERT_TRUE(driver_->Map(base, CreatePages(1)).ok());
  uint8_t byte = 0;
  EXPECT_STATUS(kInvalidArgument, "nothing is mapped",
                driver_->CopyToDevice(At(base, 1), &byte, Bytes(1), stream));
  EXPECT_STATUS(kInvalidArgument, "null",
                driver_->CopyToHost(nullptr, base, Bytes(1), stream));
  EXPECT_STATUS(kInvalidArgument, "overlap",
                driver_->CopyOnDevice(base, base, Bytes(1), stream));
  EXPECT_STATUS(kNotFound, "stream 77",
                driver_->Fill(base, 0, Bytes(1), StreamId(77)));
  cuda_->FailCall("cuMemsetD8Async", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_STATUS(kInternal, "cuMemsetD8Async",
                driver_->Fill(base, 0, Bytes(1), stream));
}

TEST_F(CudaDriverTest, HostFunctionsRunOnceAndAreNeverLeaked) {
  const StreamId stream = *driver_->CreateStream(DeviceId(0));
  auto owned = std::make_shared<int>(0);
  const auto count = [owned] { ++*owned; };
  ASSERT_TRUE(driver_->LaunchHostFunction(stream, count).ok());
  cuda_->FailCall("cuLaunchHostFunc", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_STATUS(kInternal, "cuLaunchHostFunc",
                driver_->LaunchHostFunction(stream, count));
  ASSERT_TRUE(driver_->SynchronizeStream(stream).ok());
  EXPECT_EQ(*owned, 1);
  EXPECT_EQ(owned.use_count(), 2) << "this test's pointer and `count`'s";
  EXPECT_STATUS(kInvalidArgument, "no function",
                driver_->LaunchHostFunction(stream, nullptr));
}

// A device that has failed runs nothing that is queued, and nothing is given
// back to it; but what the driver itself holds must not be lost.
TEST(CudaDriverFailureTest, HostFunctionsThatTheDeviceDropsAreNotLeaked) {
  const auto cuda = *FakeCuda::Create();
  auto driver = *CreateCudaDriverOn(cuda->Table());
  const Bytes page = MiB(2);
  const StreamId stream = *driver->CreateStream(DeviceId(0));
  const DeviceAddress base = *driver->ReserveAddress(page, Bytes(0));
  const PageHandle handle = *driver->CreatePage(DeviceId(0), page);
  ASSERT_TRUE(driver->Map(base, {&handle, 1}).ok());
  std::promise<void> gate;
  const auto wait = [opened = gate.get_future().share()] { opened.wait(); };
  ASSERT_TRUE(driver->LaunchHostFunction(stream, wait).ok());
  ASSERT_TRUE(driver->Fill(base, 1, page, stream).ok());
  auto owned = std::make_shared<int>(0);
  ASSERT_TRUE(driver->LaunchHostFunction(stream, [owned] { ++*owned; }).ok());
  // Under the fill, which nobody may do.
  ASSERT_TRUE(driver->Unmap(base, page).ok());
  gate.set_value();
  EXPECT_STATUS(kInternal, "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS",
                driver->SynchronizeStream(stream));
  EXPECT_STATUS(kInternal, "CUDA_ERROR_ILLEGAL_ADDRESS",
                driver->Map(base, {&handle, 1}));
  EXPECT_EQ(*owned, 0);
  driver.reset();
  EXPECT_EQ(owned.use_count(), 1);
}

TEST_F(CudaDriverTest, DestroyThatFailsKeepsTheObject) {
  const StreamId stream = *driver_->CreateStream(DeviceId(0));
  const EventId event = *driver_->CreateEvent(DeviceId(0));
  cuda_->FailCall("cuStreamDestroy", 1, CUDA_ERROR_UNKNOWN);
  cuda_->FailCall("cuEventDestroy", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_STATUS(kInternal, "cuStreamDestroy", driver_->DestroyStream(stream));
  EXPECT_STATUS(kInternal, "cuEventDestroy", driver_->DestroyEvent(event));
  EXPECT_TRUE(driver_->DestroyStream(stream).ok());
  EXPECT_TRUE(driver_->DestroyEvent(event).ok());
  EXPECT_STATUS(kNotFound, "stream", driver_->DestroyStream(stream));
  EXPECT_STATUS(kNotFound, "event", driver_->DestroyEvent(event));
}

TEST_F(CudaDriverTest, PinnedMemoryIsFreedOnce) {
  void* const memory = *driver_->AllocatePinned(KiB(4));
  cuda_->FailCall("cuMemFreeHost", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_STATUS(kInternal, "cuMemFreeHost", driver_->FreePinned(memory));
  EXPECT_TRUE(driver_->FreePinned(memory).ok());
  EXPECT_STATUS(kInvalidArgument, "not pinned", driver_->FreePinned(memory));
  EXPECT_STATUS(kInvalidArgument, "size is 0",
                driver_->AllocatePinned(Bytes(0)).status());
}

TEST_F(CudaDriverTest, ACallThatFailsPinsAndUnpinsNothing) {
  alignas(4096) static std::byte page[4096];
  cuda_->FailCall("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_STATUS(kResourceExhausted, "cuMemHostRegister",
                driver_->PinMemory(page, KiB(4)));
  EXPECT_STATUS(kInvalidArgument, "did not pin", driver_->UnpinMemory(page));
  ASSERT_TRUE(driver_->PinMemory(page, KiB(4)).ok());
  cuda_->FailCall("cuMemHostUnregister", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_STATUS(kInternal, "cuMemHostUnregister", driver_->UnpinMemory(page));
  EXPECT_STATUS(kFailedPrecondition, "pinned already",
                driver_->PinMemory(page, KiB(4)));
  EXPECT_TRUE(driver_->UnpinMemory(page).ok());
}

TEST_F(CudaDriverTest, CountsItsCalls) {
  CreatePages(2);
  EXPECT_FALSE(driver_->Map(DeviceAddress(), {}).ok());
  const DriverCallStatistics statistics = driver_->GetCallStatistics();
  EXPECT_EQ(statistics.CountOf("CreatePage"), 2u);
  EXPECT_EQ(statistics.CountOf("Map"), 1u);
  EXPECT_EQ(statistics.total_count(), 3u);
}

// The fixture's end checks that all of it goes back.
TEST_F(CudaDriverTest, TheEndGivesEverythingBack) {
  const DeviceAddress base = Reserve(4);
  const std::vector<PageHandle> pages = CreatePages(3);
  ASSERT_TRUE(driver_->Map(base, pages).ok());
  ASSERT_TRUE(driver_->ReleasePage(pages[0]).ok());
  ASSERT_TRUE(driver_->CreateStream(DeviceId(0)).ok());
  ASSERT_TRUE(driver_->CreateEvent(DeviceId(0)).ok());
  ASSERT_TRUE(driver_->AllocatePinned(KiB(4)).ok());
  alignas(4096) static std::byte page[4096];
  ASSERT_TRUE(driver_->PinMemory(page, KiB(4)).ok());
}

}  // namespace
}  // namespace quire
