#include "quire/alloc/memory_resource.h"

#include <cstdint>

#include "absl/status/statusor.h"
#include "quire/alloc/allocation_error.h"

namespace quire {

DeviceMemoryResource::DeviceMemoryResource(DeviceAllocator* allocator,
                                           const AllocateOptions& options)
    : allocator_(allocator), options_(options) {}

void* DeviceMemoryResource::do_allocate(size_t bytes, size_t alignment) {
  AllocateOptions options = options_;
  options.alignment = Bytes(alignment);
  if (options.caller == nullptr) options.caller = __builtin_return_address(0);
  const absl::StatusOr<DeviceAddress> address =
      allocator_->Allocate(Bytes(bytes), options);
  if (!address.ok()) throw AllocationError(address.status());
  return reinterpret_cast<void*>(address->value());
}

void DeviceMemoryResource::do_deallocate(void* memory, size_t /*bytes*/,
                                         size_t /*alignment*/) {
  (void)allocator_->Free(DeviceAddress(reinterpret_cast<uint64_t>(memory)),
                         options_.stream);
}

bool DeviceMemoryResource::do_is_equal(
    const std::pmr::memory_resource& other) const noexcept {
  const auto* const resource =
      dynamic_cast<const DeviceMemoryResource*>(&other);
  return resource != nullptr && resource->allocator_ == allocator_ &&
         resource->options_.stream == options_.stream;
}

}  // namespace quire
