// A DeviceAllocator while the program captures a CUDA graph, on the fake of
// libcuda, which makes a capture invalid as the real one does.

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "alloc/testing/cuda_driver_fixture.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/owner.h"

namespace quire {
namespace {

class AllocatorGraphCudaTest : public CudaDriverFixture {
 protected:
  static constexpr uint64_t kPages = 16;

  AllocatorGraphCudaTest() : table_(cuda_->Table()) {
    EXPECT_EQ(table_.DevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    EXPECT_EQ(table_.CtxPushCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(table_.StreamCreate(&native_, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
    stream_ = driver_->AdoptStream(DeviceId(0), native_).value();
    DeviceMemoryOptions options;
    options.page_size = kPage;
    options.limit = Bytes(kPages * kPageBytes);
    options.address_space = Bytes(8 * kPages * kPageBytes);
    memory_ = DeviceMemory::Create(driver_.get(), &owners_, options).value();
    DeviceAllocatorOptions allocator_options;
    allocator_options.fence_batch = Bytes(0);
    allocator_ = DeviceAllocator::Create(memory_.get(), allocator_options);
  }
  ~AllocatorGraphCudaTest() override {
    EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    allocator_.reset();
    memory_.reset();
    EXPECT_EQ(driver_->DestroyStream(stream_), absl::OkStatus());
    EXPECT_EQ(table_.StreamDestroy(native_), CUDA_SUCCESS);
    CUcontext popped = nullptr;
    EXPECT_EQ(table_.CtxPopCurrent(&popped), CUDA_SUCCESS);
    EXPECT_EQ(table_.DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  }

  DeviceAddress Allocate(uint64_t size, StreamId stream) {
    AllocateOptions options;
    options.stream = stream;
    const auto address = allocator_->Allocate(Bytes(size), options);
    EXPECT_TRUE(address.ok()) << address.status();
    return address.value_or(DeviceAddress());
  }
  void Free(DeviceAddress address, StreamId stream) {
    EXPECT_EQ(allocator_->Free(address, stream), absl::OkStatus());
  }
  void BeginCapture(GraphPoolId pool) {
    EXPECT_EQ(allocator_->BeginGraphCapture(pool, stream_), absl::OkStatus());
    EXPECT_EQ(
        cuda_->streams().BeginCapture(native_, CU_STREAM_CAPTURE_MODE_GLOBAL),
        CUDA_SUCCESS);
  }
  // Returns how many operations the graph has.
  size_t EndCapture(CUresult expected = CUDA_SUCCESS) {
    size_t nodes = 0;
    EXPECT_EQ(cuda_->streams().EndCapture(native_, &nodes), expected);
    EXPECT_EQ(allocator_->EndGraphCapture(stream_), absl::OkStatus());
    return nodes;
  }

  const CudaFunctionTable table_;
  CUcontext context_ = nullptr;
  CUstream native_ = nullptr;
  StreamId stream_;
  OwnerRegistry owners_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<DeviceAllocator> allocator_;
};

// A query by a pool made the capture invalid; an event recorded on the stream
// would have become a part of the graph.
TEST_F(AllocatorGraphCudaTest, CudaPython2834NothingOfTheAllocatorIsCaptured) {
  const StreamId other = driver_->CreateStream(DeviceId(0)).value();
  const GraphPoolId pool = allocator_->CreateGraphPool().value();
  const DeviceAddress before = Allocate(3 * kPageBytes, stream_);
  const DeviceAddress shared = Allocate(5000, stream_);
  Free(Allocate(2 * kPageBytes, stream_), stream_);
  BeginCapture(pool);
  // The one operation of the graph.
  const DeviceAddress a = Allocate(kPageBytes + 1, stream_);
  const DeviceAddress b = Allocate(5000, stream_);
  EXPECT_EQ(driver_->CopyOnDevice(b, a, Bytes(5000), stream_),
            absl::OkStatus());
  const auto use_everything = [&](StreamId stream) {
    for (const uint64_t size : {uint64_t{300}, uint64_t{5000}, kPageBytes}) {
      const DeviceAddress address = Allocate(size, stream);
      EXPECT_EQ(allocator_->RecordStream(address, stream), absl::OkStatus());
      Free(address, stream);
    }
    allocator_->GetStatistics();
    allocator_->GetLargestPossible();
    allocator_->Trim();
    memory_->Trim(PageCount(0));
    (void)memory_->GetStatistics();
    // More than there is: everything is looked through and waited for.
    AllocateOptions options;
    options.stream = stream;
    EXPECT_FALSE(
        allocator_->Allocate(Bytes(kPages * kPageBytes), options).ok());
  };
  use_everything(stream_);
  std::thread(use_everything, stream_).join();
  std::thread(use_everything, other).join();
  EXPECT_EQ(allocator_->RecordStream(shared, other), absl::OkStatus());
  Free(shared, stream_);
  Free(before, stream_);
  Free(a, stream_);
  EXPECT_EQ(EndCapture(), 1u);
  Free(b, stream_);
  EXPECT_EQ(allocator_->ReleaseGraphPool(pool, {&stream_, 1}),
            absl::OkStatus());
  Free(Allocate(kPages * kPageBytes, other), other);
  EXPECT_EQ(driver_->DestroyStream(other), absl::OkStatus());
}

TEST_F(AllocatorGraphCudaTest, ACaptureThatFailedLeavesNothingBehind) {
  for (int i = 0; i < 3; ++i) {
    const GraphPoolId pool = allocator_->CreateGraphPool().value();
    BeginCapture(pool);
    const DeviceAddress a = Allocate(3 * kPageBytes, stream_);
    const DeviceAddress b = Allocate(300, stream_);
    // The program's mistake.
    EXPECT_NE(table_.StreamSynchronize(native_), CUDA_SUCCESS);
    Free(a, stream_);
    EndCapture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    Free(b, stream_);
    EXPECT_EQ(allocator_->ReleaseGraphPool(pool, {&stream_, 1}),
              absl::OkStatus());
    EXPECT_EQ(driver_->SynchronizeStream(stream_), absl::OkStatus());
    allocator_->Trim();
    EXPECT_EQ(allocator_->GetStatistics().mapped_bytes, 0u);
  }
}

}  // namespace
}  // namespace quire
