#include "bench/kv_stress/report.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quire {
namespace {

struct Row {
  const char* name;
  std::function<std::string(const SimulationResult&)> text;
};

std::string Size(double bytes) {
  return FormatBytes(Bytes(static_cast<uint64_t>(bytes)));
}

double PerSecond(const SimulationResult& r) {
  return r.virtual_seconds > 0
             ? static_cast<double>(r.served) / r.virtual_seconds
             : 0;
}

double WaitingShare(const SimulationResult& r) {
  return r.decode_steps > 0 ? static_cast<double>(r.decode_steps_waiting) /
                                  static_cast<double>(r.decode_steps)
                            : 0;
}

double IdleOver(const SimulationResult& r, Bytes part) {
  return part.zero() ? 0
                     : static_cast<double>(r.idle_held.value()) /
                           static_cast<double>(part.value());
}
double IdleRatio(const SimulationResult& r) { return IdleOver(r, r.idle_live); }
double IdleFootprint(const SimulationResult& r) {
  return IdleOver(r, r.idle_needed);
}

double IdleShareOfPeak(const BurstResult& result) {
  return result.peak_held.zero()
             ? 0
             : static_cast<double>(result.most_idle_held.value()) /
                   static_cast<double>(result.peak_held.value());
}

std::vector<Row> Rows() {
  using R = SimulationResult;
  const auto number = [](auto get) {
    return [get](const R& r) { return absl::StrCat(get(r)); };
  };
  const auto decimals = [](const char* format, auto get) {
    return [format, get](const R& r) {
      return absl::StrFormat(absl::ParsedFormat<'f'>(format), get(r));
    };
  };
  return {
      {"create, us",
       decimals("%.0f", [](const R& r) { return r.create_page_us; })},
      {"requests served", number([](const R& r) { return r.served; })},
      {"steps", number([](const R& r) { return r.steps; })},
      {"virtual seconds",
       decimals("%.1f", [](const R& r) { return r.virtual_seconds; })},
      {"requests / virtual second", decimals("%.3f", PerSecond)},
      {"admissions", number([](const R& r) { return r.scheduler.admissions; })},
      {"preemptions",
       number([](const R& r) { return r.scheduler.preemptions; })},
      {"  tokens computed again",
       number([](const R& r) { return r.scheduler.recomputed_tokens; })},
      {"  swapped out", number([](const R& r) { return r.scheduler.swaps; })},
      {"    copied, both ways",
       [](const R& r) {
         return FormatBytes(SaturatingAdd(r.swapped_out, r.swapped_in));
       }},
      {"prompt tokens from cache",
       number([](const R& r) { return r.scheduler.cached_tokens; })},
      {"running, mean", decimals("%.1f", [](const R& r) { return r.running; })},
      {"live, mean", [](const R& r) { return Size(r.live_bytes); }},
      {"needed, mean", [](const R& r) { return Size(r.needed_bytes); }},
      {"held, mean", [](const R& r) { return Size(r.held_bytes); }},
      {"held / live",
       decimals("%.4f", [](const R& r) { return r.waste_ratio(); })},
      {"held, peak", [](const R& r) { return FormatBytes(r.peak_held); }},
      {"held / live, idle", decimals("%.4f", IdleRatio)},
      {"held / needed, idle", decimals("%.4f", IdleFootprint)},
      {"driver calls", number([](const R& r) { return r.driver_calls; })},
      {"driver, virtual ms",
       decimals("%.1f", [](const R& r) { return r.driver_ms; })},
      {"driver calls meanwhile",
       number([](const R& r) { return r.driver_calls_meanwhile; })},
      {"  virtual ms",
       decimals("%.1f", [](const R& r) { return r.driver_ms_meanwhile; })},
      {"  beyond the compute",
       decimals("%.1f", [](const R& r) { return r.overrun_ms; })},
      {"decode steps", number([](const R& r) { return r.decode_steps; })},
      {"  that waited for the driver",
       number([](const R& r) { return r.decode_steps_waiting; })},
      {"    for calls meanwhile",
       number([](const R& r) { return r.decode_steps_overrun; })},
      {"  longest wait, virtual ms",
       decimals("%.1f", [](const R& r) { return r.longest_wait_ms; })},
      {"host us / step",
       decimals("%.1f", [](const R& r) { return r.host_us_per_step; })},
      {"host us / Step of 256",
       decimals("%.2f", [](const R& r) { return r.host_us_per_cache_step; })},
  };
}

}  // namespace

