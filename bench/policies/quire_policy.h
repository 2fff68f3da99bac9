// Quire's own allocator, as one of the policies: nothing is modelled.

#ifndef QUIRE_BENCH_POLICIES_QUIRE_POLICY_H_
#define QUIRE_BENCH_POLICIES_QUIRE_POLICY_H_

#include <memory>
#include <string>

#include "bench/policies/policy.h"
#include "bench/policies/simulated_device.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/owner.h"

namespace quire {

// Owners sleep without contents, which the device does not have: what a copy
// takes is for callers to say.
class QuirePolicy : public AllocatorPolicy, private PolicyOwners {
 public:
  // The limit is the whole device. Errors: those of DeviceMemory::Create.
  static absl::StatusOr<std::unique_ptr<QuirePolicy>> Create(
      SimulatedDevice* device, Bytes page_size = MiB(2));

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  absl::Status RecordStream(DeviceAddress address, StreamId stream) override;
  PolicyOwners* owners() override { return this; }
  PolicyUse GetUse() const override;
  Bytes CalculateLargest(StreamId stream) const override;

 private:
  QuirePolicy() = default;
  void Select(const std::string& owner) override;
  absl::StatusOr<Bytes> Sleep(const std::string& owner) override;
  absl::StatusOr<Bytes> Wake(const std::string& owner) override;
  absl::Status SetMinimum(const std::string& owner, Bytes minimum) override;

  OwnerRegistry owners_;
  std::string selected_name_;
  OwnerId selected_ = kUnnamedOwner;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<DeviceAllocator> allocator_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_QUIRE_POLICY_H_
