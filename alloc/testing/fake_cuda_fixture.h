// A FakeCuda to call as a program calls libcuda, with what most calls need.

#ifndef QUIRE_ALLOC_TESTING_FAKE_CUDA_FIXTURE_H_
#define QUIRE_ALLOC_TESTING_FAKE_CUDA_FIXTURE_H_

#include <cuda.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "alloc/cuda_function_table.h"
#include "alloc/testing/fake_cuda.h"

namespace quire {

class FakeCudaFixture : public ::testing::Test {
 protected:
  static constexpr size_t kGranule = size_t{64} << 10;
  static constexpr size_t kDeviceGranules = 16;

  static FakeCudaOptions Options() {
    FakeCudaOptions options;
    options.granularity = kGranule;
    options.memory_per_device = kDeviceGranules * kGranule;
    return options;
  }

  // Two devices, the first of which is current.
  FakeCudaFixture() {
    FakeCudaOptions options = Options();
    options.device_count = 2;
    Start(options);
    Enter(0);
  }

  void Start(const FakeCudaOptions& options) {
    cuda_ = nullptr;
    cuda_ = *FakeCuda::Create(options);
    cu_ = cuda_->Table();
    EXPECT_EQ(cu_.Init(0), CUDA_SUCCESS);
  }

  // ---- Contexts ----
  CUcontext Retain(CUdevice device) {
    CUcontext context = nullptr;
    EXPECT_EQ(cu_.DevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    return context;
  }
  void Enter(CUdevice device) {
    EXPECT_EQ(cu_.CtxPushCurrent(Retain(device)), CUDA_SUCCESS);
  }
  void Leave() {
    CUcontext context = nullptr;
    EXPECT_EQ(cu_.CtxPopCurrent(&context), CUDA_SUCCESS);
  }

  // ---- Memory ----
  static CUmemAllocationProp Properties(CUdevice device = 0) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return properties;
  }
  static CUmemAccessDesc Access(
      CUdevice device,
      CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access.flags = flags;
    return access;
  }
  CUdeviceptr Reserve(size_t granules) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu_.MemAddressReserve(&address, granules * kGranule, 0, 0, 0),
              CUDA_SUCCESS);
    return address;
  }
  CUmemGenericAllocationHandle Create(size_t granules, CUdevice device = 0) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = Properties(device);
    EXPECT_EQ(cu_.MemCreate(&handle, granules * kGranule, &properties, 0),
              CUDA_SUCCESS);
    return handle;
  }
  CUresult Map(CUdeviceptr address, size_t granules,
               CUmemGenericAllocationHandle handle) {
    return cu_.MemMap(address, granules * kGranule, 0, handle, 0);
  }
  CUresult Unmap(CUdeviceptr address, size_t granules) {
    return cu_.MemUnmap(address, granules * kGranule);
  }
  CUresult Grant(CUdeviceptr address, size_t granules, CUmemAccessDesc access) {
    return cu_.MemSetAccess(address, granules * kGranule, &access, 1);
  }
  // Memory of the device at a new address, which the device may access.
  CUdeviceptr MakeMemory(size_t granules, CUdevice device = 0) {
    const CUdeviceptr address = Reserve(granules);
    EXPECT_EQ(Map(address, granules, Create(granules, device)), CUDA_SUCCESS);
    EXPECT_EQ(Grant(address, granules, Access(device)), CUDA_SUCCESS);
    return address;
  }
  size_t FreeBytes() {
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(cu_.MemGetInfo(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, kDeviceGranules * kGranule);
    return free;
  }

  // ---- Streams and events: of the current device ----
  CUstream MakeStream() {
    CUstream stream = nullptr;
    EXPECT_EQ(cu_.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
  }
  CUevent MakeEvent() {
    CUevent event = nullptr;
    EXPECT_EQ(cu_.EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return event;
  }

  // Holds a stream until it is opened, at the latest at its end.
  class Gate {
   public:
    Gate(const CudaFunctionTable& cu, CUstream stream) {
      auto wait = std::make_unique<std::shared_future<void>>(
          opened_.get_future().share());
      EXPECT_EQ(cu.LaunchHostFunc(stream, &Wait, wait.release()), CUDA_SUCCESS);
    }
    ~Gate() { Open(); }
    void Open() {
      if (std::exchange(is_open_, true)) return;
      opened_.set_value();
    }

   private:
    static void CUDA_CB Wait(void* opened) {
      std::unique_ptr<std::shared_future<void>>(
          static_cast<std::shared_future<void>*>(opened))
          ->wait();
    }

    std::promise<void> opened_;
    bool is_open_ = false;
  };

  std::unique_ptr<FakeCuda> cuda_;
  CudaFunctionTable cu_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_CUDA_FIXTURE_H_
