// Device memory for what takes a std::pmr::memory_resource.
//
//   DeviceMemoryResource resource(runtime->allocator(), {.owner = scratch});
//   void* buffer = resource.allocate(size, 256);
//
// What it gives is device memory: the host may touch it where the driver's
// device memory is host memory (HostDriver), and nowhere else. Containers write
// their elements from the host.

#ifndef QUIRE_ALLOC_MEMORY_RESOURCE_H_
#define QUIRE_ALLOC_MEMORY_RESOURCE_H_

#include <cstddef>
#include <memory_resource>

#include "quire/alloc/allocator.h"

namespace quire {

// Thread-safe. Stream-ordered: memory is allocated for options.stream, and free
// behind the work that was queued there before.
class DeviceMemoryResource final : public std::pmr::memory_resource {
 public:
  // `allocator` must outlive the resource. Alignments are those of each call.
  explicit DeviceMemoryResource(DeviceAllocator* allocator,
                                const AllocateOptions& options = {});

  DeviceAllocator* allocator() const { return allocator_; }

 private:
  // Throws AllocationError.
  void* do_allocate(size_t bytes, size_t alignment) override;
  // What the allocator refuses to free stays as it is: there is nobody to tell.
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override;
  // What one allocates the other may free: the same allocator and stream.
  bool do_is_equal(
      const std::pmr::memory_resource& other) const noexcept override;

  DeviceAllocator* const allocator_;
  const AllocateOptions options_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_MEMORY_RESOURCE_H_
