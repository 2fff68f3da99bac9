#include "bench/serving_replay/report.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/text_table.h"
#include "nlohmann/json.hpp"

namespace quire {
namespace {

using nlohmann::json;

json ToJson(const Percentiles& values) {
  return {{"mean", values.mean},
          {"p50", values.p50},
          {"p90", values.p90},
          {"p99", values.p99},
          {"max", values.max}};
}

// Of what is held, what no computed key or value is in.
double WastedShare(const SimulationResult& result) {
  return result.held_bytes > 0
             ? std::max(0.0, 1 - result.live_bytes / result.held_bytes)
             : 0;
}

double DriverMilliseconds(const SimulationResult& result) {
  return result.driver_ms + result.driver_ms_meanwhile;
}

const std::vector<std::string>& kColumns = *new std::vector<std::string>{
    "trace",      "load",        "cache", "served",
    "requests/s", "goodput",     "kept",  "TTFT p50 ms",
    "p99",        "TPOT p50 ms", "p99",   "preempted",
    "running",    "wasted",      "peak",  "calls waited for"};

std::string Milliseconds(double seconds) {
  return absl::StrFormat("%.0f", seconds * 1e3);
}

std::vector<std::string> TableRow(const ServingRun& run) {
  const SimulationResult& result = run.result;
  const ServiceQuality& quality = run.quality;
  if (!run.failure.empty()) {
    std::vector<std::string> row = {
        std::filesystem::path(run.trace).filename().string(),
        absl::StrFormat("%g", run.load_factor), result.cache, "no room"};
    row.resize(kColumns.size(), "-");
    return row;
  }
  return {std::filesystem::path(run.trace).filename().string(),
          absl::StrFormat("%g", run.load_factor),
          result.cache,
          absl::StrCat(result.served),
          absl::StrFormat("%.3f", quality.requests_per_second),
          absl::StrFormat("%.3f", quality.goodput),
          absl::StrFormat("%.1f %%", quality.attainment * 100),
          Milliseconds(quality.time_to_first_token.p50),
          Milliseconds(quality.time_to_first_token.p99),
          absl::StrFormat("%.1f", quality.time_per_output_token.p50 * 1e3),
          absl::StrFormat("%.1f", quality.time_per_output_token.p99 * 1e3),
          absl::StrCat(result.scheduler.preemptions),
          absl::StrFormat("%.1f", result.running),
          absl::StrFormat("%.2f %%", WastedShare(result) * 100),
          FormatBytes(result.peak_held),
          absl::StrCat(result.driver_calls)};
}

}  // namespace

std::string ServingToJson(const ServingRun& run, const json& settings) {
  const SimulationResult& result = run.result;
  const ServiceQuality& quality = run.quality;
  if (!run.failure.empty()) {
    const json object = {{"trace", run.trace},
                         {"load_factor", run.load_factor},
                         {"cache", result.cache},
                         {"requests", run.requests},
                         {"requests_too_long", run.too_long},
                         {"kv_memory", run.kv_memory.value()},
                         {"oom", true},
                         {"failure", run.failure},
                         {"settings", settings}};
    return object.dump() + "\n";
  }
  const json object = {
      {"trace", run.trace},
      {"load_factor", run.load_factor},
      {"cache", result.cache},
      {"requests", run.requests},
      {"requests_too_long", run.too_long},
      {"requests_served", result.served},
      {"virtual_seconds", result.virtual_seconds},
      {"requests_per_second", quality.requests_per_second},
      {"tokens_per_second", quality.tokens_per_second},
      {"objective",
       {{"seconds_to_first_token", run.objective.time_to_first_token},
        {"seconds_per_output_token", run.objective.time_per_output_token}}},
      {"goodput", quality.goodput},
      {"attainment", quality.attainment},
      {"seconds_to_first_token", ToJson(quality.time_to_first_token)},
      {"seconds_per_output_token", ToJson(quality.time_per_output_token)},
      {"preemptions", result.scheduler.preemptions},
      {"recomputed_tokens", result.scheduler.recomputed_tokens},
      {"cached_prompt_tokens", result.scheduler.cached_tokens},
      {"mean_running", result.running},
      {"kv_memory", run.kv_memory.value()},
      {"mean_live_bytes", result.live_bytes},
      {"mean_held_bytes", result.held_bytes},
      {"ratio", result.waste_ratio()},
      {"wasted_share", WastedShare(result)},
      {"peak_reserved", result.peak_held.value()},
      {"oom", false},
      {"driver_calls", result.driver_calls + result.driver_calls_meanwhile},
      {"driver_calls_waited_for", result.driver_calls},
      {"virtual_ms", DriverMilliseconds(result)},
      {"virtual_ms_waited_for", result.driver_ms},
      {"settings", settings}};
  return object.dump() + "\n";
}

std::string ServingToTable(const std::vector<ServingRun>& runs) {
  std::vector<std::vector<std::string>> rows = {kColumns};
  for (const ServingRun& run : runs) rows.push_back(TableRow(run));
  std::string text = AlignColumns(rows);
  for (const ServingRun& run : runs) {
    if (run.failure.empty()) continue;
    absl::StrAppend(&text, run.result.cache, ": ", run.failure, "\n");
  }
  return text;
}

}  // namespace quire
