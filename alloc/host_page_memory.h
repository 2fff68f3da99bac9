// The physical memory of one software device: ranges of a memfd.
//
// Offsets are handed out from the lowest free one on, so that pages created one
// after the other lie side by side and their mappings merge in the kernel. The
// offset space is not bounded by the device's memory, so that pages of mixed
// sizes never fail for want of a contiguous range: as on a GPU, only the sum of
// the sizes counts.
//
// Memory appears at first touch and returns to the kernel when a page is freed;
// a page handed out again reads as zeros.
//
// Not thread-safe. Allocate is O(1) for pages of one size, O(free runs) at
// worst; Free is O(log free runs).

#ifndef QUIRE_ALLOC_HOST_PAGE_MEMORY_H_
#define QUIRE_ALLOC_HOST_PAGE_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

class HostPageMemory {
 public:
  // Without `backed` there are offsets but no file.
  static absl::StatusOr<std::unique_ptr<HostPageMemory>> Create(
      DeviceId device, uint64_t capacity, bool backed);
  ~HostPageMemory();
  HostPageMemory(const HostPageMemory&) = delete;
  HostPageMemory& operator=(const HostPageMemory&) = delete;

  // The offset of `size` bytes. REQUIRES: size > 0.
  absl::StatusOr<uint64_t> Allocate(uint64_t size);
  // REQUIRES: exactly an allocated range, mapped nowhere.
  void Free(uint64_t offset, uint64_t size);

  // -1 where nothing backs the pages.
  int fd() const { return fd_; }
  uint64_t capacity() const { return capacity_; }
  uint64_t used() const { return used_; }

 private:
  HostPageMemory(DeviceId device, uint64_t capacity, int fd)
      : device_(device), capacity_(capacity), fd_(fd) {}

  const DeviceId device_;
  const uint64_t capacity_;
  const int fd_;
  uint64_t used_ = 0;
  // Free runs below frontier_, offset -> size; no two are adjacent, and none
  // touches the frontier.
  std::map<uint64_t, uint64_t> free_;
  uint64_t frontier_ = 0;
  uint64_t file_size_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_HOST_PAGE_MEMORY_H_
