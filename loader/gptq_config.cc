#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/gptq_overrides.h"
#include "loader/onecomp_settings.h"
#include "loader/quantization_formats.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/gptq.h"
#include "quire/loader/json_fields.h"

namespace quire {
namespace {

// `get` of the one of `aliases` that is there, or `otherwise`.
template <typename T, typename Get>
absl::StatusOr<T> GetAliasOr(const JsonFields& fields,
                             std::initializer_list<std::string_view> aliases,
                             T otherwise, Get get) {
  const auto field = FindAlias(fields, aliases);
  if (absl::IsNotFound(field.status())) return otherwise;
  QUIRE_RETURN_IF_ERROR(field.status());
  return get(fields, *field);
}

absl::StatusOr<bool> GetBool(const JsonFields& fields, std::string_view field) {
  return fields.GetBool(field);
}

absl::StatusOr<GptqSettings> ParseDefaults(const JsonFields& fields,
                                           GptqPacking packing) {
  const bool awq = packing == GptqPacking::kAwq;
  const bool planar = packing == GptqPacking::kPlanar;
  GptqSettings settings;
  // AWQ has zero points unless it says that it has none.
  settings.sym = !awq;
  QUIRE_ASSIGN_OR_RETURN(
      settings.bits,
      GetAliasOr(fields, {"bits", "wbits", "w_bit"}, settings.bits,
                 [planar](const JsonFields& f, std::string_view field) {
                   return GetGptqBits(f, field, planar);
                 }));
  QUIRE_ASSIGN_OR_RETURN(
      settings.group_size,
      GetAliasOr(fields, {"group_size", "groupsize", "q_group_size"},
                 settings.group_size, GetGptqGroupSize));
  QUIRE_ASSIGN_OR_RETURN(
      settings.desc_act,
      GetAliasOr(fields, {"desc_act", "actorder"}, settings.desc_act, GetBool));
  if (fields.Has("sym")) {
    QUIRE_ASSIGN_OR_RETURN(settings.sym, fields.GetBool("sym"));
  } else {
    QUIRE_ASSIGN_OR_RETURN(const bool asymmetric,
                           fields.GetBoolOr("zero_point", !settings.sym));
    settings.sym = !asymmetric;
  }
  if (awq && settings.bits != 4)
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": ", settings.bits,
                     " bits; AWQ is read at 4 bits, the only width that its "
                     "GEMM layout has"));
  return settings;
}

}  // namespace

absl::StatusOr<GptqConfig> GptqConfig::Parse(const Checkpoint& checkpoint) {
  if (checkpoint.quantization_config_path().empty())
    return absl::NotFoundError(absl::StrCat(
        Printable(checkpoint.folder()),
        ": the weights are quantised, but neither quantize_config.json nor "
        "quant_config.json nor config.json's quantization_config says how"));
  GptqConfig config;
  config.where_ = QuantizationConfigName(checkpoint);
  const JsonFields fields(checkpoint.quantization_config(), config.where_);
  QUIRE_ASSIGN_OR_RETURN(const QuantizationMethod method,
                         FindQuantizationMethod(fields));
  const bool awq = method == QuantizationMethod::kAwq;
  if (!awq && method != QuantizationMethod::kGptq)
    return absl::InvalidArgumentError(
        absl::StrCat(config.where_, ": is for ", QuantizationMethodName(method),
                     ", not for GPTQ"));
  if (awq) {
    config.packing_ = GptqPacking::kAwq;
    config.zeros_are_v2_ = true;
  } else {
    QUIRE_ASSIGN_OR_RETURN(
        const std::string layout,
        GetAliasOr(fields, {"checkpoint_format", "format"}, std::string("gptq"),
                   [](const JsonFields& f, std::string_view field) {
                     return f.GetString(field);
                   }));
    if (layout == "gptq_p") config.packing_ = GptqPacking::kPlanar;
    config.zeros_are_v2_ = layout != "gptq";
  }
  QUIRE_ASSIGN_OR_RETURN(config.defaults_,
                         ParseDefaults(fields, config.packing_));

  QUIRE_ASSIGN_OR_RETURN(auto per_module, OneCompSettings::Parse(fields));
  config.per_module_ =
      std::make_shared<const OneCompSettings>(std::move(per_module));
  GptqOverrides overrides;
  if (fields.Has("dynamic")) {
    QUIRE_ASSIGN_OR_RETURN(const JsonFields dynamic,
                           fields.GetObject("dynamic"));
    QUIRE_ASSIGN_OR_RETURN(
        overrides,
        GptqOverrides::Parse(dynamic, checkpoint.dynamic_patterns(),
                             config.packing_ == GptqPacking::kPlanar));
  }
  config.overrides_ =
      std::make_shared<const GptqOverrides>(std::move(overrides));
  return config;
}

absl::StatusOr<std::optional<GptqSettings>> GptqConfig::ForModule(
    std::string_view module) const {
  return overrides_->Apply(module, per_module_->Apply(module, defaults_));
}

}  // namespace quire
