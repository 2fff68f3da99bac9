#include "loader/lora_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/json_file.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Beyond any layer's size, and small enough for products of two.
constexpr uint64_t kMaxLoraRank = 1 << 20;
// Every pattern is tried on every module until one matches.
constexpr size_t kMaxRankPatterns = 4096;

// Features that change what a module computes.
struct Feature {
  std::string_view field;
  std::string_view name;
};
constexpr std::array<Feature, 10> kUnsupported = {{
    {"use_dora", "DoRA"},
    {"use_qalora", "QA-LoRA"},
    {"use_bdlora", "BD-LoRA"},
    {"alora_invocation_tokens", "aLoRA"},
    {"arrow_config", "Arrow"},
    {"kasa_config", "KaSA"},
    {"monteclora_config", "MonteCLoRA"},
    {"layer_replication", "replication of layers"},
    {"target_parameters", "LoRA on parameters that are no module"},
    {"trainable_token_indices", "training of single tokens"},
}};

// Initialisations that leave a base model other than the checkpoint.
constexpr std::array<std::string_view, 5> kChangesBase = {
    "pissa", "corda", "olora", "loftq", "lora_ga"};

// Absent, null, false, zero and empty are all off.
bool IsOn(const JsonFields& fields, std::string_view field) {
  const nlohmann::json* const value = fields.Find(field);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return value->get<double>() != 0;
  if (value->is_string()) return !value->get_ref<const std::string&>().empty();
  return !value->empty();
}

absl::Status RefuseUnsupported(const JsonFields& fields) {
  QUIRE_ASSIGN_OR_RETURN(const std::string type, fields.GetString("peft_type"));
  if (type != "LORA")
    return absl::UnimplementedError(
        absl::StrCat(fields.where(), ": adapters of type ", Quoted(type),
                     " are not supported; \"LORA\" is"));
  for (const auto& [field, name] : kUnsupported) {
    if (IsOn(fields, field))
      return absl::UnimplementedError(
          absl::StrCat(fields.where(), ": ", std::string(field), ": ",
                       std::string(name), " is not supported; plain LoRA is"));
  }
  // What later versions add under such names changes the computation too.
  for (const auto& [field, value] : fields.object().items()) {
    if (absl::StartsWith(field, "use_") && field != "use_rslora" &&
        IsOn(fields, field))
      return absl::UnimplementedError(
          absl::StrCat(fields.where(), ": ", Printable(field),
                       " is not known; plain LoRA is supported"));
  }
  const nlohmann::json* const init = fields.Find("init_lora_weights");
  if (init == nullptr || !init->is_string()) return absl::OkStatus();
  const std::string& method = init->get_ref<const std::string&>();
  for (const std::string_view name : kChangesBase) {
    if (absl::StartsWithIgnoreCase(method,
                                   absl::string_view(name.data(), name.size())))
      return absl::UnimplementedError(absl::StrCat(
          fields.where(), ": init_lora_weights ", Quoted(method),
          " is not supported: it belongs to a changed base model; PEFT's "
          "save_pretrained converts it with "
          "path_initial_model_for_weight_conversion"));
  }
  return absl::OkStatus();
}

// "a", ["a", "b"], or nothing.
absl::StatusOr<std::vector<std::string>> OneOrMore(const JsonFields& fields,
                                                   std::string_view field) {
  const nlohmann::json* const value = fields.Find(field);
  if (value == nullptr) return std::vector<std::string>();
  if (value->is_string())
    return std::vector<std::string>{value->get<std::string>()};
  return fields.GetStrings(field);
}

absl::StatusOr<ModulePattern> Compile(const JsonFields& fields,
                                      std::string_view field,
                                      const std::string& pattern) {
  absl::StatusOr<ModulePattern> compiled = ModulePattern::Compile(pattern);
  if (!compiled.ok())
    return fields.Error(field, std::string(compiled.status().message()));
  return compiled;
}

}  // namespace

