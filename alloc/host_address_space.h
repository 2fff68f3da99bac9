// The addresses of a software device: reservations and mappings in the kernel.
//
// Reservations are PROT_NONE; a mapping is part of a device's memory file laid
// over them; unmapping lays PROT_NONE over it again. Addresses are never free
// between the two, so no other thread can take them.
//
// Kernel mappings. The kernel allows a process about 65,530 of them and at its
// limit refuses even to unmap. So they are counted: adjacent pages at adjacent
// offsets are one, and so is a gap between pages. Map stops at the limit given;
// Unmap, which can split a mapping in three, may exceed it by a sixteenth, so
// that memory can still be given back. Where the kernel refuses all the same,
// Unmap tries munmap and reserves again. If somebody took the addresses in
// between, they are quarantined and the caller is told (kDataLoss).
//
// Where no device has memory behind it, addresses are only compared, so that
// they need not be the kernel's: where it refuses to reserve so many, they are
// numbers beyond those that it gives to programs.
//
// Not thread-safe. Map and Unmap are O(log n) plus the pages of the call.

#ifndef QUIRE_ALLOC_HOST_ADDRESS_SPACE_H_
#define QUIRE_ALLOC_HOST_ADDRESS_SPACE_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/host_kernel.h"
#include "alloc/mapping_table.h"
#include "alloc/page_table.h"
#include "quire/alloc/units.h"

namespace quire {

class HostAddressSpace {
 public:
  // `files`: the memory file of each device; where it is -1, mappings are
  // tracked but not made. `kernel` must outlive the object.
  HostAddressSpace(HostKernel* kernel, uint64_t granularity,
                   uint64_t mapping_limit, std::vector<int> files);
  // Gives everything back that is left.
  ~HostAddressSpace();
  HostAddressSpace(const HostAddressSpace&) = delete;
  HostAddressSpace& operator=(const HostAddressSpace&) = delete;

  absl::StatusOr<uint64_t> Reserve(uint64_t size, uint64_t alignment);
  // `unmapped`: as for Unmap; only pages in quarantine can be there.
  absl::Status Release(uint64_t address, uint64_t size,
                       std::vector<PageHandle>* unmapped);

  // Maps `pages` side by side. All or nothing, but for kDataLoss. Appends to
  // `mapped` every page that is mapped once more now, also where it fails.
  // REQUIRES: `pages` is not empty and all are of one device.
  absl::Status Map(uint64_t address, std::span<const PhysicalPage> pages,
                   std::vector<PageHandle>* mapped);
  // Appends to `unmapped` every page that is mapped once less now, also where
  // it fails.
  absl::Status Unmap(uint64_t address, uint64_t size,
                     std::vector<PageHandle>* unmapped);

  const MappingTable& table() const { return table_; }
  // Kernel mappings in use, at most: the kernel may merge more of them.
  uint64_t kernel_mappings() const { return kernel_mappings_; }

 private:
  enum class Removal { kDone, kRefused, kAddressesLost };

  bool backed(DeviceId device) const { return files_[device.value()] >= 0; }
  bool any_backed() const {
    return std::any_of(files_.begin(), files_.end(),
                       [](int file) { return file >= 0; });
  }
  // What the kernel needs for the part of a reservation around the range,
  // both neighbours included: comparable before and after a change there.
  uint64_t CountAround(uint64_t address, uint64_t size) const;
  // The same, to compare around a change of pages of `device`: without memory
  // they need nothing of the kernel, so nobody has to count.
  uint64_t CountAround(uint64_t address, uint64_t size, DeviceId device) const;
  absl::Status MapRuns(std::span<const PhysicalPage> pages, uint64_t address,
                       uint64_t* done);
  // Takes the mapping away and keeps the addresses.
  Removal RemoveFromKernel(uint64_t address, uint64_t size);
  void ReleaseInKernel(uint64_t address, uint64_t size);
  absl::Status OutOfMappings(const char* call, uint64_t needed) const;

  HostKernel* const kernel_;
  const uint64_t mapping_limit_;
  const std::vector<int> files_;
  MappingTable table_;
  uint64_t kernel_mappings_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_HOST_ADDRESS_SPACE_H_
