#include "bench/model_switching/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/text_table.h"
#include "nlohmann/json.hpp"

namespace quire {
namespace {

using nlohmann::json;

bool IsSwitch(const ScenarioStep& step) {
  return step.kind == ScenarioStep::Kind::kLoad ||
         step.kind == ScenarioStep::Kind::kUnload;
}

struct SwitchTimes {
  double mean = 0;
  double worst = 0;
};

SwitchTimes TimesOf(const SwitchingRun& run) {
  SwitchTimes times;
  size_t count = 0;
  for (size_t i = 0; i < run.result.steps.size(); ++i) {
    if (!IsSwitch(run.scenario->steps[i])) continue;
    const double seconds = run.SwitchSeconds(run.result.steps[i]);
    times.mean += seconds;
    times.worst = std::max(times.worst, seconds);
    ++count;
  }
  if (count > 0) times.mean /= static_cast<double>(count);
  return times;
}

double Ratio(const ScenarioResult& result) {
  if (result.peak_requested.zero()) return 0;
  return static_cast<double>(result.peak_reserved.value()) /
         static_cast<double>(result.peak_requested.value());
}

json StepToJson(const SwitchingRun& run, size_t index) {
  const ScenarioStep& step = run.scenario->steps[index];
  const StepResult& result = run.result.steps[index];
  json object = {
      {"do", ScenarioStepName(step.kind)},
      {"peak_requested", result.peak_requested.value()},
      {"peak_reserved", result.peak_reserved.value()},
      {"headroom",
       SaturatingSubtract(run.scenario->usable, result.peak_reserved).value()},
      {"driver_calls", result.driver_calls},
      {"virtual_ms", static_cast<double>(result.virtual_nanoseconds) / 1e6},
      {"bytes_loaded", result.loaded.value()},
      {"passed_over", result.passed_over},
      {"failure",
       result.failure ? json(ShortageKindName(*result.failure)) : json()}};
  if (!step.parts.empty()) object["workload"] = step.parts.front().workload;
  if (IsSwitch(step)) object["seconds_to_switch"] = run.SwitchSeconds(result);
  if (result.failure) {
    object["dropped"] = result.dropped;
    object["failed_request"] = result.failed_request.value();
  }
  return object;
}

json RunToJson(const SwitchingRun& run) {
  const ScenarioResult& result = run.result;
  const SwitchTimes times = TimesOf(run);
  json object = {
      {"scenario", run.scenario->name},
      {"class", run.scenario->category},
      {"policy", run.policy},
      {"validated", run.kind->validated},
      {"strategy", SwitchStrategyName(run.strategy)},
      {"device_memory", run.scenario->usable.value()},
      {"as_good_as_can_be", run.AsGoodAsCanBe()},
      {"switches", result.switches},
      {"switches_survived", result.switches_survived},
      {"capacity_failures", result.capacity_failures},
      {"fragmentation_failures", result.fragmentation_failures},
      {"first_failed_step",
       result.first_failed_step ? json(*result.first_failed_step) : json()},
      {"minimum_peak", run.scenario->minimum_peak.value()},
      {"peak_requested", result.peak_requested.value()},
      {"peak_reserved", result.peak_reserved.value()},
      {"ratio", Ratio(result)},
      {"driver_calls", result.driver_calls()},
      {"virtual_ms", static_cast<double>(result.virtual_nanoseconds()) / 1e6},
      {"bytes_loaded", result.loaded().value()},
      {"disk_rate", run.disk_rate.value()},
      {"seconds_to_switch", {{"mean", times.mean}, {"worst", times.worst}}}};
  json& steps = object["steps"] = json::array();
  for (size_t i = 0; i < result.steps.size(); ++i) {
    steps.push_back(StepToJson(run, i));
  }
  return object;
}

std::string FailureCell(const ScenarioResult& result) {
  if (!result.first_failed_step) return "-";
  const StepResult& step = result.steps[*result.first_failed_step];
  return absl::StrFormat("%s, step %d", ShortageKindName(*step.failure),
                         *result.first_failed_step);
}

}  // namespace

double SwitchingRun::SwitchSeconds(const StepResult& step) const {
  return static_cast<double>(step.loaded.value()) /
             static_cast<double>(disk_rate.value()) +
         static_cast<double>(step.virtual_nanoseconds) / 1e9;
}

bool SwitchingRun::AsGoodAsCanBe() const {
  if (result.fragmentation_failures > 0) return false;
  if (!scenario->first_step_over) return result.capacity_failures == 0;
  return !result.first_failed_step ||
         *result.first_failed_step >= *scenario->first_step_over;
}

std::string ToJson(const std::vector<SwitchingRun>& runs) {
  std::string text = "[";
  for (const SwitchingRun& run : runs) {
    absl::StrAppend(&text, text.size() > 1 ? ",\n" : "\n",
                    RunToJson(run).dump());
  }
  return text + "\n]\n";
}

std::string ToTable(const std::vector<SwitchingRun>& runs) {
  std::vector<std::vector<std::string>> rows = {
      {"scenario", "policy", "strategy", "switches", "survived", "requested",
       "reserved", "ratio", "calls", "virtual ms", "loaded", "to switch",
       "worst", "first failure", "as good as can be"}};
  for (const SwitchingRun& run : runs) {
    const ScenarioResult& result = run.result;
    const SwitchTimes times = TimesOf(run);
    rows.push_back(
        {run.scenario->name,
         absl::StrCat(run.policy, run.kind->validated ? "" : " (unvalidated)"),
         SwitchStrategyName(run.strategy), absl::StrCat(result.switches),
         absl::StrCat(result.switches_survived),
         FormatBytes(result.peak_requested), FormatBytes(result.peak_reserved),
         absl::StrFormat("%.4f", Ratio(result)),
         absl::StrCat(result.driver_calls()),
         absl::StrFormat(
             "%.0f", static_cast<double>(result.virtual_nanoseconds()) / 1e6),
         FormatBytes(result.loaded()), absl::StrFormat("%.2f s", times.mean),
         absl::StrFormat("%.2f s", times.worst), FailureCell(result),
         run.AsGoodAsCanBe() ? "yes" : "no"});
  }
  return AlignColumns(rows);
}

}  // namespace quire
