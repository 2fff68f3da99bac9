// One process of a day: a device, a policy on it, and what models hold there.
//
// A model is what a workload has allocated, or a pool of tensors that was
// reserved. Memory that cannot be had is kResourceExhausted, of any call that
// allocates; what to do about it is the caller's.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_PROCESS_H_
#define QUIRE_BENCH_MODEL_SWITCHING_PROCESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/model_switching/scenario.h"
#include "bench/policies/policy.h"
#include "bench/policies/policy_registry.h"
#include "bench/policies/simulated_device.h"
#include "quire/alloc/units.h"

namespace quire {

class SwitchingProcess {
 public:
  // With `streams` streams, at least one. `owners`: models are owners of their
  // own, where the policy knows owners; without, they sleep as everywhere else.
  // Errors: the driver's, the policy's.
  static absl::StatusOr<std::unique_ptr<SwitchingProcess>> Start(
      Bytes usable, const PolicySpec& policy, size_t streams, bool owners);

  // Holds nothing yet. `made_by` is what to do to have it again, and outlives
  // the process. REQUIRES: not there.
  void Add(const std::string& name, const ScenarioStep* made_by);
  bool Has(const std::string& name) const { return models_.contains(name); }
  bool IsAsleep(const std::string& name) const;
  // Oldest first.
  const std::vector<std::string>& names() const { return order_; }
  const ScenarioStep* made_by(const std::string& name) const;

  // `id` is the workload's own. One that is live under the same id already, of
  // an earlier play of a phase, stays until the model goes. REQUIRES: the
  // model is there and awake.
  absl::Status Allocate(const std::string& name, uint64_t id, Bytes size,
                        size_t stream);
  // What is not live is passed over.
  absl::Status Free(const std::string& name, uint64_t id, size_t stream);
  // The last one that is live. REQUIRES: there is one.
  absl::Status FreeNewest(const std::string& name);
  // How many allocations it holds, and how much it has asked for with them,
  // awake or not.
  uint64_t CountLive(const std::string& name) const;
  Bytes RequestedBy(const std::string& name) const;
  // Frees what it holds, oldest first, and forgets it. Awake or not.
  absl::Status Drop(const std::string& name);

  // To host memory: the bytes that are copied there, or from there. With
  // systems that know owners, their pages; with others what was asked for,
  // which is freed, and allocated again in the same order. After
  // kResourceExhausted of Wake it sleeps on. REQUIRES: the model is there.
  absl::StatusOr<Bytes> Sleep(const std::string& name);
  absl::StatusOr<Bytes> Wake(const std::string& name);
  // Others cannot have what the pool holds less than this; nothing where the
  // system knows no owners.
  absl::Status SetMinimum(const std::string& name, Bytes minimum);

  bool has_owners() const { return owners_ != nullptr; }
  Bytes usable() const { return device_->memory(); }
  Bytes requested() const { return Bytes(requested_); }  // live and awake
  Bytes reserved() const { return policy_->GetUse().reserved; }
  Bytes host_memory() const { return host_memory_; }  // of models that sleep
  // Of the driver, since the start.
  uint64_t calls() const { return device_->calls() - first_calls_; }
  uint64_t nanoseconds() const {
    return device_->nanoseconds() - first_nanoseconds_;
  }

 private:
  struct Held {
    DeviceAddress address;
    Bytes size;
    size_t stream;
  };
  struct Model {
    const ScenarioStep* made_by = nullptr;
    std::map<uint64_t, Held> live;                // by order of allocation
    absl::flat_hash_map<uint64_t, uint64_t> ids;  // of the trace, to that order
    bool asleep = false;
    Bytes in_host;  // while it sleeps
    Bytes requested;
  };

  SwitchingProcess() = default;
  absl::StatusOr<DeviceAddress> AllocateFor(const std::string& name, Bytes size,
                                            size_t stream);
  // Only what is awake has memory of the policy, where it knows no owners.
  bool HoldsMemory(const Model& model) const {
    return !model.asleep || owners_ != nullptr;
  }
  absl::Status FreeHeld(Model* model, const Held& held, size_t stream);
  absl::Status GiveUp(Model* model);
  absl::Status TakeBack(const std::string& name, Model* model);

  std::unique_ptr<SimulatedDevice> device_;
  std::unique_ptr<AllocatorPolicy> policy_;  // destroyed before the device
  PolicyOwners* owners_ = nullptr;  // null: models are nobody to the policy
  std::vector<StreamId> streams_;
  std::map<std::string, Model> models_;
  std::vector<std::string> order_;  // of models_
  uint64_t requested_ = 0;
  uint64_t next_order_ = 0;
  Bytes host_memory_;
  uint64_t first_calls_ = 0;
  uint64_t first_nanoseconds_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_PROCESS_H_
