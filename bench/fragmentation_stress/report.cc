#include "bench/fragmentation_stress/report.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/fragmentation_stress/page_map_report.h"
#include "bench/text_table.h"

namespace quire {
namespace {

using nlohmann::json;

double Milliseconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e6;
}

// What a run is ranked by, better ones first. Ratios that a table shows alike
// are alike.
std::tuple<bool, double> RankKey(const StressRun& run) {
  return {!run.survived(), std::round(run.result.ratio() * 1e4)};
}

json MomentToJson(const PolicyMoment& moment) {
  return {{"event", moment.event},
          {"requested", moment.requested.value()},
          {"allocated", moment.use.allocated.value()},
          {"mapped", moment.use.mapped.value()},
          {"reserved", moment.use.reserved.value()},
          {"internal_fragmentation", moment.internal_fragmentation()},
          {"external_fragmentation", moment.external_fragmentation()}};
}

json FailureToJson(const PolicyFailure& failure, const WorkloadOrder& before,
                   Bytes device_memory) {
  json result = MomentToJson(failure.moment);
  result["device_free"] =
      SaturatingSubtract(device_memory, failure.moment.use.reserved).value();
  result["phases_before"] = before.phases;
  result["requests_before"] = before.requests;
  result["size"] = failure.size.value();
  result["largest_allocatable"] = failure.largest.value();
  result["kind"] = ShortageKindName(failure.kind);
  result["message"] = failure.message;
  return result;
}

json CostToJson(const PolicyCost& cost) {
  return {{"driver_calls", cost.driver_calls},
          {"virtual_ms", Milliseconds(cost.virtual_nanoseconds)}};
}

json LookToJson(const PolicyLook& look) {
  json result = MomentToJson(look.moment);
  result["largest_allocatable"] = look.largest.value();
  result.update(CostToJson(look.cost));
  return result;
}

json RunToJson(const StressRun& run, std::optional<int> rank) {
  const PolicyReplayResult& result = run.result;
  json object = {
      {"policy", run.policy},
      {"title", run.kind->title},
      {"validated", run.kind->validated},
      {"evidence", run.kind->evidence},
      {"rank", rank ? json(*rank) : json()},
      {"trace", run.trace},
      {"events", run.events},
      {"iterations", run.iterations},
      {"device_memory", run.device_memory.value()},
      {"peak_requested", result.peak_requested.value()},
      {"peak_mapped", result.peak_mapped.value()},
      {"peak_reserved", result.peak_reserved.value()},
      {"ratio", result.ratio()},
      {"survived", run.survived()},
      {"oom", !run.survived()},
      {"oom_count", result.failures},
      {"first_oom", result.first_failure
                        ? FailureToJson(*result.first_failure,
                                        run.before_failure, run.device_memory)
                        : json()},
      {"driver_calls", result.total.driver_calls},
      {"virtual_ms", Milliseconds(result.total.virtual_nanoseconds)},
      {"first_iteration", CostToJson(result.first_iteration)},
      {"steady_state",
       run.repeats() ? CostToJson(result.last_iteration) : json()},
      {"peak_requested_by_trace", run.asked.peak_requested.value()},
      {"largest_request", run.asked.largest.value()},
      {"peak_reserved_when_recorded", run.asked.peak_reserved.value()},
      {"at_peak_requested", MomentToJson(result.at_peak_requested)},
      {"at_end", MomentToJson(result.at_end)},
      {"largest_allocatable", run.looks.largest_at_end.value()},
      {"seconds", result.seconds},
      {"settings", run.settings}};
  if (!run.looks.timeline.empty()) {
    json& timeline = object["timeline"] = json::array();
    for (const PolicyLook& look : run.looks.timeline) {
      timeline.push_back(LookToJson(look));
    }
  }
  if (!run.looks.page_maps.empty())
    object["page_map"] = PageMapsToJson(run.looks);
  return object;
}

std::string OutOfMemoryCell(const PolicyReplayResult& result) {
  if (!result.first_failure) return "-";
  return absl::StrFormat("%s, event %d",
                         ShortageKindName(result.first_failure->kind),
                         result.first_failure->moment.event);
}

std::string NanosecondsPerEvent(const StressRun& run) {
  const double events =
      static_cast<double>(std::max<uint64_t>(run.events * run.iterations, 1));
  return absl::StrFormat("%.0f", run.result.seconds * 1e9 / events);
}

// The validated survivor with the least of a figure, and those that have as
// little.
template <typename Figure>
std::string Winners(const std::vector<StressRun>& runs, const Figure& figure) {
  std::string names;
  std::optional<double> least;
  for (const StressRun& run : runs) {
    if (!run.kind->validated || !run.survived()) continue;
    const auto value = static_cast<double>(figure(run.result));
    if (least && value > *least) continue;
    if (!least || value < *least) names.clear();
    least = value;
    absl::StrAppend(&names, names.empty() ? "" : ", ", run.policy);
  }
  return names.empty() ? "none" : names;
}

}  // namespace

