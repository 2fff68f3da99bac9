// A strict fake of NVIDIA's driver, libcuda: a table of its functions over a
// model of its state, for tests of CudaDriver and of everything above it.
//
// It keeps state as the CUDA documentation defines it and refuses what that
// refuses, with the same results. Each rule has its [name] in the code where it
// is checked; docs/driver_rules.md quotes the sentence that it enforces, names
// the test that breaks it, and says where the fake is stricter than the
// documentation. There is real memory at the addresses that it hands out, so a
// test may play the device and read and write through them, and streams are
// really asynchronous.
//
//   auto cuda = *FakeCuda::Create({.device_count = 2});
//   auto driver = *CreateCudaDriverOn(cuda->Table());
//   cuda->FailCall("cuMemMap", 2, CUDA_ERROR_OUT_OF_MEMORY);
//   ...
//   driver.reset();
//   EXPECT_THAT(cuda->Leaks(), IsEmpty());
//
// Functions of a table have no room for a pointer to their object. So each fake
// takes one of kMaxFakes slots of the process and hands out the functions that
// were compiled for its slot; those say CUDA_ERROR_DEINITIALIZED once it is
// gone. Whoever uses the table must be done with it by then.
//
// Thread-safe, as the driver is.

#ifndef QUIRE_ALLOC_TESTING_FAKE_CUDA_H_
#define QUIRE_ALLOC_TESTING_FAKE_CUDA_H_

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "alloc/cuda_function_table.h"
#include "alloc/testing/fake_cuda_contexts.h"
#include "alloc/testing/fake_cuda_memory.h"
#include "alloc/testing/fake_cuda_options.h"
#include "alloc/testing/fake_cuda_pinned.h"
#include "alloc/testing/fake_cuda_streams.h"
#include "quire/alloc/mutex.h"

namespace quire {

// The functions of the table, in its order.
enum class FakeCudaCall {
#define QUIRE_DECLARE_FAKE_CUDA_CALL(member, name, declaration) k##member,
  QUIRE_CUDA_FUNCTIONS(QUIRE_DECLARE_FAKE_CUDA_CALL)
#undef QUIRE_DECLARE_FAKE_CUDA_CALL
};

class FakeCuda {
 public:
  static constexpr int kMaxFakes = 4;

  // kResourceExhausted where there are kMaxFakes already.
  static absl::StatusOr<std::unique_ptr<FakeCuda>> Create(
      const FakeCudaOptions& options = {});
  // Waits for all work, then takes everything back.
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  CudaFunctionTable Table() const;

  // ---- Faults and counts ----
  // The n-th call of `function` ("cuMemMap") from now on returns `result` and
  // does nothing. REQUIRES: n > 0.
  void FailCall(std::string_view function, int n, CUresult result);
  int CallsOf(std::string_view function) const;

  // ---- State ----
  const FakeCudaMemory& memory() const { return *memory_; }
  const FakeCudaContexts& contexts() const { return contexts_; }
  const FakeCudaPinned& pinned() const { return pinned_; }
  // Not const: a test captures through it, as the rest of its process may.
  FakeCudaStreams& streams() { return streams_; }
  // What is still held, in words, contexts apart: those may be held for as long
  // as the driver above is there.
  std::vector<std::string> Leaks() const;
  // Contexts retained or current.
  std::vector<std::string> ContextLeaks() const;

 private:
  friend class FakeCudaTable;

  FakeCuda(const FakeCudaOptions& options,
           std::unique_ptr<FakeCudaMemory> memory, uint64_t id);

  // What comes before every call: CUDA_SUCCESS where it may be made.
  CUresult Begin(FakeCudaCall call);
  CUresult TakeFault(FakeCudaCall call);
  bool IsDevice(CUdevice device) const {
    return device >= 0 && device < options_.device_count;
  }
  // Calls `function` with the device of the calling thread's current context.
  template <typename Function>
  CUresult InContext(Function function) {
    CUdevice current = 0;
    const CUresult result = contexts_.FindCurrent(&current);
    return result == CUDA_SUCCESS ? function(current) : result;
  }

