// A policy that wastes nothing and has no limit: what is live is what is held.
//
// It counts what a day needs at the least, and takes part in no comparison.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_IDEAL_POLICY_H_
#define QUIRE_BENCH_MODEL_SWITCHING_IDEAL_POLICY_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/policies/policy.h"
#include "bench/policies/policy_registry.h"

namespace quire {

class IdealPolicy : public AllocatorPolicy {
 public:
  // For whoever makes policies by their specification.
  static PolicySpec Spec();

  absl::StatusOr<DeviceAddress> Allocate(Bytes size, StreamId stream) override;
  absl::Status Free(DeviceAddress address, StreamId stream) override;
  PolicyUse GetUse() const override { return {live_, live_, live_}; }
  Bytes CalculateLargest(StreamId /*stream*/) const override {
    return kLargestRequest;
  }

 private:
  absl::flat_hash_map<uint64_t, Bytes> sizes_;  // by address
  uint64_t next_address_ = 1;
  Bytes live_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_IDEAL_POLICY_H_
