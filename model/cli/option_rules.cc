#include "model/cli/option_rules.h"

#include <CLI/Error.hpp>
#include <CLI/Option.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "model/cli/options.h"
#include "quire/paging/batch_levels.h"

namespace quire {
namespace {

struct IdleRule {
  const char* option;
  bool (*has_effect)(const SessionOptions& options);
  const char* beside;
};

bool IsPaged(const SessionOptions& options) {
  return options.kv_cache == KvCacheKind::kPaged;
}
bool ChoosesLayout(const SessionOptions& options) {
  return options.layers_per_row == kAutoLayersPerRow;
}
bool IsPlaced(const SessionOptions& options) {
  return options.placement.in_use();
}
bool IsOnHost(const SessionOptions& options) {
  return options.device.driver == "host";
}

constexpr IdleRule kRules[] = {
    {"--device-memory", IsOnHost, "without --driver host"},
    {"--block-size", IsPaged, "without --kv-cache paged"},
    {"--mean-tokens", ChoosesLayout, "without --layers-per-row auto"},
    {"--waste-limit", ChoosesLayout, "without --layers-per-row auto"},
    {"--offload-folder", IsPlaced, "without --device-map or --max-memory"},
    {"--pinned-memory", IsPlaced, "without --device-map or --max-memory"},
};

std::optional<double> LevelIfGiven(const CLI::App& verb, const char* option,
                                   double level) {
  return IsGiven(verb, option) ? std::optional(level) : std::nullopt;
}

}  // namespace

bool IsGiven(const CLI::App& verb, const std::string& option) {
  const CLI::Option* const found = verb.get_option_no_throw(option);
  return found != nullptr && found->count() > 0;
}

std::string AsGiven(const CLI::App& verb, const std::string& option) {
  const CLI::Option& found = *verb.get_option(option);
  std::string text = option;
  if (found.get_items_expected_max() == 0) return text;  // a flag
  for (const std::string& value : found.results())
    absl::StrAppend(&text, " ", value);
  return text;
}

void RejectIdleOption(const CLI::App& verb, const std::string& option,
                      bool has_effect, const std::string& beside) {
  if (has_effect || !IsGiven(verb, option)) return;
  throw CLI::ValidationError(
      absl::StrCat(AsGiven(verb, option), " has no effect ", beside));
}

void FinishSessionOptions(const CLI::App& verb, SessionOptions* options,
                          const VerbTraits& traits) {
  for (const IdleRule& rule : kRules) {
    const bool always =
        (traits.shows_all_layouts && rule.has_effect == ChoosesLayout) ||
        (traits.places_weights && rule.has_effect == IsPlaced);
    RejectIdleOption(verb, rule.option, always || rule.has_effect(*options),
                     rule.beside);
  }
  options->batch_limit = CompleteBatchLevels(
      LevelIfGiven(verb, "--halve-above", options->batch_limit.halve_above),
      LevelIfGiven(verb, "--grow-below", options->batch_limit.grow_below));
  RejectBadOptions(options->Validate());
}

}  // namespace quire
