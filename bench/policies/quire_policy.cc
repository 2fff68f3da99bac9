#include "bench/policies/quire_policy.h"

#include "absl/memory/memory.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<QuirePolicy>> QuirePolicy::Create(
    SimulatedDevice* device, Bytes page_size) {
  auto policy = absl::WrapUnique(new QuirePolicy());
  DeviceMemoryOptions options;
  options.page_size = page_size;
  QUIRE_ASSIGN_OR_RETURN(
      policy->memory_,
      DeviceMemory::Create(device->driver(), &policy->owners_, options));
  policy->allocator_ = DeviceAllocator::Create(policy->memory_.get());
  return policy;
}

absl::StatusOr<DeviceAddress> QuirePolicy::Allocate(Bytes size,
                                                    StreamId stream) {
  AllocateOptions options;
  options.stream = stream;
  return allocator_->Allocate(size, options);
}

absl::Status QuirePolicy::Free(DeviceAddress address, StreamId stream) {
  return allocator_->Free(address, stream);
}

absl::Status QuirePolicy::RecordStream(DeviceAddress address, StreamId stream) {
  return allocator_->RecordStream(address, stream);
}

PolicyUse QuirePolicy::GetUse() const {
  const DeviceMemoryStatistics memory = memory_->GetStatistics();
  return {Bytes(allocator_->GetStatistics().live_bytes),
          SaturatingSubtract(memory.in_use, memory.cached), memory.in_use};
}

Bytes QuirePolicy::CalculateLargest(StreamId /*stream*/) const {
  return allocator_->GetLargestPossible();
}

}  // namespace quire
