// A table of CUDA driver functions over a model of the driver's state, for
// tests of CudaDriver: handles, reservations, mappings, access and contexts,
// with any call made to fail on demand. It has no memory behind its pages.
//
// Strict where the documentation is: a mapping is unmapped whole, one call
// each; access covers mapped addresses only; calls on streams and events need
// the context of their device. One at a time: functions of a table have no room
// for a pointer, so they find it through a global.

#ifndef QUIRE_ALLOC_CUDA_FAKE_H_
#define QUIRE_ALLOC_CUDA_FAKE_H_

#include <cuda.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "alloc/cuda_function_table.h"

namespace quire {

class FakeCuda {
 public:
  static constexpr size_t kGranularity = size_t{2} << 20;

  struct Mapping {
    size_t size;
    CUmemGenericAllocationHandle handle;
    std::set<int> access;  // devices
  };
  struct Handle {
    size_t size;
    int device;
  };

  FakeCuda();
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  CudaFunctionTable Table() const;

  // The n-th call of `function` from now on fails: "cuMemMap".
  void FailCall(const std::string& function, int n, CUresult result);
  int CallsOf(const std::string& function) { return calls_[function]; }

  // Nothing is held by the driver above: for the end of a test.
  bool Empty() const;

  // ---- What the devices are. Set before the driver starts. ----
  int device_count = 1;
  bool has_virtual_memory = true;
  bool peers_reach_each_other = false;
  size_t memory_per_device = 64 * kGranularity;

  // ---- State ----
  std::map<CUdeviceptr, size_t> reservations;
  std::map<CUmemGenericAllocationHandle, Handle> handles;  // not released
  std::map<CUdeviceptr, Mapping> mappings;
  std::map<int, int> retained;           // device -> times
  std::vector<CUcontext> context_stack;  // of the only thread
  std::map<CUstream, int> streams;       // -> device
  std::map<CUevent, int> events;
  bool events_are_complete = true;
  std::set<void*> pinned;

 private:
  friend struct FakeCudaFunctions;

  // Counts the call; the result where it is to fail.
  CUresult Begin(const char* function);
  static CUcontext ContextOf(int device);
  bool ContextIs(int device) const;
  size_t UsedBytes(int device) const;

  std::map<std::string, int> calls_;
  struct Fault {
    int call;
    CUresult result;
  };
  std::multimap<std::string, Fault> faults_;
  uint64_t next_ = 1;
  // Memory is freed with the last of handle and mappings.
  std::map<CUmemGenericAllocationHandle, Handle> allocations_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_CUDA_FAKE_H_
