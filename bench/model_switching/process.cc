#include "bench/model_switching/process.h"

#include <iterator>
#include <utility>

#include "absl/memory/memory.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<SwitchingProcess>> SwitchingProcess::Start(
    Bytes usable, const PolicySpec& policy, size_t streams, bool owners) {
  auto process = absl::WrapUnique(new SwitchingProcess());
  QUIRE_ASSIGN_OR_RETURN(process->device_, SimulatedDevice::Create(usable));
  SimulatedDevice* const device = process->device_.get();
  QUIRE_ASSIGN_OR_RETURN(process->policy_, policy.Create(device));
  if (owners) process->owners_ = process->policy_->owners();
  while (process->streams_.size() < streams) {
    QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                           device->driver()->CreateStream(DeviceId(0)));
    process->streams_.push_back(stream);
  }
  process->first_calls_ = device->calls();
  process->first_nanoseconds_ = device->nanoseconds();
  return process;
}

void SwitchingProcess::Add(const std::string& name,
                           const ScenarioStep* made_by) {
  models_[name].made_by = made_by;
  order_.push_back(name);
}

bool SwitchingProcess::IsAsleep(const std::string& name) const {
  const auto found = models_.find(name);
  return found != models_.end() && found->second.asleep;
}

const ScenarioStep* SwitchingProcess::made_by(const std::string& name) const {
  return models_.at(name).made_by;
}

uint64_t SwitchingProcess::CountLive(const std::string& name) const {
  return models_.at(name).live.size();
}

Bytes SwitchingProcess::RequestedBy(const std::string& name) const {
  return models_.at(name).requested;
}

absl::StatusOr<DeviceAddress> SwitchingProcess::AllocateFor(
    const std::string& name, Bytes size, size_t stream) {
  if (owners_ != nullptr) owners_->Select(name);
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                         policy_->Allocate(size, streams_[stream]));
  // Memory that could be had is no sum that wraps.
  requested_ += size.value();
  return address;
}

absl::Status SwitchingProcess::Allocate(const std::string& name, uint64_t id,
                                        Bytes size, size_t stream) {
  if (size.zero()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                         AllocateFor(name, size, stream));
  Model& model = models_.at(name);
  model.requested = SaturatingAdd(model.requested, size);
  model.ids[id] = next_order_;
  model.live[next_order_++] = {address, size, stream};
  return absl::OkStatus();
}

absl::Status SwitchingProcess::Free(const std::string& name, uint64_t id,
                                    size_t stream) {
  Model& model = models_.at(name);
  const auto found = model.ids.find(id);
  if (found == model.ids.end()) return absl::OkStatus();
  const auto held = model.live.find(found->second);
  const Held freed = held->second;
  model.live.erase(held);
  model.ids.erase(found);
  return FreeHeld(&model, freed, stream);
}

absl::Status SwitchingProcess::FreeNewest(const std::string& name) {
  Model& model = models_.at(name);
  const auto newest = std::prev(model.live.end());
  const Held freed = newest->second;
  model.live.erase(newest);
  return FreeHeld(&model, freed, freed.stream);
}

absl::Status SwitchingProcess::FreeHeld(Model* model, const Held& held,
                                        size_t stream) {
  model->requested = SaturatingSubtract(model->requested, held.size);
  if (!model->asleep) requested_ -= held.size.value();
  if (!HoldsMemory(*model)) return absl::OkStatus();
  return policy_->Free(held.address, streams_[stream]);
}

absl::Status SwitchingProcess::Drop(const std::string& name) {
  Model model = std::move(models_.at(name));
  models_.erase(name);
  std::erase(order_, name);
  host_memory_ = SaturatingSubtract(host_memory_, model.in_host);
  for (const auto& [order, held] : model.live) {
    QUIRE_RETURN_IF_ERROR(FreeHeld(&model, held, held.stream));
  }
  return absl::OkStatus();
}

absl::StatusOr<Bytes> SwitchingProcess::Sleep(const std::string& name) {
  Model& model = models_.at(name);
  if (model.asleep) return Bytes(0);
  model.in_host = model.requested;
  if (owners_ != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(model.in_host, owners_->Sleep(name));
  } else {
    QUIRE_RETURN_IF_ERROR(GiveUp(&model));
  }
  model.asleep = true;
  requested_ -= model.requested.value();
  host_memory_ = SaturatingAdd(host_memory_, model.in_host);
  return model.in_host;
}

absl::Status SwitchingProcess::GiveUp(Model* model) {
  for (const auto& [order, held] : model->live) {
    QUIRE_RETURN_IF_ERROR(policy_->Free(held.address, streams_[held.stream]));
  }
  return absl::OkStatus();
}

absl::StatusOr<Bytes> SwitchingProcess::Wake(const std::string& name) {
  Model& model = models_.at(name);
  if (!model.asleep) return Bytes(0);
  if (owners_ != nullptr) {
    QUIRE_RETURN_IF_ERROR(owners_->Wake(name).status());
    requested_ += model.requested.value();
  } else {
    QUIRE_RETURN_IF_ERROR(TakeBack(name, &model));
  }
  model.asleep = false;
  const Bytes copied = std::exchange(model.in_host, Bytes(0));
  host_memory_ = SaturatingSubtract(host_memory_, copied);
  return copied;
}

absl::Status SwitchingProcess::TakeBack(const std::string& name, Model* model) {
  for (auto held = model->live.begin(); held != model->live.end(); ++held) {
    const absl::StatusOr<DeviceAddress> address =
        AllocateFor(name, held->second.size, held->second.stream);
    if (address.ok()) {
      held->second.address = *address;
      continue;
    }
    while (held != model->live.begin()) {
      --held;
      requested_ -= held->second.size.value();
      QUIRE_RETURN_IF_ERROR(
          policy_->Free(held->second.address, streams_[held->second.stream]));
    }
    return address.status();
  }
  return absl::OkStatus();
}

absl::Status SwitchingProcess::SetMinimum(const std::string& name,
                                          Bytes minimum) {
  return owners_ == nullptr ? absl::OkStatus()
                            : owners_->SetMinimum(name, minimum);
}

}  // namespace quire
