// The memory of the fake of NVIDIA's driver: physical allocations, address
// reservations, mappings and who may access them.
//
// Kept in books of its own, not in the tables of alloc/, so that a fault there
// is found here. With memory behind it, an allocation is a range of its
// device's memory file; a mapping is laid over its addresses when the first
// device gets access to it, so that touching what nobody may access really
// faults. Where a device may read only, the host may still write: what copies
// may do is checked by the books.
//
// [names] of rules: docs/driver_rules.md, which quotes the documentation.
//
// Invariants: reservations are disjoint; every mapping lies in one of them;
// mappings are disjoint; an allocation exists while its handle is not released
// or while it is mapped.
//
// Thread-safe. O(log n) plus the mappings in the range.

#ifndef QUIRE_ALLOC_TESTING_FAKE_CUDA_MEMORY_H_
#define QUIRE_ALLOC_TESTING_FAKE_CUDA_MEMORY_H_

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "alloc/host_page_memory.h"
#include "alloc/testing/fake_cuda_options.h"
#include "quire/alloc/mutex.h"

namespace quire {

class FakeCudaMemory {
 public:
  struct Mapping {
    size_t size;
    CUmemGenericAllocationHandle handle;
    std::map<CUdevice, CUmemAccess_flags> access;  // only what is granted
    bool in_kernel = false;  // the memory is at the addresses

    bool Allows(CUdevice device, CUmemAccess_flags wanted) const;
  };
  // What work on a device touches.
  struct Range {
    CUdeviceptr address;
    size_t size;
    CUmemAccess_flags access;
  };

  static absl::StatusOr<std::unique_ptr<FakeCudaMemory>> Create(
      const FakeCudaOptions& options);
  ~FakeCudaMemory();
  FakeCudaMemory(const FakeCudaMemory&) = delete;
  FakeCudaMemory& operator=(const FakeCudaMemory&) = delete;

  // ---- The calls of the driver, by the names of cuda.h ----
  // REQUIRES: the device exists.
  CUresult GetInfo(CUdevice device, size_t* free, size_t* total) const;
  CUresult GetAllocationGranularity(
      size_t* granularity, const CUmemAllocationProp* properties,
      CUmemAllocationGranularity_flags option) const;
  CUresult AddressReserve(CUdeviceptr* address, size_t size, size_t alignment,
                          CUdeviceptr hint, unsigned long long flags);
  CUresult AddressFree(CUdeviceptr address, size_t size);
  CUresult CreateAllocation(CUmemGenericAllocationHandle* handle, size_t size,
                            const CUmemAllocationProp* properties,
                            unsigned long long flags);
  CUresult Release(CUmemGenericAllocationHandle handle);
  CUresult Map(CUdeviceptr address, size_t size, size_t offset,
               CUmemGenericAllocationHandle handle, unsigned long long flags);
  CUresult Unmap(CUdeviceptr address, size_t size);
  CUresult SetAccess(CUdeviceptr address, size_t size,
                     const CUmemAccessDesc* access, size_t count);

  // ---- For copies ----
  // What the driver sees of an address when work is submitted.
  CUresult CheckArgument(CUdeviceptr address, size_t size) const;
  // Runs `work` while nothing can be unmapped. False, and `work` is not run,
  // where `device` may not access all of the ranges.
  bool Touch(CUdevice device, std::span<const Range> ranges,
             const std::function<void()>& work) const;

  // ---- For tests ----
  std::map<CUdeviceptr, Mapping> mappings() const;
  size_t reservation_count() const;
  // Handles that are not released, and allocations that still take memory.
  size_t handle_count() const;
  size_t allocation_count() const;
  void AppendLeaks(std::vector<std::string>* leaks) const;

 private:
  struct Allocation {
    CUdevice device;
    size_t size;
    uint64_t backing;  // offset in the device's memory file
    size_t mappings = 0;
    bool released = false;
    bool contents_are_junk = false;
  };
  using MappingIterator = std::map<CUdeviceptr, Mapping>::iterator;

  FakeCudaMemory(const FakeCudaOptions& options,
                 std::vector<std::unique_ptr<HostPageMemory>> devices)
      : options_(options), devices_(std::move(devices)) {}

  bool IsDevice(CUdevice device) const {
    return device >= 0 && device < options_.device_count;
  }
  CUresult CheckProperties(const CUmemAllocationProp* properties) const;
  CUresult CheckAccess(const CUmemAccessDesc& access) const;

  // True where the range lies in one reservation.
  bool IsReserved(CUdeviceptr address, size_t size) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OverlapsMapping(CUdeviceptr address, size_t size) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls `function` for the mappings that cover the range; false where there
  // is a gap or where `function` returns false.
  template <typename Function>
  bool ForEachMapping(CUdeviceptr address, size_t size, Function function) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeIfUnused(CUmemGenericAllocationHandle handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lays the memory of the mappings that anybody may access, and of no others,
  // over their addresses. All or nothing. REQUIRES: they are side by side.
  CUresult UpdateKernel(std::span<const MappingIterator> mappings)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True where both can be one mapping of the kernel.
  bool Continues(const Mapping& mapping, const Mapping& next) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Shows a run of mappings that is hidden; hides one that is shown.
  CUresult FlipInKernel(std::span<const MappingIterator> run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillWithJunk(const MappingIterator& mapping)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FakeCudaOptions options_;
  mutable Mutex mutex_;
  const std::vector<std::unique_ptr<HostPageMemory>> devices_
      ABSL_GUARDED_BY(mutex_);
  CUmemGenericAllocationHandle last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<CUmemGenericAllocationHandle, Allocation> allocations_
      ABSL_GUARDED_BY(mutex_);
  std::map<CUdeviceptr, size_t> reservations_ ABSL_GUARDED_BY(mutex_);
  size_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<CUdeviceptr, Mapping> mappings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_CUDA_MEMORY_H_
