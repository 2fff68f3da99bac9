// The physical pages of a driver: handles, and who still holds each page.
//
// Follows CUDA's rule: a page lives while its handle is not released or while
// it is mapped anywhere; what frees it is the last of both to go. Handles are
// numbered from 1 and never used twice, so that a stale one is always found
// out. Not thread-safe. All operations take a look-up in HandleBlocks.

#ifndef QUIRE_ALLOC_PAGE_TABLE_H_
#define QUIRE_ALLOC_PAGE_TABLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/handle_blocks.h"
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

  // The same for a run to be mapped: all of one device. Replaces what is in
  // `run`; after an error that is of no use.
  absl::Status FindRun(std::span<const PageHandle> handles,
                       std::vector<PhysicalPage>* run) const;

  // How often the page is mapped. REQUIRES: `handle` names a page that is held.
  uint64_t MappingCount(PageHandle handle) const;

  // Drops the handle. The result is the page where it is free now.
  absl::StatusOr<std::optional<PhysicalPage>> Release(PageHandle handle);

  // REQUIRES: `handle` names a page that is held.
  void AddMapping(PageHandle handle);
  // Drops one mapping. The result is the page where it is free now.
  // REQUIRES: AddMapping was called for it.
  std::optional<PhysicalPage> DropMapping(PageHandle handle);

  // Calls function(entry) for each page that is held, by handle.
  template <typename Function>
  void ForEach(Function function) const {
    entries_.ForEach(function);
  }

 private:
  // Null where the handle names no page, or was released.
  const Entry* FindUnreleased(PageHandle handle) const {
    const Entry* const entry = entries_.Find(handle);
    return entry == nullptr || entry->released ? nullptr : entry;
  }

  uint64_t last_handle_ = 0;
  HandleBlocks<Entry> entries_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PAGE_TABLE_H_
