// Quire's own allocator, as one of the policies: nothing is modelled.

#ifndef QUIRE_BENCH_POLICIES_QUIRE_POLICY_H_
#define QUIRE_BENCH_POLICIES_QUIRE_POLICY_H_

#include <memory>

#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/owner.h"

namespace quire {

class QuirePolicy : public AllocatorPolicy {
 public:
  // The limit is the whole device. Errors: those of DeviceMemory::Create.
  static absl::StatusOr<std::unique_ptr<QuirePolicy>> Create(
      SimulatedDevice* device, Bytes page_size = MiB(2));

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  absl::Status RecordStream(DeviceAddress address, StreamId stream) override;
  PolicyUse GetUse() const override;
  Bytes CalculateLargest(StreamId stream) const override;

 private:
  QuirePolicy() = default;

  OwnerRegistry owners_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<DeviceAllocator> allocator_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_QUIRE_POLICY_H_
