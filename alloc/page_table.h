// The physical pages of a driver: handles, and who still holds each page.
//
// Follows CUDA's rule: a page lives while its handle is not released or while
// it is mapped anywhere; what frees it is the last of both to go. Handles are
// numbered from 1 and never used twice, so that a stale one is always found
// out. Not thread-safe. All operations are O(1).

#ifndef QUIRE_ALLOC_PAGE_TABLE_H_
#define QUIRE_ALLOC_PAGE_TABLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

struct PhysicalPage {
  PageHandle handle;
  DeviceId device;
  uint64_t size = 0;
  // What the driver below calls the page: an offset, a driver handle.
  uint64_t backing = 0;
};

class PageTable {
 public:
  struct Entry {
    PhysicalPage page;
    uint64_t mappings = 0;
    bool released = false;
  };

  PageHandle Add(DeviceId device, uint64_t size, uint64_t backing);

  // The page of a handle that is not released, else kNotFound.
  absl::StatusOr<PhysicalPage> Find(PageHandle handle) const;

  // The same for a run to be mapped: all of one device.
  absl::StatusOr<std::vector<PhysicalPage>> FindRun(
      std::span<const PageHandle> handles) const;

  // How often the page is mapped. REQUIRES: `handle` names a page that is held.
  uint64_t MappingCount(PageHandle handle) const;

  // Drops the handle. The result is the page where it is free now.
  absl::StatusOr<std::optional<PhysicalPage>> Release(PageHandle handle);

  // REQUIRES: `handle` names a page that is held.
  void AddMapping(PageHandle handle);
  // Drops one mapping. The result is the page where it is free now.
  // REQUIRES: AddMapping was called for it.
  std::optional<PhysicalPage> DropMapping(PageHandle handle);

  const absl::flat_hash_map<PageHandle, Entry>& entries() const {
    return entries_;
  }

 private:
  uint64_t last_handle_ = 0;
  absl::flat_hash_map<PageHandle, Entry> entries_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PAGE_TABLE_H_
