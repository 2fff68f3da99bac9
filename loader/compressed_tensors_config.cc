#include "loader/compressed_tensors_config.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Strategy = CompressedScheme::Strategy;

constexpr std::string_view kPatternPrefix = "re:";
constexpr std::string_view kLinearClasses[] = {"Linear", "LinearBase"};
// Every pattern is tried on every module until one matches.
constexpr size_t kMaxTargets = 4096;
constexpr uint64_t kMxfp4GroupSize = 32;
constexpr char kUse[] =
    "use the unquantised model, or one in \"pack-quantized\", "
    "\"int-quantized\", \"float-quantized\" or \"mxfp4-pack-quantized\"";

constexpr std::string_view kFormats[] = {
    "pack-quantized",       "int-quantized",   "float-quantized",
    "naive-quantized",      "mixed-precision", "dense",
    "mxfp4-pack-quantized",
};

absl::Status CheckFormat(const JsonFields& fields) {
  QUIRE_ASSIGN_OR_RETURN(const std::string format,
                         fields.GetStringOr("format", "dense"));
  if (std::find(std::begin(kFormats), std::end(kFormats), format) !=
      std::end(kFormats))
    return absl::OkStatus();
  return fields.Error(
      "format",
      absl::StrCat("is ", Quoted(format), ", which is not supported: ", kUse));
}

// What would change the weights after they are decoded.
absl::Status CheckNothingElse(const JsonFields& config) {
  if (const nlohmann::json* transform = config.Find("transform_config");
      transform != nullptr && !transform->empty())
    return config.Error("transform_config",
                        "is there: transforms of activations before a linear "
                        "are not supported; quantise again without them");
  if (config.Has("sparsity_config")) {
    QUIRE_ASSIGN_OR_RETURN(const JsonFields sparsity,
                           config.GetObject("sparsity_config"));
    QUIRE_ASSIGN_OR_RETURN(const std::string format,
                           sparsity.GetStringOr("format", "dense"));
    if (format != "dense")
      return sparsity.Error("format",
                            absl::StrCat("is ", Quoted(format),
                                         ": compressed sparse weights are not "
                                         "supported; ",
                                         kUse));
  }
  return absl::OkStatus();
}

absl::StatusOr<BlockShape> ReadBlockStructure(const JsonFields& weights) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<uint64_t> sizes,
                         weights.GetUints("block_structure"));
  if (sizes.size() != 2 || sizes[0] == 0 || sizes[1] == 0)
    return weights.Error("block_structure", "is not two numbers above 0");
  return BlockShape{sizes[0], sizes[1]};
}

