#include <cmath>

#include "bench/model_switching/day.h"

namespace quire {

uint64_t SwitchingDay::LeastTensors(const ScenarioStep& reserve) const {
  if (strategy_ != SwitchStrategy::kShared) return reserve.count;
  return static_cast<uint64_t>(
      std::ceil(static_cast<double>(reserve.count) * options_.pool_minimum));
}

absl::Status SwitchingDay::Reserve(const std::string& name,
                                   const ScenarioStep& step) {
  const uint64_t least = LeastTensors(step);
  for (uint64_t i = 0; i < least && process_->Has(name); ++i) {
    QUIRE_RETURN_IF_ERROR(Allocate(name, i, step.bytes_each, 0));
  }
  if (strategy_ != SwitchStrategy::kShared || !process_->Has(name)) {
    return absl::OkStatus();
  }
  return process_->SetMinimum(name, Bytes(least * step.bytes_each.value()));
}

absl::Status SwitchingDay::DropPool(const std::string& name) {
  if (strategy_ == SwitchStrategy::kShared) {
    QUIRE_RETURN_IF_ERROR(process_->SetMinimum(name, Bytes(0)));
  }
  return process_->Drop(name);
}

std::vector<std::string> SwitchingDay::Pools() const {
  std::vector<std::string> pools;
  for (const std::string& name : process_->names()) {
    if (IsPool(*process_->made_by(name))) pools.push_back(name);
  }
  return pools;
}

absl::Status SwitchingDay::InflatePools() {
  const std::vector<std::string> pools = Pools();
  for (const std::string& name : pools) {
    const Bytes each = process_->made_by(name)->bytes_each;
    while (!each.zero() &&
           SaturatingAdd(process_->requested(), each) <= scenario_.usable) {
      const absl::Status status =
          process_->Allocate(name, process_->CountLive(name), each, 0);
      if (absl::IsResourceExhausted(status)) break;
      QUIRE_RETURN_IF_ERROR(status);
      NoteUse();
    }
  }
  if (!pools.empty()) {
    now_.idle = 1 - static_cast<double>(process_->requested().value()) /
                        static_cast<double>(scenario_.usable.value());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SwitchingDay::DeflatePools(Bytes size) {
  Bytes freed;
  for (const std::string& name : Pools()) {
    const ScenarioStep& reserve = *process_->made_by(name);
    while (freed < size && process_->CountLive(name) > LeastTensors(reserve)) {
      QUIRE_RETURN_IF_ERROR(process_->FreeNewest(name));
      freed = SaturatingAdd(freed, reserve.bytes_each);
    }
  }
  return !freed.zero();
}

}  // namespace quire