  // A part of a copy, and the device that makes it.
  struct Step {
    CUdevice device;
    size_t offset;
    size_t bytes;
  };
  // Submits work of `size` bytes that goes in steps. The first that `work`
  // returns false for, since the device may not touch the memory, is the last.
  CUresult SubmitSteps(CUstream stream, size_t size,
                       std::function<bool(const Step&)> work);

  // The functions of the table.
  CUresult Init(unsigned flags);
  CUresult GetErrorName(CUresult result, const char** name);
  CUresult GetErrorString(CUresult result, const char** text);
  CUresult DeviceGetCount(int* count);
  CUresult DeviceGet(CUdevice* device, int ordinal);
  CUresult DeviceGetName(char* name, int length, CUdevice device);
  CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute,
                              CUdevice device);
  CUresult DeviceTotalMem(size_t* bytes, CUdevice device);
  CUresult DeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer);
  CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
  CUresult DevicePrimaryCtxRelease(CUdevice device);
  CUresult CtxPushCurrent(CUcontext context);
  CUresult CtxPopCurrent(CUcontext* context);
  CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode);
  CUresult MemGetInfo(size_t* free, size_t* total);
  CUresult MemGetAllocationGranularity(size_t* granularity,
                                       const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option);
  CUresult MemAddressReserve(CUdeviceptr* address, size_t size,
                             size_t alignment, CUdeviceptr hint,
                             unsigned long long flags);
  CUresult MemAddressFree(CUdeviceptr address, size_t size);
  CUresult MemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* properties,
                     unsigned long long flags);
  CUresult MemRelease(CUmemGenericAllocationHandle handle);
  CUresult MemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle,
                  unsigned long long flags);
  CUresult MemUnmap(CUdeviceptr address, size_t size);
  CUresult MemSetAccess(CUdeviceptr address, size_t size,
                        const CUmemAccessDesc* access, size_t count);
  CUresult StreamCreate(CUstream* stream, unsigned flags);
  CUresult StreamDestroy(CUstream stream);
  CUresult StreamSynchronize(CUstream stream);
  CUresult StreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
  CUresult EventCreate(CUevent* event, unsigned flags);
  CUresult EventDestroy(CUevent event);
  CUresult EventRecord(CUevent event, CUstream stream);
  CUresult EventQuery(CUevent event);
  CUresult EventSynchronize(CUevent event);
  CUresult MemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size,
                           CUstream stream);
  CUresult MemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size,
                           CUstream stream);
  CUresult MemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size,
                           CUstream stream);
  CUresult MemsetD8Async(CUdeviceptr to, unsigned char value, size_t size,
                         CUstream stream);
  CUresult LaunchHostFunc(CUstream stream, CUhostFn function, void* data);
  CUresult MemHostAlloc(void** memory, size_t size, unsigned flags);
  CUresult MemFreeHost(void* memory);
  CUresult MemHostRegister(void* memory, size_t size, unsigned flags);
  CUresult MemHostUnregister(void* memory);

  struct Fault {
    FakeCudaCall call;
    int at;  // the number of the call that fails
    CUresult result;
  };

  const FakeCudaOptions options_;
  int slot_ = -1;
  std::atomic<bool> is_initialised_{false};

  mutable Mutex calls_mutex_;
  std::vector<int> calls_ ABSL_GUARDED_BY(calls_mutex_);  // by FakeCudaCall
  std::vector<Fault> faults_ ABSL_GUARDED_BY(calls_mutex_);

  const std::unique_ptr<FakeCudaMemory> memory_;
  FakeCudaContexts contexts_;
  FakeCudaPinned pinned_;
  // Destroyed first: work that is queued uses the memory above.
  FakeCudaStreams streams_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_CUDA_H_