std::vector<std::optional<int>> RankRuns(const std::vector<StressRun>& runs) {
  std::vector<std::optional<int>> ranks;
  for (const StressRun& run : runs) {
    if (!run.kind->validated) {
      ranks.push_back(std::nullopt);
      continue;
    }
    ranks.push_back(
        1 + std::count_if(runs.begin(), runs.end(), [&](const auto& other) {
          return other.kind->validated && other.trace == run.trace &&
                 RankKey(other) < RankKey(run);
        }));
  }
  return ranks;
}

std::string ToJson(const std::vector<StressRun>& runs,
                   const std::vector<std::optional<int>>& ranks) {
  std::string text = "[";
  for (size_t i = 0; i < runs.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "\n" : ",\n",
                    RunToJson(runs[i], ranks[i]).dump());
  }
  return text + "\n]\n";
}

std::string ToTable(const std::vector<StressRun>& runs,
                    const std::vector<std::optional<int>>& ranks) {
  const bool repeats = runs.front().repeats();
  std::vector<std::vector<std::string>> rows = {
      {"policy", "rank", "requested", "reserved", "ratio", "internal",
       "external", "largest", "calls", "virtual ms"}};
  if (repeats) {
    rows[0].insert(rows[0].end(), {"steady calls", "steady ms"});
  }
  rows[0].insert(rows[0].end(), {"ns/event", "first out of memory"});
  std::string survivors;
  for (size_t i = 0; i < runs.size(); ++i) {
    const StressRun& run = runs[i];
    const PolicyReplayResult& result = run.result;
    const PolicyMoment& peak = result.at_peak_requested;
    std::vector<std::string> row = {
        run.policy,
        ranks[i] ? absl::StrCat(*ranks[i]) : "-",
        FormatBytes(result.peak_requested),
        FormatBytes(result.peak_reserved),
        absl::StrFormat("%.4f", result.ratio()),
        absl::StrFormat("%.1f%%", 100 * peak.internal_fragmentation()),
        absl::StrFormat("%.1f%%", 100 * peak.external_fragmentation()),
        FormatBytes(run.looks.largest_at_end),
        absl::StrCat(result.first_iteration.driver_calls),
        absl::StrFormat(
            "%.1f", Milliseconds(result.first_iteration.virtual_nanoseconds))};
    if (repeats) {
      row.push_back(absl::StrCat(result.last_iteration.driver_calls));
      row.push_back(absl::StrFormat(
          "%.1f", Milliseconds(result.last_iteration.virtual_nanoseconds)));
    }
    row.push_back(NanosecondsPerEvent(run));
    row.push_back(OutOfMemoryCell(result));
    rows.push_back(std::move(row));
    if (run.survived()) {
      absl::StrAppend(&survivors, survivors.empty() ? "" : ", ", run.policy);
    }
  }
  return absl::StrCat(
      runs.front().trace, ", ", runs.front().events, " events, device of ",
      FormatBytes(runs.front().device_memory), "\n", AlignColumns(rows),
      "survivors: ", survivors.empty() ? "none" : survivors,
      "\nleast reserved: ",
      Winners(runs,
              [](const PolicyReplayResult& result) {
                return result.peak_reserved.value();
              }),
      "; fewest driver calls: ",
      Winners(runs,
              [](const auto& result) { return result.total.driver_calls; }),
      "; least virtual time: ",
      Winners(
          runs,
          [](const auto& result) { return result.total.virtual_nanoseconds; }),
      "\n");
}

}  // namespace quire