absl::StatusOr<LoraConfig> LoraConfig::Read(
    const std::string& path, std::vector<std::string>* warnings) {
  QUIRE_ASSIGN_OR_RETURN(const JsonFile file, ReadJsonFile(path));
  const JsonFields fields(file.value, Printable(path));
  LoraConfig config;
  config.where_ = fields.where();
  QUIRE_RETURN_IF_ERROR(RefuseUnsupported(fields));
  QUIRE_ASSIGN_OR_RETURN(const std::string bias,
                         fields.GetStringOr("bias", "none"));
  if (bias != "none" && bias != "all" && bias != "lora_only")
    return fields.Error("bias", absl::StrCat("is ", Quoted(bias),
                                             ", not none, all or lora_only"));
  QUIRE_ASSIGN_OR_RETURN(config.ties_weights_,
                         fields.GetBoolOr("ensure_weight_tying", false));
  QUIRE_ASSIGN_OR_RETURN(config.saved_modules_,
                         OneOrMore(fields, "modules_to_save"));
  QUIRE_RETURN_IF_ERROR(config.ReadScales(fields, path));
  QUIRE_RETURN_IF_ERROR(config.ReadTargets(fields));
  QUIRE_RETURN_IF_ERROR(config.ReadLayers(fields));
  QUIRE_ASSIGN_OR_RETURN(const bool transposed,
                         fields.GetBoolOr("fan_in_fan_out", false));
  if (transposed)
    warnings->push_back(
        absl::StrCat(config.where_,
                     ": fan_in_fan_out is ignored: the linears of the families "
                     "here are stored as [outputs, inputs]"));
  for (const std::string& field : file.repeated_fields)
    warnings->push_back(absl::StrCat(config.where_, ": field ", Quoted(field),
                                     " occurs twice, the last one counts"));
  return config;
}

absl::Status LoraConfig::ReadScales(const JsonFields& fields,
                                    const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(rank_, fields.GetUintOr("r", rank_, 1, kMaxLoraRank));
  QUIRE_ASSIGN_OR_RETURN(alpha_, fields.GetDoubleOr("lora_alpha", alpha_));
  QUIRE_ASSIGN_OR_RETURN(scale_by_root_, fields.GetBoolOr("use_rslora", false));
  // The first pattern that matches counts, so their order does.
  const auto read = [&](const char* field, auto* overrides,
                        const auto& get) -> absl::Status {
    if (!fields.Has(field)) return absl::OkStatus();
    QUIRE_ASSIGN_OR_RETURN(const JsonFields patterns, fields.GetObject(field));
    QUIRE_ASSIGN_OR_RETURN(const JsonFile ordered, ReadJsonFile(path, field));
    if (ordered.ordered_keys.size() > kMaxRankPatterns)
      return fields.Error(
          field, absl::StrCat("has more than ", kMaxRankPatterns, " patterns"));
    for (const std::string& key : ordered.ordered_keys) {
      QUIRE_ASSIGN_OR_RETURN(
          ModulePattern pattern,
          Compile(fields, field, absl::StrCat("(?:.*\\.)?(?:", key, ")$")));
      QUIRE_ASSIGN_OR_RETURN(const auto value, get(patterns, key));
      overrides->push_back({std::move(pattern), value});
    }
    return absl::OkStatus();
  };
  QUIRE_RETURN_IF_ERROR(
      read("rank_pattern", &ranks_, [](const JsonFields& f, const auto& key) {
        return f.GetUint(key, 1, kMaxLoraRank);
      }));
  return read(
      "alpha_pattern", &alphas_,
      [](const JsonFields& f, const auto& key) { return f.GetDouble(key); });
}

absl::Status LoraConfig::ReadTargets(const JsonFields& fields) {
  has_targets_ = fields.Has("target_modules");
  QUIRE_ASSIGN_OR_RETURN(targets_, ReadSelection(fields, "target_modules",
                                                 /*may_be_all_linear=*/true));
  QUIRE_ASSIGN_OR_RETURN(excluded_, ReadSelection(fields, "exclude_modules",
                                                  /*may_be_all_linear=*/false));
  return absl::OkStatus();
}

absl::StatusOr<LoraConfig::Selection> LoraConfig::ReadSelection(
    const JsonFields& fields, std::string_view field,
    bool may_be_all_linear) const {
  Selection selection;
  const nlohmann::json* const value = fields.Find(field);
  if (value == nullptr) return selection;
  if (!value->is_string()) {
    QUIRE_ASSIGN_OR_RETURN(selection.names, fields.GetStrings(field));
    return selection;
  }
  const std::string& text = value->get_ref<const std::string&>();
  if (may_be_all_linear && absl::EqualsIgnoreCase(text, "all-linear")) {
    selection.all_linear = true;
    return selection;
  }
  QUIRE_ASSIGN_OR_RETURN(
      selection.pattern,
      Compile(fields, field, absl::StrCat("(?:", text, ")\\z")));
  return selection;
}

