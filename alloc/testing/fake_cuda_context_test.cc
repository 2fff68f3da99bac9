// The rules of start, devices, contexts and pinned memory: each is broken here,
// and the result is the one that docs/driver_rules.md gives with its reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "alloc/testing/caller_memory.h"
#include "alloc/testing/fake_cuda_fixture.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FakeCudaContextTest : public FakeCudaFixture {};

// ---- Start and end ----------------------------------------------------------

TEST(FakeCudaTest, NothingWorksBeforeInit) {
  const auto cuda = *FakeCuda::Create();
  const CudaFunctionTable cu = cuda->Table();
  int count = 0;
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  EXPECT_EQ(cu.DeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cu.DevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cu.MemAddressReserve(&address, 4096, 0, 0, 0),
            CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cu.Init(1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.DeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cu.Init(0), CUDA_SUCCESS);
  EXPECT_EQ(cu.DeviceGetCount(&count), CUDA_SUCCESS);
}

TEST(FakeCudaTest, NothingWorksAfterItsEnd) {
  CudaFunctionTable cu;
  {
    const auto cuda = *FakeCuda::Create();
    cu = cuda->Table();
    ASSERT_EQ(cu.Init(0), CUDA_SUCCESS);
  }
  int count = 0;
  EXPECT_EQ(cu.DeviceGetCount(&count), CUDA_ERROR_DEINITIALIZED);
}

TEST(FakeCudaTest, SeveralAtOnceShareNothing) {
  std::vector<std::unique_ptr<FakeCuda>> fakes;
  for (int i = 0; i < FakeCuda::kMaxFakes; ++i) {
    fakes.push_back(*FakeCuda::Create({.device_count = i + 1}));
    ASSERT_EQ(fakes[i]->Table().Init(0), CUDA_SUCCESS);
  }
  for (int i = 0; i < FakeCuda::kMaxFakes; ++i) {
    int count = 0;
    ASSERT_EQ(fakes[i]->Table().DeviceGetCount(&count), CUDA_SUCCESS);
    EXPECT_EQ(count, i + 1);
    EXPECT_EQ(fakes[i]->CallsOf("cuDeviceGetCount"), 1);
  }
  EXPECT_EQ(FakeCuda::Create().status().code(),
            absl::StatusCode::kResourceExhausted);
  // A current context of one is none of another.
  CUcontext context = nullptr;
  ASSERT_EQ(fakes[0]->Table().DevicePrimaryCtxRetain(&context, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(fakes[0]->Table().CtxPushCurrent(context), CUDA_SUCCESS);
  size_t free = 0;
  EXPECT_EQ(fakes[0]->Table().MemGetInfo(&free, &free), CUDA_SUCCESS);
  EXPECT_EQ(fakes[1]->Table().MemGetInfo(&free, &free),
            CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(fakes[0]->Table().CtxPopCurrent(&context), CUDA_SUCCESS);
  fakes.pop_back();
  EXPECT_TRUE(FakeCuda::Create().ok());
}

TEST(FakeCudaTest, RefusesGranularitiesThatCannotBe) {
  for (const size_t granularity : {0, 2048, 12288}) {
    EXPECT_EQ(FakeCuda::Create({.granularity = granularity}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(FakeCudaContextTest, UnknownResultsHaveNoName) {
  const char* text = nullptr;
  EXPECT_EQ(cu_.GetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(cu_.GetErrorName(static_cast<CUresult>(998), &text),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(cu_.GetErrorString(static_cast<CUresult>(998), &text),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}

TEST_F(FakeCudaContextTest, FaultsFireOnceAtTheirCallAndDoNothing) {
  cuda_->FailCall("cuMemAddressReserve", 2, CUDA_ERROR_UNKNOWN);
  const int calls = cuda_->CallsOf("cuMemAddressReserve");
  Reserve(1);
  CUdeviceptr address = 0;
  EXPECT_EQ(cu_.MemAddressReserve(&address, kGranule, 0, 0, 0),
            CUDA_ERROR_UNKNOWN);
  Reserve(1);
  EXPECT_EQ(cuda_->CallsOf("cuMemAddressReserve"), calls + 3);
  EXPECT_EQ(cuda_->memory().reservation_count(), 2u);
}

// ---- Devices ----------------------------------------------------------------

TEST_F(FakeCudaContextTest, DevicesAreThoseBelowTheCount) {
  for (const int device : {-1, 2}) {
    CUdevice got = 0;
    char name[16];
    int value = 0;
    size_t bytes = 0;
    CUcontext context = nullptr;
    EXPECT_EQ(cu_.DeviceGet(&got, device), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu_.DeviceGetName(name, 16, device), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(
        cu_.DeviceGetAttribute(
            &value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            device),
        CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu_.DeviceTotalMem(&bytes, device), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu_.DeviceCanAccessPeer(&value, 0, device),
              CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu_.DevicePrimaryCtxRetain(&context, device),
              CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cu_.DevicePrimaryCtxRelease(device), CUDA_ERROR_INVALID_DEVICE);
  }
  CUdevice got = 7;
  EXPECT_EQ(cu_.DeviceGet(&got, 1), CUDA_SUCCESS);
  EXPECT_EQ(got, 1);
}

TEST_F(FakeCudaContextTest, ANameIsCutToItsRoom) {
  char name[] = "xxxxxxxx";
  ASSERT_EQ(cu_.DeviceGetName(name, 5, 0), CUDA_SUCCESS);
  EXPECT_STREQ(name, "fake");
  EXPECT_EQ(name[5], 'x');
}

TEST_F(FakeCudaContextTest, PeersReachEachOtherOrNot) {
  int can = 0;
  ASSERT_EQ(cu_.DeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
  ASSERT_EQ(cu_.DeviceCanAccessPeer(&can, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 0) << "no device is a peer of itself";
}

// ---- Contexts ---------------------------------------------------------------

TEST_F(FakeCudaContextTest, ARetainedContextIsNotCurrent) {
  Retain(1);
  EXPECT_THAT(cuda_->contexts().stack(), SizeIs(1)) << "the fixture's";
}

TEST_F(FakeCudaContextTest, AContextIsReleasedAsOftenAsItIsRetained) {
  EXPECT_EQ(cu_.DevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
  Retain(1);
  Retain(1);
  EXPECT_EQ(cu_.DevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(cu_.DevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(cu_.DevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(FakeCudaContextTest, TheLastReleaseTakesWhatTheContextHeld) {
  Enter(1);
  Retain(1);
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  void* pinned = nullptr;
  ASSERT_EQ(cu_.MemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu_.DevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(cu_.StreamSynchronize(stream), CUDA_SUCCESS) << "not the last";
  ASSERT_EQ(cu_.DevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  Leave();
  EXPECT_EQ(cu_.StreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.EventQuery(event), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu_.MemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaContextTest, AllocationsOutliveTheContext) {
  Retain(1);
  const CUdeviceptr address = MakeMemory(2, 1);
  ASSERT_EQ(cu_.DevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(cuda_->memory().allocation_count(), 1u);
  EXPECT_EQ(Unmap(address, 2), CUDA_SUCCESS);
}

TEST_F(FakeCudaContextTest, OnlyALiveContextCanBeMadeCurrent) {
  EXPECT_EQ(cu_.CtxPushCurrent(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cu_.CtxPushCurrent(reinterpret_cast<CUcontext>(0xF00)),
            CUDA_ERROR_INVALID_CONTEXT);
  const CUcontext context = Retain(1);
  ASSERT_EQ(cu_.DevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(cu_.CtxPushCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
}

// Every function that says CUDA_ERROR_INVALID_CONTEXT of itself and works on
// the current context.
TEST_F(FakeCudaContextTest, CallsNeedACurrentContextThatIsAlive) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  const CUdeviceptr address = MakeMemory(2);
  size_t size = 0;
  CUstream new_stream = nullptr;
  CUevent new_event = nullptr;
  void* pinned = nullptr;
  uint8_t byte = 0;
  const std::function<CUresult()> calls[] = {
      [&] { return cu_.MemGetInfo(&size, &size); },
      [&] { return cu_.StreamCreate(&new_stream, CU_STREAM_NON_BLOCKING); },
      [&] { return cu_.StreamDestroy(stream); },
      [&] { return cu_.StreamSynchronize(stream); },
      [&] { return cu_.StreamWaitEvent(stream, event, 0); },
      [&] { return cu_.EventCreate(&new_event, 0); },
      [&] { return cu_.EventDestroy(event); },
      [&] { return cu_.EventRecord(event, stream); },
      [&] { return cu_.EventSynchronize(event); },
      [&] { return cu_.MemcpyHtoDAsync(address, &byte, 1, stream); },
      [&] { return cu_.MemcpyDtoHAsync(&byte, address, 1, stream); },
      [&] { return cu_.MemcpyDtoDAsync(address, address + 1, 1, stream); },
      [&] { return cu_.MemsetD8Async(address, 0, 1, stream); },
      [&] {
        return cu_.LaunchHostFunc(
            stream, [](void*) {}, nullptr);
      },
      [&] { return cu_.MemHostAlloc(&pinned, 4096, 0); },
      [&] { return cu_.MemFreeHost(pinned); },
      [&] { return cu_.MemHostRegister(pinned, 4096, 0); },
      [&] { return cu_.MemHostUnregister(pinned); },
  };
  std::thread([&] {
    for (const auto& call : calls)
      EXPECT_EQ(call(), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cu_.EventQuery(event), CUDA_SUCCESS) << "this one needs none";
  }).join();
  ASSERT_EQ(cu_.DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  for (const auto& call : calls) {
    EXPECT_EQ(call(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }
}

TEST_F(FakeCudaContextTest, PopGivesBackWhatWasCurrent) {
  const CUcontext first = cuda_->contexts().stack().front();
  const CUcontext second = Retain(1);
  ASSERT_EQ(cu_.CtxPushCurrent(second), CUDA_SUCCESS);
  EXPECT_THAT(cuda_->contexts().stack(), ElementsAre(first, second));
  CUcontext popped = nullptr;
  ASSERT_EQ(cu_.CtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, second);
  ASSERT_EQ(cu_.CtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, first);
  EXPECT_EQ(cu_.CtxPopCurrent(&popped), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(FakeCudaContextTest, LeaksAreNamed) {
  EXPECT_THAT(cuda_->ContextLeaks(), SizeIs(2)) << "retained and current";
  Leave();
  ASSERT_EQ(cu_.DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_THAT(cuda_->ContextLeaks(), IsEmpty());
  EXPECT_THAT(cuda_->Leaks(), IsEmpty());
}

// ---- Pinned memory ----------------------------------------------------------

TEST_F(FakeCudaContextTest, PinnedMemoryNeedsASizeAndKnownFlags) {
  void* memory = nullptr;
  EXPECT_EQ(cu_.MemHostAlloc(&memory, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemHostAlloc(&memory, 4096, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemHostAlloc(nullptr, 4096, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaContextTest, PinnedMemoryEnds) {
  void* memory = nullptr;
  EXPECT_EQ(cu_.MemHostAlloc(&memory, size_t{1} << 60, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(FakeCudaContextTest, PinnedMemoryIsFreedOnceAndByItsStart) {
  void* memory = nullptr;
  ASSERT_EQ(cu_.MemHostAlloc(&memory, 5000, CU_MEMHOSTALLOC_PORTABLE),
            CUDA_SUCCESS);
  static_cast<char*>(memory)[4999] = 1;
  EXPECT_THAT(cuda_->Leaks(), SizeIs(1));
  EXPECT_EQ(cu_.MemFreeHost(static_cast<char*>(memory) + 1),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu_.MemFreeHost(memory), CUDA_SUCCESS);
  EXPECT_EQ(cu_.MemFreeHost(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemFreeHost(nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaContextTest, PinnedMemoryFreedUnderACopyFaults) {
  const CUdeviceptr address = MakeMemory(1);
  const CUstream stream = MakeStream();
  void* memory = nullptr;
  ASSERT_EQ(cu_.MemHostAlloc(&memory, 4096, 0), CUDA_SUCCESS);
  Gate gate(cu_, stream);
  ASSERT_EQ(
      cu_.MemcpyHtoDAsync(address, static_cast<char*>(memory) + 64, 64, stream),
      CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemFreeHost(memory), CUDA_SUCCESS);
  gate.Open();
  EXPECT_EQ(cu_.StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaContextTest, RegisteringTakesWholePagesThatAreThere) {
  const CallerMemory pages(2);
  constexpr size_t kPage = CallerMemory::kPage;
  EXPECT_EQ(cu_.MemHostRegister(nullptr, kPage, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemHostRegister(pages.page(0), 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemHostRegister(pages.page(0), kPage, 64),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemHostRegister(pages.page(0) + 8, kPage, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemHostRegister(pages.page(0), kPage + 8, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemHostRegister(pages.page(1), size_t{1} << 42, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(cuda_->Leaks(), IsEmpty());
}

TEST_F(FakeCudaContextTest, MemoryIsRegisteredOnceAndUnregisteredByItsBase) {
  const CallerMemory pages(4);
  constexpr size_t kPage = CallerMemory::kPage;
  ASSERT_EQ(cu_.MemHostRegister(pages.page(1), 2 * kPage,
                                CU_MEMHOSTREGISTER_PORTABLE),
            CUDA_SUCCESS);
  EXPECT_THAT(cuda_->Leaks(), SizeIs(1));
  for (const size_t first : {0, 1, 2}) {
    EXPECT_EQ(cu_.MemHostRegister(pages.page(first), 2 * kPage, 0),
              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  }
  ASSERT_EQ(cu_.MemHostRegister(pages.page(0), kPage, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemHostRegister(pages.page(3), kPage, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu_.MemHostUnregister(pages.page(2)),
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cu_.MemFreeHost(pages.page(1)), CUDA_ERROR_INVALID_VALUE);
  for (const size_t base : {0, 1, 3})
    EXPECT_EQ(cu_.MemHostUnregister(pages.page(base)), CUDA_SUCCESS);
  EXPECT_EQ(cu_.MemHostUnregister(pages.page(1)),
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  void* allocated = nullptr;
  ASSERT_EQ(cu_.MemHostAlloc(&allocated, kPage, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu_.MemHostRegister(allocated, kPage, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cu_.MemHostUnregister(allocated),
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cu_.MemFreeHost(allocated), CUDA_SUCCESS);
  EXPECT_THAT(cuda_->Leaks(), IsEmpty());
}

TEST_F(FakeCudaContextTest, MemoryUnregisteredUnderACopyFaults) {
  const CallerMemory pages(1);
  const CUdeviceptr address = MakeMemory(1);
  const CUstream stream = MakeStream();
  ASSERT_EQ(cu_.MemHostRegister(pages.page(0), CallerMemory::kPage, 0),
            CUDA_SUCCESS);
  Gate gate(cu_, stream);
  ASSERT_EQ(cu_.MemcpyHtoDAsync(address, pages.page(0) + 64, 64, stream),
            CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemHostUnregister(pages.page(0)), CUDA_SUCCESS);
  gate.Open();
  EXPECT_EQ(cu_.StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace quire
