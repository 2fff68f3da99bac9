// The addresses of CUDA devices: reservations and mappings in NVIDIA's driver.
//
// A mapping of n pages is n cuMemMap calls and one cuMemSetAccess for the run:
// on an A100 the access call costs 25 times a map call. Unmapping is one call
// per page, the only form that the documentation promises.
//
// Both are transactions. Where a call fails midway, what was done is undone; a
// page that cannot be undone is quarantined: it stays held, nothing is mapped
// there again, its reservation is kept, and the caller is told (kDataLoss).
// That undoing an Unmap can always be tried rests on the caller, who keeps a
// page's handle for as long as the page is mapped.
//
// No call here needs a context. Not thread-safe. Map and Unmap are O(log n)
// plus the pages of the call.

#ifndef QUIRE_ALLOC_CUDA_ADDRESS_SPACE_H_
#define QUIRE_ALLOC_CUDA_ADDRESS_SPACE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/cuda_devices.h"
#include "alloc/cuda_function_table.h"
#include "alloc/mapping_table.h"
#include "alloc/page_table.h"
#include "quire/alloc/units.h"

namespace quire {

class CudaAddressSpace {
 public:
  // Both must outlive the object.
  CudaAddressSpace(const CudaFunctionTable* cuda,
                   const std::vector<CudaDevice>* devices);
  // Gives everything back that is left.
  ~CudaAddressSpace();
  CudaAddressSpace(const CudaAddressSpace&) = delete;
  CudaAddressSpace& operator=(const CudaAddressSpace&) = delete;

  absl::StatusOr<uint64_t> Reserve(uint64_t size, uint64_t alignment);
  absl::Status Release(uint64_t address, uint64_t size);

  // Appends to `mapped` every page that is held once more now, also where it
  // fails. REQUIRES: `pages` is not empty and all are of one device.
  absl::Status Map(uint64_t address, std::span<const PhysicalPage> pages,
                   std::vector<PageHandle>* mapped);
  // Appends to `unmapped` every page that is held once less now.
  absl::Status Unmap(uint64_t address, uint64_t size,
                     std::vector<PageHandle>* unmapped);

  const MappingTable& table() const { return table_; }

 private:
  // Maps in order and sets access; `done` counts the pages mapped.
  absl::Status MapRun(std::span<const PageMapping> mappings, size_t* done);
  absl::Status UnmapOne(const PageMapping& mapping);

  const CudaFunctionTable* const cuda_;
  const std::vector<CudaDevice>* const devices_;
  MappingTable table_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_CUDA_ADDRESS_SPACE_H_