std::string FormatResults(const std::vector<StressResult>& results) {
  std::string text = absl::StrFormat("%-30s", "cache");
  for (const StressResult& result : results)
    absl::StrAppendFormat(&text, "%16s", result.simulation.cache);
  text += "\n";
  for (const Row& row : Rows()) {
    absl::StrAppendFormat(&text, "%-30s", row.name);
    for (const StressResult& result : results)
      absl::StrAppendFormat(
          &text, "%16s",
          result.failure.empty() ? row.text(result.simulation) : "-");
    text += "\n";
  }
  for (const StressResult& result : results) {
    if (!result.failure.empty())
      absl::StrAppend(&text, result.simulation.cache, ": ", result.failure,
                      "\n");
  }
  if (std::all_of(results.begin(), results.end(), [](const StressResult& r) {
        return r.attention.microseconds == 0;
      }))
    return text;
  absl::StrAppendFormat(&text, "%-30s", "attention of a step, us");
  for (const StressResult& result : results)
    absl::StrAppendFormat(&text, "%16.0f", result.attention.microseconds);
  absl::StrAppendFormat(&text, "\n%-30s", "  of one layer a row's");
  for (const StressResult& result : results)
    absl::StrAppendFormat(&text, "%16.3f", result.attention.relative);
  text += "\n";
  return text;
}

nlohmann::json ResultToJson(const StressResult& result) {
  const SimulationResult& r = result.simulation;
  if (!result.failure.empty())
    return {{"cache", r.cache},
            {"create_page_us", r.create_page_us},
            {"failure", result.failure}};
  return {{"cache", r.cache},
          {"create_page_us", r.create_page_us},
          {"requests_served", r.served},
          {"steps", r.steps},
          {"virtual_seconds", r.virtual_seconds},
          {"requests_per_virtual_second", PerSecond(r)},
          {"admitted_requests", r.scheduler.admissions},
          {"preempted_requests", r.scheduler.preemptions},
          {"recomputed_tokens", r.scheduler.recomputed_tokens},
          {"swapped_requests", r.scheduler.swaps},
          {"swapped_out_bytes", r.swapped_out.value()},
          {"swapped_in_bytes", r.swapped_in.value()},
          {"swap_virtual_ms", r.copy_ms},
          {"cached_prompt_tokens", r.scheduler.cached_tokens},
          {"batch_limit_halvings", r.scheduler.halvings},
          {"prompt_tokens", r.prompt_tokens},
          {"decoded_tokens", r.decoded_tokens},
          {"mean_running", r.running},
          {"mean_live_bytes", r.live_bytes},
          {"mean_needed_bytes", r.needed_bytes},
          {"mean_held_bytes", r.held_bytes},
          {"waste_ratio", r.waste_ratio()},
          {"peak_held_bytes", r.peak_held.value()},
          {"peak_pages", r.peak_pages.value()},
          {"driver_calls_on_critical_path", r.driver_calls},
          {"driver_calls_off_critical_path", r.driver_calls_meanwhile},
          {"driver_off_path_virtual_ms", r.driver_ms_meanwhile},
          {"driver_virtual_ms", r.driver_ms},
          {"driver_overrun_virtual_ms", r.overrun_ms},
          {"longest_driver_virtual_ms", r.longest_wait_ms},
          {"decode_steps", r.decode_steps},
          {"decode_steps_waiting", r.decode_steps_waiting},
          {"decode_steps_waiting_share", WaitingShare(r)},
          {"decode_steps_overrun", r.decode_steps_overrun},
          {"host_us_per_step", r.host_us_per_step},
          {"host_us_per_cache_step_of_256", r.host_us_per_cache_step},
          {"idle_held_bytes", r.idle_held.value()},
          {"idle_needed_bytes", r.idle_needed.value()},
          {"idle_live_bytes", r.idle_live.value()},
          {"idle_footprint", IdleFootprint(r)},
          {"idle_ratio", IdleRatio(r)},
          {"attention_us_per_step", result.attention.microseconds},
          {"attention_relative_to_per_layer", result.attention.relative}};
}

std::string FormatBursts(Bytes kv_memory,
                         const std::vector<BurstResult>& results) {
  std::string text = absl::StrFormat(
      "%s for keys and values\n%-16s %10s %12s %12s %12s %10s\n",
      FormatBytes(kv_memory), "model", "served", "preempted", "held, peak",
      "held, idle", "of peak");
  for (const BurstResult& result : results)
    absl::StrAppendFormat(
        &text, "%-16s %10u %12u %12s %12s %9.2f%%\n", result.model,
        result.served, result.preemptions, FormatBytes(result.peak_held),
        FormatBytes(result.most_idle_held), 100 * IdleShareOfPeak(result));
  return text;
}

nlohmann::json BurstsToJson(Bytes kv_memory,
                            const std::vector<BurstResult>& results) {
  nlohmann::json json = {{"kv_memory_bytes", kv_memory.value()}};
  for (const BurstResult& result : results)
    json["models"].push_back(
        {{"model", result.model},
         {"requests_served", result.served},
         {"preempted_requests", result.preemptions},
         {"peak_held_bytes", result.peak_held.value()},
         {"idle_held_bytes", result.most_idle_held.value()},
         {"idle_share_of_peak", IdleShareOfPeak(result)}});
  return json;
}

}  // namespace quire
