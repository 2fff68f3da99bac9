#include "bench/policies/quire_policy.h"

#include "absl/memory/memory.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/sleep.h"
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
  options.owner = selected_;
  return allocator_->Allocate(size, options);
}

absl::Status QuirePolicy::Free(DeviceAddress address, StreamId stream) {
  return allocator_->Free(address, stream);
}

absl::Status QuirePolicy::RecordStream(DeviceAddress address, StreamId stream) {
  return allocator_->RecordStream(address, stream);
}

void QuirePolicy::Select(const std::string& owner) {
  if (owner == selected_name_) return;
  selected_name_ = owner;
  selected_ = owner.empty() ? kUnnamedOwner : owners_.Register(owner);
}

absl::StatusOr<Bytes> QuirePolicy::Sleep(const std::string& owner) {
  QUIRE_ASSIGN_OR_RETURN(const QuiescentSection section,
                         QuiescentSection::Begin(memory_.get(), {}));
  QUIRE_ASSIGN_OR_RETURN(const SleepReport report,
                         allocator_->Sleep(section, owners_.Register(owner),
                                           {.target = SleepTarget::kDrop}));
  return CheckedBytes(report.pages, memory_->page_size())
      .value_or(Bytes(UINT64_MAX));
}

absl::StatusOr<Bytes> QuirePolicy::Wake(const std::string& owner) {
  QUIRE_ASSIGN_OR_RETURN(const SleepReport report,
                         allocator_->Wake(owners_.Register(owner)));
  return CheckedBytes(report.pages, memory_->page_size())
      .value_or(Bytes(UINT64_MAX));
}

absl::Status QuirePolicy::SetMinimum(const std::string& owner, Bytes minimum) {
  return memory_->SetOwnerLimits(owners_.Register(owner),
                                 {.reserved_minimum = minimum});
}

PolicyUse QuirePolicy::GetUse() const {
  const DeviceMemoryStatistics memory = memory_->GetStatistics();
  const AllocatorStatistics allocator = allocator_->GetStatistics();
  return {SaturatingSubtract(Bytes(allocator.live_bytes),
                             Bytes(allocator.asleep_bytes)),
          SaturatingSubtract(memory.in_use, memory.cached), memory.in_use};
}

Bytes QuirePolicy::CalculateLargest(StreamId /*stream*/) const {
  return allocator_->GetLargestPossible();
}

}  // namespace quire
