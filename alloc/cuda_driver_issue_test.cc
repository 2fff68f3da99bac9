// Public reports about code that calls CUDA's virtual memory management, each
// as what it would be here: none of them may happen through CudaDriver.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "alloc/testing/cuda_driver_fixture.h"
#include "alloc/testing/expect_status.h"
#include "alloc/testing/run_in_child.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/owner.h"

namespace quire {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class CudaDriverIssueTest : public CudaDriverFixture {
 protected:
  // A small pool on one device.
  std::unique_ptr<DeviceMemory> MakeMemory(DeviceId device = DeviceId(0)) {
    DeviceMemoryOptions options;
    options.device = device;
    options.page_size = kPage;
    options.address_space = MiB(256);
    return *DeviceMemory::Create(driver_.get(), &owners_, options);
  }
  // What the device does at an address.
  static volatile uint8_t& ByteAt(DeviceAddress address) {
    return *address.host_pointer<volatile uint8_t>();
  }

  OwnerRegistry owners_;
};

// One of several maps failed, or the access call did; what was mapped before it
// stayed, the whole range was unmapped, and the process was lost.
TEST_F(CudaDriverIssueTest, Pytorch188008AndKvcached412APartialMapIsUndone) {
  const DeviceAddress base = Reserve(3);
  const std::vector<PageHandle> pages = CreatePages(3);
  for (const auto& [function, call] :
       {std::pair{"cuMemMap", 2}, std::pair{"cuMemSetAccess", 1}}) {
    cuda_->FailCall(function, call, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_STATUS(kResourceExhausted, function, driver_->Map(base, pages));
    EXPECT_THAT(Mappings(), IsEmpty());
  }
  // The same range and pages, at once.
  ASSERT_TRUE(driver_->Map(base, pages).ok());
  ByteAt(At(base, 2)) = 1;
  EXPECT_TRUE(driver_->Unmap(base, Bytes(3 * kPageBytes)).ok());
  EXPECT_TRUE(driver_->ReleaseAddress(base, Bytes(3 * kPageBytes)).ok());
}

// The null stream stood for whatever device was current, so that the wait
// before an unmap was for another device's work. Here device 0 is current all
// the time and everything is on device 1.
TEST_F(CudaDriverIssueTest, Pytorch196258AFreeWaitsForWorkOnItsOwnDevice) {
  Start({.device_count = 2});
  const CudaFunctionTable others = cuda_->Table();
  CUcontext current = nullptr;
  ASSERT_EQ(others.DevicePrimaryCtxRetain(&current, 0), CUDA_SUCCESS);
  ASSERT_EQ(others.CtxPushCurrent(current), CUDA_SUCCESS);
  auto memory = MakeMemory(DeviceId(1));
  AddressRange* const range = *memory->ReserveRange(PageCount(1), OwnerId(0));
  ASSERT_TRUE(memory->Commit(range, PageCount(0), PageCount(1)).ok());
  const StreamId stream = *driver_->CreateStream(DeviceId(1));
  std::promise<void> gate;
  const auto wait = [opened = gate.get_future().share()] { opened.wait(); };
  ASSERT_TRUE(driver_->LaunchHostFunction(stream, wait).ok());
  ASSERT_TRUE(driver_->Fill(range->address(), 1, kPage, stream).ok());
  const Fence fence = *Fence::Record(driver_.get(), DeviceId(1), {&stream, 1});
  memory->ReleaseRange(range, fence);
  memory->Trim(PageCount(0));
  EXPECT_THAT(Mappings(), SizeIs(1)) << "unmapped under work that is queued";
  gate.set_value();
  ASSERT_TRUE(driver_->SynchronizeStream(stream).ok());
  memory->Trim(PageCount(0));
  EXPECT_THAT(Mappings(), IsEmpty());
  // The null stream is no stream of this driver's: nothing can be put on it.
  EXPECT_STATUS(kNotFound, "stream 0",
                driver_->Fill(DeviceAddress(), 0, Bytes(1), StreamId()));
  memory.reset();
  EXPECT_EQ(others.CtxPopCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(others.DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
}

// An error that a call returned was kept in a global, and the next call, which
// was in order, reported it again.
TEST_F(CudaDriverIssueTest, Vllm45565And35463AnErrorIsReportedOnce) {
  const DeviceAddress base = Reserve(2);
  const StreamId stream = *driver_->CreateStream(DeviceId(0));
  const EventId event = *driver_->CreateEvent(DeviceId(0));
  const PageHandle kept = CreatePage();
  ASSERT_TRUE(driver_->Map(base, {&kept, 1}).ok());
  struct Call {
    const char* function;
    std::function<absl::Status()> make;
  };
  const PageHandle page = CreatePage();
  const Call calls[] = {
      {"cuMemCreate",
       [&] { return driver_->CreatePage(DeviceId(0), kPage).status(); }},
      {"cuMemMap",
       [&] {
         return driver_->Map(At(base, 1), {&page, 1});
       }},
      {"cuMemUnmap", [&] { return driver_->Unmap(base, kPage); }},
      {"cuMemGetInfo",
       [&] { return driver_->GetMemoryInfo(DeviceId(0)).status(); }},
      {"cuEventQuery", [&] { return driver_->QueryEvent(event).status(); }},
      {"cuStreamSynchronize",
       [&] { return driver_->SynchronizeStream(stream); }},
      {"cuMemsetD8Async",
       [&] { return driver_->Fill(base, 0, kPage, stream); }},
  };
  for (const Call& call : calls) {
    cuda_->FailCall(call.function, 1, CUDA_ERROR_INVALID_VALUE);
    EXPECT_STATUS(kInvalidArgument, call.function, call.make());
    ASSERT_TRUE(driver_->Map(At(base, 1), {&page, 1}).ok()) << call.function;
    ASSERT_TRUE(driver_->Unmap(At(base, 1), kPage).ok()) << call.function;
  }
}

// A table of mappings fell out of step with the device under churn, until an
// unmap of what was not mapped ended the process.
TEST_F(CudaDriverIssueTest, Kvcached437ChurnKeepsTheBooksInStep) {
  constexpr uint64_t kSlots = 48;
  auto memory = MakeMemory();
  AddressRange* const range =
      *memory->ReserveRange(PageCount(kSlots), OwnerId(0));
  std::mt19937 random(437);
  std::vector<bool> live(kSlots, false);
  for (int round = 0; round < 400; ++round) {
    const uint64_t first = random() % kSlots;
    const uint64_t count = 1 + random() % (kSlots - first);
    // Mostly large allocations, sometimes everything freed at once.
    if (round % 16 == 15) {
      ASSERT_TRUE(
          memory->Decommit(range, PageCount(0), PageCount(kSlots), Fence())
              .ok());
      std::fill(live.begin(), live.end(), false);
    } else if (random() % 3 == 0) {
      ASSERT_TRUE(
          memory->Decommit(range, PageCount(first), PageCount(count), Fence())
              .ok());
      std::fill_n(live.begin() + first, count, false);
    } else {
      ASSERT_TRUE(
          memory->Commit(range, PageCount(first), PageCount(count)).ok());
      std::fill_n(live.begin() + first, count, true);
    }
    const auto mappings = Mappings();
    ASSERT_EQ(mappings.size(),
              static_cast<size_t>(std::count(live.begin(), live.end(), true)));
    for (uint64_t slot = 0; slot < kSlots; ++slot) {
      ASSERT_EQ(mappings.contains(range->address().value() + slot * kPageBytes),
                live[slot]);
    }
  }
  memory->ReleaseRange(range, Fence());
}

// A create that failed on a later plane left the earlier planes mapped and
// their handles lost, and the range could not be tried again.
TEST_F(CudaDriverIssueTest, Surogate117AFailedPlaneGivesBackTheOthers) {
  auto memory = MakeMemory();
  AddressRange* const range = *memory->ReserveRange(PageCount(3), OwnerId(0));
  for (int plane = 1; plane <= 3; ++plane) {
    cuda_->FailCall("cuMemCreate", plane, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(memory->Commit(range, PageCount(0), PageCount(3)).code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(cuda_->memory().handle_count(), 0u) << "plane " << plane;
    EXPECT_THAT(Mappings(), IsEmpty());
  }
  EXPECT_TRUE(memory->Commit(range, PageCount(0), PageCount(3)).ok());
  EXPECT_EQ(cuda_->memory().handle_count(), 3u);
  memory->ReleaseRange(range, Fence());
}

// Only the device of the memory was given access to what was mapped after peers
// had been enabled; a peer that wrote there faulted, or hung.
TEST_F(CudaDriverIssueTest, LlamaCpp24489AndXla40852PeersReachEveryNewMapping) {
  Start({.device_count = 2});
  const StreamId peer = *driver_->CreateStream(DeviceId(1));
  const DeviceAddress base = Reserve(2);
  const DeviceAddress remote = Reserve(1);
  const PageHandle remote_page = CreatePage(DeviceId(1));
  ASSERT_TRUE(driver_->Map(remote, {&remote_page, 1}).ok());
  ASSERT_TRUE(driver_->Fill(remote, 7, kPage, peer).ok());
  // Also where the same addresses are mapped anew, and the same page elsewhere.
  const PageHandle page = CreatePage();
  for (const uint64_t slot : {0, 1, 0}) {
    ASSERT_TRUE(driver_->Map(At(base, slot), {&page, 1}).ok());
    ByteAt(At(base, slot)) = 0;
    ASSERT_TRUE(
        driver_->CopyOnDevice(At(base, slot), remote, kPage, peer).ok());
    ASSERT_TRUE(driver_->SynchronizeStream(peer).ok());
    EXPECT_EQ(ByteAt(At(base, slot)), 7);
    ASSERT_TRUE(driver_->Unmap(At(base, slot), kPage).ok());
  }
}

// The driver says "out of memory" when it is addresses that are short, and
// users looked for gigabytes that were not missing.
TEST_F(CudaDriverIssueTest,
       CudaPython2458AndNccl2064AndGpudrive65AddressesAreNotMemory) {
  Start({.address_space = MiB(64).value()});
  Reserve(16);
  const absl::Status status =
      driver_->ReserveAddress(MiB(64), Bytes(0)).status();
  EXPECT_STATUS(kResourceExhausted, "out of addresses, not of memory", status);
  EXPECT_STATUS(kResourceExhausted, "64.00 MiB", status);
  const DeviceMemoryInfo info = *driver_->GetMemoryInfo(DeviceId(0));
  EXPECT_EQ(info.free, info.total);
}

// A machine that would not reserve as many addresses as are usual was given up.
TEST_F(CudaDriverIssueTest,
       LlamaCpp4680AndNodeLlamaCpp580FewerAddressesServeAsWell) {
  Start({.address_space = MiB(64).value()});
  Reserve(16);
  DeviceMemoryOptions options;
  options.page_size = kPage;
  options.limit = MiB(16);
  const auto memory = DeviceMemory::Create(driver_.get(), &owners_, options);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_LE((*memory)->GetStatistics().address_space, MiB(32));
  AddressRange* const all = *(*memory)->ReserveRange(PageCount(8), OwnerId(0));
  EXPECT_TRUE((*memory)->Commit(all, PageCount(0), PageCount(8)).ok());
  ByteAt(At(all->address(), 7)) = 1;
  (*memory)->ReleaseRange(all, Fence());
}

// A process that had asked the driver for anything before it forked had broken
// all its workers.
TEST_F(CudaDriverIssueTest, Vllm32611And12754NothingIsStartedBeforeADriverIs) {
  const auto work = [](const FakeCuda& cuda) {
    OwnerRegistry owners;
    const auto driver = CreateCudaDriverOn(cuda.Table());
    if (!driver.ok()) return 2;
    DeviceMemoryOptions options;
    options.page_size = kPage;
    options.address_space = MiB(64);
    const auto memory = DeviceMemory::Create(driver->get(), &owners, options);
    if (!memory.ok()) return 3;
    const auto range = (*memory)->ReserveRange(PageCount(1), OwnerId(0));
    if (!range.ok()) return 4;
    return (*memory)->Commit(*range, PageCount(0), PageCount(1)).ok() ? 0 : 5;
  };
  const auto cuda = *FakeCuda::Create();
  EXPECT_EQ(cuda->CallsOf("cuInit"), 0);
  EXPECT_EQ(RunInChild([&] { return work(*cuda); }), 0);
  // The parent has had a driver, so CUDA refuses its children: an error.
  const auto driver = *CreateCudaDriverOn(cuda->Table());
  EXPECT_EQ(cuda->CallsOf("cuInit"), 1);
  cuda->FailCall("cuInit", 1, CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(RunInChild([&] {
              const auto own = CreateCudaDriverOn(cuda->Table());
              return absl::IsUnavailable(own.status()) ? 0 : 1;
            }),
            0);
}

// The least and the best granularity of a device differ, and what was rounded
// to one was mapped by the other.
TEST_F(CudaDriverIssueTest, Mscclpp451PagesAreOfTheLeastGranularityOnwards) {
  constexpr Bytes kLeast = KiB(64);
  Start({.granularity = kLeast.value(),
         .recommended_granularity = kPage.value()});
  EXPECT_EQ(driver_->GetDeviceInfo(DeviceId(0))->minimum_granularity, kLeast);
  EXPECT_EQ(driver_->GetDeviceInfo(DeviceId(0))->recommended_granularity,
            kPage);
  for (const Bytes page : {kLeast, KiB(128), kPage, MiB(4)}) {
    // No multiple of the best granularity.
    const Bytes size(3 * page.value());
    const DeviceAddress base = *driver_->ReserveAddress(size, Bytes(0));
    std::vector<PageHandle> pages;
    for (int i = 0; i < 3; ++i) {
      pages.push_back(*driver_->CreatePage(DeviceId(0), page));
    }
    EXPECT_EQ(driver_->Map(base, pages), absl::OkStatus());
    ByteAt(DeviceAddress(base.value() + size.value() - 1)) = 1;
    EXPECT_EQ(driver_->Unmap(base, size), absl::OkStatus());
    for (const PageHandle handle : pages) {
      EXPECT_EQ(driver_->ReleasePage(handle), absl::OkStatus());
    }
    EXPECT_EQ(driver_->ReleaseAddress(base, size), absl::OkStatus());
  }
}

// After a reservation that failed, its addresses were freed all the same.
TEST_F(CudaDriverIssueTest, CudaPython2345AFailedReservationIsNotFreed) {
  cuda_->FailCall("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_STATUS(kResourceExhausted, "cuMemAddressReserve",
                driver_->ReserveAddress(kPage, Bytes(0)).status());
  EXPECT_EQ(cuda_->CallsOf("cuMemAddressFree"), 0);
}

// The creating reference was kept after a map, so that nothing that was freed
// ever came back.
TEST_F(CudaDriverIssueTest, CudaPython2235FreedMemoryIsFree) {
  const Bytes free = driver_->GetMemoryInfo(DeviceId(0))->free;
  for (int i = 0; i < 200; ++i) {
    const DeviceAddress base = Reserve(2);
    const std::vector<PageHandle> pages = CreatePages(2);
    ASSERT_TRUE(driver_->Map(base, pages).ok());
    // In either order.
    const auto release = [&] {
      for (const PageHandle page : pages) {
        ASSERT_TRUE(driver_->ReleasePage(page).ok());
      }
    };
    if (i % 2 == 0) release();
    ASSERT_TRUE(driver_->Unmap(base, Bytes(2 * kPageBytes)).ok());
    if (i % 2 == 1) release();
    ASSERT_TRUE(driver_->ReleaseAddress(base, Bytes(2 * kPageBytes)).ok());
    ASSERT_EQ(driver_->GetMemoryInfo(DeviceId(0))->free, free);
  }
}

// A handle was released again by whoever came last.
TEST_F(CudaDriverIssueTest, Vllm36651AHandleIsReleasedOnce) {
  const PageHandle page = CreatePage();
  ASSERT_TRUE(driver_->ReleasePage(page).ok());
  EXPECT_STATUS(kNotFound, "was released", driver_->ReleasePage(page));
  EXPECT_EQ(cuda_->CallsOf("cuMemRelease"), 1);
}

// An allocation of 6,912 bytes was handed to the driver as it was.
TEST_F(CudaDriverIssueTest, TorchMemorySaver82ASizeIsRefusedBeforeTheDriver) {
  EXPECT_STATUS(kInvalidArgument, "size 6912",
                driver_->CreatePage(DeviceId(0), Bytes(6912)).status());
  EXPECT_EQ(cuda_->CallsOf("cuMemCreate"), 0);
}

// Setting access said "not ready" on one platform, and the range stayed half
// done.
TEST_F(CudaDriverIssueTest, Atomic27AccessThatIsNotReadyUndoesTheMap) {
  const DeviceAddress base = Reserve(1);
  const PageHandle page = CreatePage();
  cuda_->FailCall("cuMemSetAccess", 1, CUDA_ERROR_NOT_READY);
  EXPECT_STATUS(kFailedPrecondition, "cuMemSetAccess: CUDA_ERROR_NOT_READY",
                driver_->Map(base, {&page, 1}));
  EXPECT_THAT(Mappings(), IsEmpty());
  EXPECT_TRUE(driver_->Map(base, {&page, 1}).ok());
}

// A query by a pool, on any thread, made the capture invalid that the
// application had going on.
TEST_F(CudaDriverIssueTest, CudaPython2834NoCallBreaksACapture) {
  const CudaFunctionTable others = cuda_->Table();
  CUcontext context = nullptr;
  CUstream captured = nullptr;
  ASSERT_EQ(others.DevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(others.CtxPushCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(others.StreamCreate(&captured, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  ASSERT_EQ(
      cuda_->streams().BeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL),
      CUDA_SUCCESS);
  const auto use_every_call = [&] {
    const StreamId stream = *driver_->CreateStream(DeviceId(0));
    const EventId event = *driver_->CreateEvent(DeviceId(0));
    const DeviceAddress base = Reserve(1);
    const PageHandle page = CreatePage();
    ASSERT_TRUE(driver_->Map(base, {&page, 1}).ok());
    void* const pinned = *driver_->AllocatePinned(KiB(4));
    ASSERT_TRUE(driver_->CopyToDevice(base, pinned, KiB(4), stream).ok());
    ASSERT_TRUE(driver_->RecordEvent(event, stream).ok());
    ASSERT_TRUE(driver_->WaitEvent(stream, event).ok());
    ASSERT_TRUE(driver_->QueryEvent(event).ok());
    ASSERT_TRUE(driver_->SynchronizeEvent(event).ok());
    ASSERT_TRUE(driver_->SynchronizeStream(stream).ok());
    ASSERT_TRUE(driver_->GetMemoryInfo(DeviceId(0)).ok());
    ASSERT_TRUE(driver_->Unmap(base, kPage).ok());
    ASSERT_TRUE(driver_->ReleasePage(page).ok());
    ASSERT_TRUE(driver_->ReleaseAddress(base, kPage).ok());
    ASSERT_TRUE(driver_->FreePinned(pinned).ok());
    ASSERT_TRUE(driver_->DestroyEvent(event).ok());
    ASSERT_TRUE(driver_->DestroyStream(stream).ok());
  };
  // From the thread that captures, and from another.
  use_every_call();
  std::thread(use_every_call).join();
  driver_.reset();
  size_t nodes = 0;
  EXPECT_EQ(cuda_->streams().EndCapture(captured, &nodes), CUDA_SUCCESS);
  // The thread's own mode is as it was: its calls are held back as before.
  ASSERT_EQ(
      cuda_->streams().BeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL),
      CUDA_SUCCESS);
  EXPECT_EQ(others.EventQuery(nullptr), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuda_->streams().EndCapture(captured, &nodes),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(others.StreamDestroy(captured), CUDA_SUCCESS);
  EXPECT_EQ(others.CtxPopCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(others.DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
}

}  // namespace
}  // namespace quire