absl::Status LoraConfig::ReadLayers(const JsonFields& fields) {
  const nlohmann::json* const layers = fields.Find("layers_to_transform");
  if (layers == nullptr) return absl::OkStatus();
  std::vector<uint64_t> numbers;
  if (layers->is_array()) {
    QUIRE_ASSIGN_OR_RETURN(numbers, fields.GetUints("layers_to_transform"));
  } else {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t number,
                           fields.GetUint("layers_to_transform"));
    numbers.push_back(number);
  }
  // PEFT refuses the one, and takes an empty list for no restriction.
  if (targets_.pattern)
    return fields.Error("layers_to_transform",
                        "stands beside a pattern in target_modules");
  if (numbers.empty()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::string> patterns,
                         OneOrMore(fields, "layers_pattern"));
  std::erase(patterns, "");
  if (patterns.empty()) patterns.push_back("[^.]*");
  const std::string any =
      absl::StrCat("\\.(?:", absl::StrJoin(numbers, "|"), ")\\.");
  for (const std::string& pattern : patterns) {
    QUIRE_ASSIGN_OR_RETURN(
        ModulePattern compiled,
        Compile(fields, "layers_pattern",
                absl::StrCat("(?:^|.*?\\.)(?:", pattern, ")", any)));
    layer_names_.push_back(std::move(compiled));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LoraConfig::Selection::Has(std::string_view module) const {
  if (pattern) return pattern->Matches(module);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return module == name || module.ends_with("." + name);
  });
}

bool LoraConfig::IsWithin(std::string_view module, std::string_view part) {
  const std::string within = absl::StrCat(".", std::string(module), ".");
  return absl::StrContains(within, absl::StrCat(".", std::string(part), "."));
}

bool LoraConfig::IsSaved(std::string_view module) const {
  return std::any_of(
      saved_modules_.begin(), saved_modules_.end(),
      [&](const std::string& part) { return IsWithin(module, part); });
}

absl::StatusOr<bool> LoraConfig::LayerIsSelected(
    std::string_view module) const {
  if (layer_names_.empty()) return true;
  for (const ModulePattern& pattern : layer_names_) {
    QUIRE_ASSIGN_OR_RETURN(const bool matches, pattern.Matches(module));
    if (matches) return true;
  }
  return false;
}

absl::StatusOr<bool> LoraConfig::Targets(std::string_view module,
                                         LoraTarget target) const {
  QUIRE_ASSIGN_OR_RETURN(const bool excluded, excluded_.Has(module));
  if (excluded || IsSaved(module)) return false;
  if (targets_.all_linear) return target == LoraTarget::kLinear;
  QUIRE_ASSIGN_OR_RETURN(const bool targeted, targets_.Has(module));
  if (!targeted) return false;
  // A whole name is meant as it stands.
  if (std::find(targets_.names.begin(), targets_.names.end(), module) !=
      targets_.names.end())
    return true;
  return LayerIsSelected(module);
}

absl::StatusOr<uint64_t> LoraConfig::RankOf(std::string_view module) const {
  for (const Override<uint64_t>& rank : ranks_) {
    QUIRE_ASSIGN_OR_RETURN(const bool matches, rank.pattern.Matches(module));
    if (matches) return rank.value;
  }
  return rank_;
}

absl::StatusOr<float> LoraConfig::ScaleOf(std::string_view module,
                                          uint64_t rank) const {
  double alpha = alpha_;
  for (const Override<double>& entry : alphas_) {
    QUIRE_ASSIGN_OR_RETURN(const bool matches, entry.pattern.Matches(module));
    if (!matches) continue;
    alpha = entry.value;
    break;
  }
  const auto divisor = static_cast<double>(rank);
  const double scale = alpha / (scale_by_root_ ? std::sqrt(divisor) : divisor);
  if (!(std::fabs(scale) <= std::numeric_limits<float>::max()))
    return absl::InvalidArgumentError(
        absl::StrCat(where_, ": lora_alpha ", alpha, " of ", Printable(module),
                     " is too large"));
  return static_cast<float>(scale);
}

}  // namespace quire
