#include "bench/model_switching/switching_result.h"

namespace quire {
namespace {

template <typename Value, typename Get>
Value Sum(const std::vector<StepResult>& steps, Get get) {
  Value sum{};
  for (const StepResult& step : steps) sum += get(step);
  return sum;
}

}  // namespace

void SwitchCost::Add(const SwitchCost& other) {
  loaded = SaturatingAdd(loaded, other.loaded);
  copied_out = SaturatingAdd(copied_out, other.copied_out);
  copied_in = SaturatingAdd(copied_in, other.copied_in);
  nanoseconds += other.nanoseconds;
}

SwitchCost ScenarioResult::cost() const {
  SwitchCost sum;
  for (const StepResult& step : steps) sum.Add(step.cost);
  return sum;
}

uint64_t ScenarioResult::wake_nanoseconds() const {
  return Sum<uint64_t>(
      steps, [](const StepResult& step) { return step.wake_nanoseconds; });
}

uint64_t ScenarioResult::driver_calls() const {
  return Sum<uint64_t>(
      steps, [](const StepResult& step) { return step.driver_calls; });
}

uint64_t ScenarioResult::virtual_nanoseconds() const {
  return Sum<uint64_t>(
      steps, [](const StepResult& step) { return step.virtual_nanoseconds; });
}

}  // namespace quire
