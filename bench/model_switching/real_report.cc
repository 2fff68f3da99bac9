#include "bench/model_switching/real_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/model_switching/spread.h"
#include "bench/text_table.h"
#include "nlohmann/json.hpp"

namespace quire {
namespace {

using nlohmann::json;

json ModelToJson(const RealModel& model, const std::vector<TokenId>& tokens) {
  const std::optional<size_t> difference =
      FirstDifference(model.tokens, tokens);
  return {{"model", model.path},
          {"peak_reserved_alone", model.peak.value()},
          {"tokens", tokens.size()},
          {"tokens_alone", model.tokens.size()},
          {"equal", !difference},
          {"first_difference", difference ? json(*difference) : json()}};
}

// Of waking up, to that of a plain copy; none where nothing woke up.
std::optional<double> WakeToCopy(const RealResult& result) {
  if (result.copied_in.zero()) return std::nullopt;
  return result.copy_seconds / result.wake_seconds;
}

// Of opening models, to that of a plain read of their files; none where nothing
// was opened.
std::optional<double> LoadToRead(const RealResult& result) {
  if (result.load_seconds <= 0) return std::nullopt;
  return result.read_seconds / result.load_seconds;
}

// The same, and of copying into memory that nobody has touched where that is
// slower.
std::optional<double> LoadToBound(const RealResult& result) {
  if (result.load_seconds <= 0) return std::nullopt;
  return result.bound_seconds / result.load_seconds;
}

json OrNull(std::optional<double> value) {
  return value ? json(*value) : json();
}

Spread SwitchTimes(const RealResult& result) {
  Spread spread;
  for (const RealSwitch& times : result.switches) {
    spread.Add(times.seconds_to_switch);
  }
  return spread;
}

Spread FirstTokenTimes(const RealResult& result) {
  Spread spread;
  for (const RealSwitch& times : result.switches) {
    spread.Add(times.seconds_to_first_token);
  }
  return spread;
}

json SwitchesToJson(const std::vector<RealModel>& models,
                    const RealResult& result) {
  json steps = json::array();
  for (const RealSwitch& done : result.switches) {
    steps.push_back(
        {{"model", models[done.model].path},
         {"seconds_to_switch", done.seconds_to_switch},
         {"seconds_to_first_token", done.seconds_to_first_token},
         {"reserved", done.reserved.value()},
         {"headroom",
          SaturatingSubtract(result.device_memory, done.reserved).value()},
         {"host_memory", done.host_memory.value()}});
  }
  return steps;
}

Bytes Moved(const RealResult& result) {
  return SaturatingAdd(result.read,
                       SaturatingAdd(result.copied_out, result.copied_in));
}

json ResultToJson(const std::vector<RealModel>& models,
                  const RealResult& result, const json& settings) {
  json object = {
      {"strategy", SwitchStrategyName(result.strategy)},
      {"device_memory", result.device_memory.value()},
      {"peak_reserved", result.peak_reserved.value()},
      {"host_memory_peak", result.peak_host_memory.value()},
      {"oom", result.failure.has_value()},
      {"failure", result.failure ? json(*result.failure) : json()},
      {"failure_kind", result.failure_kind
                           ? json(ShortageKindName(*result.failure_kind))
                           : json()},
      {"switches", result.planned_switches},
      {"switches_survived", result.switches.size()},
      {"all_equal", AllEqual(models, result)},
      {"bytes_moved", Moved(result).value()},
      {"bytes_loaded", result.read.value()},
      {"bytes_copied_out", result.copied_out.value()},
      {"bytes_copied_in", result.copied_in.value()},
      {"wake_seconds", result.wake_seconds},
      {"copy_seconds", result.copy_seconds},
      {"wake_to_copy", OrNull(WakeToCopy(result))},
      {"load_seconds", result.load_seconds},
      {"read_seconds", result.read_seconds},
      {"load_to_read", OrNull(LoadToRead(result))},
      {"bound_seconds", result.bound_seconds},
      {"load_to_bound", OrNull(LoadToBound(result))},
      {"seconds_to_switch", SwitchTimes(result).ToJson()},
      {"seconds_to_first_token", FirstTokenTimes(result).ToJson()},
      {"steps", SwitchesToJson(models, result)},
      {"settings", settings}};
  json& list = object["models"] = json::array();
  for (size_t i = 0; i < models.size(); ++i) {
    list.push_back(ModelToJson(models[i], result.tokens[i]));
  }
  return object;
}

std::string ShareCell(std::optional<double> share) {
  return share ? absl::StrFormat("%.2f", *share) : "-";
}

std::vector<std::string> TableRow(const std::vector<RealModel>& models,
                                  const RealResult& result) {
  size_t tokens = 0;
  for (const auto& of_model : result.tokens) tokens += of_model.size();
  const Spread switches = SwitchTimes(result);
  const Spread first = FirstTokenTimes(result);
  return {SwitchStrategyName(result.strategy),
          FormatBytes(result.device_memory),
          FormatBytes(result.peak_reserved),
          FormatBytes(result.peak_host_memory),
          absl::StrCat(result.switches.size(), "/", result.planned_switches),
          FormatBytes(result.read),
          FormatBytes(SaturatingAdd(result.copied_out, result.copied_in)),
          absl::StrFormat("%.3f s", switches.mean),
          absl::StrFormat("%.3f s", first.mean),
          absl::StrFormat("%.3f s", first.worst),
          ShareCell(WakeToCopy(result)),
          ShareCell(LoadToRead(result)),
          ShareCell(LoadToBound(result)),
          absl::StrCat(tokens),
          result.failure             ? absl::StrCat("memory ran out: ",
                                                    ShortageKindName(*result.failure_kind))
          : AllEqual(models, result) ? "all equal"
                                     : "different"};
}

}  // namespace

bool AllEqual(const std::vector<RealModel>& models, const RealResult& result) {
  for (size_t i = 0; i < models.size(); ++i) {
    if (FirstDifference(models[i].tokens, result.tokens[i])) return false;
  }
  return true;
}

std::string RealToJson(const std::vector<RealModel>& models,
                       const std::vector<RealResult>& results,
                       const json& settings) {
  std::string text = "[";
  for (const RealResult& result : results) {
    absl::StrAppend(&text, text.size() > 1 ? ",\n" : "\n",
                    ResultToJson(models, result, settings).dump());
  }
  return text + "\n]\n";
}

std::string RealToTable(const std::vector<RealModel>& models,
                        const std::vector<RealResult>& results) {
  std::vector<std::vector<std::string>> rows = {
      {"strategy", "device", "reserved", "in host", "switches", "read",
       "copied", "to switch", "to first token", "worst", "wake / copy",
       "load / read", "load / bound", "tokens", "to those alone"}};
  for (const RealResult& result : results) {
    rows.push_back(TableRow(models, result));
  }
  std::string text;
  for (const RealModel& model : models) {
    absl::StrAppend(&text, model.path, ": ", FormatBytes(model.peak),
                    " alone\n");
  }
  return text + AlignColumns(rows);
}

}  // namespace quire
