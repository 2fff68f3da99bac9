#include "bench/model_switching/ideal_policy.h"

#include <memory>

#include "bench/policies/block_store.h"

namespace quire {

PolicySpec IdealPolicy::Spec() {
  static const PolicyKind& kind = *new PolicyKind{
      "ideal", "what is asked for, and no more", false, "it exists nowhere",
      [](SimulatedDevice*,
         PolicySettings*) -> absl::StatusOr<std::unique_ptr<AllocatorPolicy>> {
        return std::make_unique<IdealPolicy>();
      }};
  return {kind.name, &kind, PolicySettings()};
}

absl::StatusOr<DeviceAddress> IdealPolicy::Allocate(Bytes size,
                                                    StreamId /*stream*/) {
  const DeviceAddress address(next_address_++);
  sizes_[address.value()] = size;
  live_ = SaturatingAdd(live_, size);
  return address;
}

absl::Status IdealPolicy::Free(DeviceAddress address, StreamId /*stream*/) {
  const auto found = sizes_.find(address.value());
  if (found == sizes_.end()) {
    return NotAllocated("ideal", address);
  }
  live_ = SaturatingSubtract(live_, found->second);
  sizes_.erase(found);
  return absl::OkStatus();
}

}  // namespace quire
