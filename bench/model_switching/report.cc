#include "bench/model_switching/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/model_switching/spread.h"
#include "bench/text_table.h"
#include "nlohmann/json.hpp"

namespace quire {
namespace {

using nlohmann::json;

Spread SwitchTimes(const SwitchingRun& run) {
  Spread spread;
  for (const StepResult& step : run.result.steps) {
    if (step.is_switch) spread.Add(run.Seconds(step.cost));
  }
  return spread;
}

Spread FirstTokenTimes(const SwitchingRun& run) {
  Spread spread;
  for (const StepResult& step : run.result.steps) {
    for (const SwitchCost& cost : step.first_tokens) {
      spread.Add(run.Seconds(cost));
    }
  }
  return spread;
}

Spread IdleShares(const SwitchingRun& run) {
  Spread spread;
  for (const StepResult& step : run.result.steps) {
    if (step.idle) spread.Add(*step.idle);
  }
  return spread;
}

double Ratio(const ScenarioResult& result) {
  if (result.peak_requested.zero()) return 0;
  return static_cast<double>(result.peak_reserved.value()) /
         static_cast<double>(result.peak_requested.value());
}

double Milliseconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e6;
}

Bytes Moved(const SwitchCost& cost) {
  return SaturatingAdd(cost.loaded,
                       SaturatingAdd(cost.copied_out, cost.copied_in));
}

json StepToJson(const SwitchingRun& run, size_t index) {
  const ScenarioStep& step = run.scenario->steps[index];
  const StepResult& result = run.result.steps[index];
  json object = {
      {"do", ScenarioStepName(step.kind)},
      {"minimum_peak", run.minima[index].value()},
      {"peak_requested", result.peak_requested.value()},
      {"peak_reserved", result.peak_reserved.value()},
      {"headroom",
       SaturatingSubtract(run.scenario->usable, result.peak_reserved).value()},
      {"host_memory", result.host_memory.value()},
      {"driver_calls", result.driver_calls},
      {"virtual_ms", Milliseconds(result.virtual_nanoseconds)},
      {"bytes_loaded", result.cost.loaded.value()},
      {"bytes_copied_out", result.cost.copied_out.value()},
      {"bytes_copied_in", result.cost.copied_in.value()},
      {"passed_over", result.passed_over},
      {"failure",
       result.failure ? json(ShortageKindName(*result.failure)) : json()}};
  if (!step.parts.empty()) object["workload"] = step.parts.front().workload;
  if (result.is_switch) object["seconds_to_switch"] = run.Seconds(result.cost);
  for (const SwitchCost& cost : result.first_tokens) {
    object["seconds_to_first_token"].push_back(run.Seconds(cost));
  }
  if (result.idle) object["idle_share"] = *result.idle;
  if (result.failure) {
    object["dropped"] = result.failures.front().dropped;
    object["failed_request"] = result.failures.front().request.value();
  }
  return object;
}

template <typename Value>
json OrNull(const std::optional<Value>& value) {
  return value ? json(*value) : json();
}

json LastDay(const ScenarioResult& result) {
  if (!result.last_day) return {};
  return {{"driver_calls", result.last_day->driver_calls},
          {"virtual_ms", Milliseconds(result.last_day->virtual_nanoseconds)}};
}

json RunToJson(const SwitchingRun& run, const json& settings) {
  const ScenarioResult& result = run.result;
  const SwitchCost cost = result.cost();
  json object = {{"scenario", run.scenario->name},
                 {"class", run.scenario->category},
                 {"policy", run.policy},
                 {"validated", run.kind->validated},
                 {"strategy", SwitchStrategyName(run.strategy)},
                 {"device_memory", run.scenario->usable.value()},
                 {"as_good_as_can_be", run.AsGoodAsCanBe()},
                 {"oom", result.first_failed_step.has_value()},
                 {"switches", result.switches},
                 {"switches_survived", result.switches_survived},
                 {"capacity_failures", result.capacity_failures},
                 {"fragmentation_failures", result.fragmentation_failures},
                 {"first_failed_step", OrNull(result.first_failed_step)},
                 {"first_step_over", OrNull(run.first_step_over())},
                 {"minimum_peak", run.minimum_peak().value()},
                 {"peak_requested", result.peak_requested.value()},
                 {"peak_reserved", result.peak_reserved.value()},
                 {"ratio", Ratio(result)},
                 {"driver_calls", result.driver_calls()},
                 {"virtual_ms", Milliseconds(result.virtual_nanoseconds())},
                 {"last_day", LastDay(result)},
                 {"owners", result.owners},
                 {"bytes_moved", Moved(cost).value()},
                 {"bytes_loaded", cost.loaded.value()},
                 {"bytes_copied_out", cost.copied_out.value()},
                 {"bytes_copied_in", cost.copied_in.value()},
                 {"host_memory_peak", result.peak_host_memory.value()},
                 {"disk_rate", run.rates.disk.value()},
                 {"host_rate", run.rates.host.value()},
                 {"pool_minimum", run.pool_minimum},
                 {"wake_to_copy", OrNull(run.WakeToCopy())},
                 {"idle_share", IdleShares(run).ToJson()},
                 {"seconds_to_switch", SwitchTimes(run).ToJson()},
                 {"seconds_to_first_token", FirstTokenTimes(run).ToJson()},
                 {"settings", settings}};
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

std::string LastDayCell(const ScenarioResult& result) {
  return result.last_day
             ? absl::StrFormat(
                   "%.0f", Milliseconds(result.last_day->virtual_nanoseconds))
             : "-";
}

std::string SecondsCell(double seconds, size_t count) {
  return count == 0 ? "-" : absl::StrFormat("%.2f s", seconds);
}

std::string PercentCell(const Spread& spread) {
  return spread.count == 0 ? "-"
                           : absl::StrFormat("%.2f %%", spread.worst * 100);
}

std::vector<std::string> TableRow(const SwitchingRun& run) {
  const ScenarioResult& result = run.result;
  const SwitchCost cost = result.cost();
  const Spread switches = SwitchTimes(run);
  const Spread tokens = FirstTokenTimes(run);
  return {run.scenario->name,
          absl::StrCat(run.policy, run.kind->validated ? "" : " (unvalidated)"),
          SwitchStrategyName(run.strategy),
          absl::StrCat(result.switches_survived, "/", result.switches),
          FormatBytes(result.peak_requested),
          FormatBytes(result.peak_reserved),
          absl::StrFormat("%.4f", Ratio(result)),
          absl::StrCat(result.driver_calls()),
          absl::StrFormat("%.0f", Milliseconds(result.virtual_nanoseconds())),
          LastDayCell(result),
          FormatBytes(cost.loaded),
          FormatBytes(SaturatingAdd(cost.copied_out, cost.copied_in)),
          FormatBytes(result.peak_host_memory),
          SecondsCell(switches.mean, switches.count),
          SecondsCell(tokens.mean, tokens.count),
          SecondsCell(tokens.worst, tokens.count),
          PercentCell(IdleShares(run)),
          FailureCell(result),
          run.AsGoodAsCanBe() ? "yes" : "no"};
}

}  // namespace

double SwitchingRun::Seconds(const SwitchCost& cost) const {
  const Bytes copied = SaturatingAdd(cost.copied_out, cost.copied_in);
  return static_cast<double>(cost.loaded.value()) /
             static_cast<double>(rates.disk.value()) +
         static_cast<double>(copied.value()) /
             static_cast<double>(rates.host.value()) +
         static_cast<double>(cost.nanoseconds) / 1e9;
}

Bytes SwitchingRun::minimum_peak() const {
  return minima.empty() ? Bytes(0)
                        : *std::max_element(minima.begin(), minima.end());
}

std::optional<size_t> SwitchingRun::first_step_over() const {
  const auto found =
      std::find_if(minima.begin(), minima.end(),
                   [&](Bytes bytes) { return bytes > scenario->usable; });
  if (found == minima.end()) return std::nullopt;
  return static_cast<size_t>(found - minima.begin());
}

bool SwitchingRun::AsGoodAsCanBe() const {
  if (result.fragmentation_failures > 0) return false;
  const std::optional<size_t> over = first_step_over();
  if (!over) return result.capacity_failures == 0;
  return !result.first_failed_step || *result.first_failed_step >= *over;
}

std::optional<double> SwitchingRun::WakeToCopy() const {
  const Bytes copied = result.cost().copied_in;
  if (copied.zero()) return std::nullopt;
  const double seconds = Seconds({.copied_in = copied});
  return seconds /
         (seconds + static_cast<double>(result.wake_nanoseconds()) / 1e9);
}

std::string ToJson(const SwitchingRun& run, const json& settings) {
  return RunToJson(run, settings).dump();
}

std::string ToTable(const std::vector<SwitchingRun>& runs) {
  std::vector<std::vector<std::string>> rows = {
      {"scenario", "policy", "strategy", "survived", "requested", "reserved",
       "ratio", "calls", "virtual ms", "last day", "loaded", "copied",
       "in host", "to switch", "to first token", "worst", "idle, worst",
       "first failure", "as good as can be"}};
  for (const SwitchingRun& run : runs) rows.push_back(TableRow(run));
  return AlignColumns(rows);
}

}  // namespace quire