absl::Status ReadStrategy(const JsonFields& weights, CompressedScheme* scheme) {
  int64_t group_size = 0;
  if (weights.Has("group_size")) {
    QUIRE_ASSIGN_OR_RETURN(group_size,
                           weights.GetInt("group_size", -1, int64_t{1} << 31));
  }
  // compressed_tensors infers it likewise.
  const char* const inferred = group_size > 0   ? "group"
                               : group_size < 0 ? "channel"
                                                : "tensor";
  QUIRE_ASSIGN_OR_RETURN(const std::string strategy,
                         weights.GetStringOr("strategy", inferred));
  if (strategy == "tensor") {
    scheme->strategy = Strategy::kTensor;
  } else if (strategy == "channel") {
    scheme->strategy = Strategy::kChannel;
  } else if (strategy == "group") {
    scheme->strategy = Strategy::kGroup;
    if (group_size <= 0)
      return weights.Error("group_size",
                           "is not above 0, which strategy \"group\" needs");
    scheme->group_size = static_cast<uint64_t>(group_size);
  } else if (strategy == "block") {
    scheme->strategy = Strategy::kBlock;
    QUIRE_ASSIGN_OR_RETURN(scheme->block, ReadBlockStructure(weights));
  } else {
    return weights.Error(
        "strategy", absl::StrCat("is ", Quoted(strategy),
                                 "; \"tensor\", \"channel\", \"group\" and "
                                 "\"block\" are supported for weights"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CompressedScheme> ReadScheme(const JsonFields& weights) {
  CompressedScheme scheme;
  scheme.where = weights.where();
  QUIRE_ASSIGN_OR_RETURN(scheme.bits,
                         weights.GetUintOr("num_bits", scheme.bits, 1, 16));
  QUIRE_ASSIGN_OR_RETURN(const std::string type,
                         weights.GetStringOr("type", "int"));
  if (type != "int" && type != "float")
    return weights.Error("type", absl::StrCat("is ", Quoted(type),
                                              ", not \"int\" or \"float\""));
  scheme.is_float = type == "float";
  if (scheme.bits != 8 && scheme.bits != 4)
    return weights.Error(
        "num_bits", absl::StrCat("is ", scheme.bits, " of type ", Quoted(type),
                                 "; int 4, int 8, float 8 and float 4 (MXFP4) "
                                 "are supported: ",
                                 kUse));
  QUIRE_ASSIGN_OR_RETURN(scheme.symmetric,
                         weights.GetBoolOr("symmetric", true));
  QUIRE_RETURN_IF_ERROR(ReadStrategy(weights, &scheme));
  if (scheme.is_float && scheme.bits == 4 &&
      (scheme.strategy != Strategy::kGroup ||
       scheme.group_size != kMxfp4GroupSize))
    return weights.Error(
        "num_bits",
        absl::StrCat("is 4 of type \"float\", which is supported as "
                     "MXFP4 only, in groups of ",
                     kMxfp4GroupSize, ": ", kUse));
  return scheme;
}

}  // namespace

BlockShape CompressedScheme::BlockFor(uint64_t out_features,
                                      uint64_t in_features) const {
  switch (strategy) {
    case Strategy::kTensor:
      return {out_features, in_features};
    case Strategy::kChannel:
      return {1, in_features};
    case Strategy::kGroup:
      return {1, group_size};
    case Strategy::kBlock:
      return block;
  }
  return {};
}

absl::Status CompressedTensorsConfig::AddGroup(const JsonFields& group) {
  QUIRE_RETURN_IF_ERROR(CheckFormat(group));
  // Without weights only activations are quantised.
  if (!group.Has("weights")) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const JsonFields weights, group.GetObject("weights"));
  QUIRE_ASSIGN_OR_RETURN(CompressedScheme scheme, ReadScheme(weights));
  scheme.quantizes_activations = group.Has("input_activations");
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> targets,
                         group.GetStrings("targets"));
  for (const std::string& text : targets) {
    if (targets_.size() == kMaxTargets)
      return group.Error("targets",
                         absl::StrCat("brings the patterns and names to more "
                                      "than ",
                                      kMaxTargets));
    Target target;
    target.name = text;
    target.scheme = schemes_.size();
    if (text.starts_with(kPatternPrefix)) {
      auto compiled = ModulePattern::Compile(
          std::string_view(text).substr(kPatternPrefix.size()));
      if (!compiled.ok())
        return group.Error(
            "targets",
            absl::StrCat("has the pattern ", Quoted(text),
                         ", which is wrong: ", compiled.status().message()));
      target.pattern = *std::move(compiled);
    }
    targets_.push_back(std::move(target));
  }
  schemes_.push_back(std::move(scheme));
  return absl::OkStatus();
}

absl::StatusOr<CompressedTensorsConfig> CompressedTensorsConfig::Parse(
    const JsonFields& config) {
  QUIRE_RETURN_IF_ERROR(CheckFormat(config));
  QUIRE_RETURN_IF_ERROR(CheckNothingElse(config));
  CompressedTensorsConfig result;
  result.where_ = config.where();
  QUIRE_ASSIGN_OR_RETURN(const JsonFields groups,
                         config.GetObject("config_groups"));
  for (const auto& [name, unused] : groups.object().items()) {
    if (!groups.Has(name)) continue;
    QUIRE_ASSIGN_OR_RETURN(const JsonFields group, groups.GetObject(name));
    QUIRE_RETURN_IF_ERROR(result.AddGroup(group));
  }
  return result;
}

absl::StatusOr<const CompressedScheme*> CompressedTensorsConfig::ForModule(
    std::string_view module) const {
  for (const Target& target : targets_)
    if (!target.pattern && target.name == module)
      return &schemes_[target.scheme];
  for (const Target& target : targets_) {
    if (!target.pattern) continue;
    const absl::StatusOr<bool> matches = target.pattern->Matches(module);
    if (!matches.ok())
      return absl::InvalidArgumentError(absl::StrCat(
          where_, ": config_groups: the pattern ", Quoted(target.name), " on ",
          Quoted(module), ": ", matches.status().message()));
    if (*matches) return &schemes_[target.scheme];
  }
  for (const Target& target : targets_)
    if (std::find(std::begin(kLinearClasses), std::end(kLinearClasses),
                  target.name) != std::end(kLinearClasses))
      return &schemes_[target.scheme];
  return absl::InvalidArgumentError(
      absl::StrCat(where_, ": no target of config_groups is ", Quoted(module),
                   ", which is quantised"));
}

bool CompressedTensorsConfig::quantizes_activations() const {
  return std::any_of(schemes_.begin(), schemes_.end(),
                     [](const CompressedScheme& scheme) {
                       return scheme.quantizes_activations;
                     });
}

}  // namespace quire
