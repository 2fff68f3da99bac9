#include "loader/quantization_formats.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "loader/checkpoint_configs.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

struct Format {
  const char* name;         // in lower case
  const char* description;  // "AWQ"
  const char* remedy;
};

constexpr char kUseGptq[] =
    "use a GPTQ checkpoint of the model, or quantise the original with "
    "\"quire quantize\"";
constexpr char kUsePlain[] =
    "use the unquantised model, or a GPTQ checkpoint of it";
constexpr char kSaveAsGptq[] =
    "save it again from GPTQModel with format \"gptq\" or \"gptq_v2\"";

// quant_method, of those that are read.
struct Method {
  const char* name;  // in lower case
  QuantizationMethod method;
};
constexpr Method kSupported[] = {
    {"gptq", QuantizationMethod::kGptq},
    {"mixed_gptq", QuantizationMethod::kGptq},
    {"awq", QuantizationMethod::kAwq},
    {"fp8", QuantizationMethod::kFp8},
    {"fbgemm_fp8", QuantizationMethod::kFp8},
    {"compressed-tensors", QuantizationMethod::kCompressedTensors},
    {"compressed_tensors", QuantizationMethod::kCompressedTensors},
    {"mxfp4", QuantizationMethod::kMxfp4},
};

// quant_method, of the others.
constexpr Format kMethods[] = {
    {"modelopt", "NVIDIA ModelOpt", kUsePlain},
    {"bitsandbytes", "bitsandbytes", kUsePlain},
    {"dbf", "OneComp's double binary factorisation", kUseGptq},
    {"mdbf", "OneComp's multi-level binary factorisation", kUseGptq},
    {"onebit", "OneComp's OneBit", kUseGptq},
    {"mixed_dbf", "OneComp's double binary factorisation", kUseGptq},
    {"mixed_mdbf", "OneComp's multi-level binary factorisation", kUseGptq},
    {"mixed_onebit", "OneComp's OneBit", kUseGptq},
    {"auto-round", "AutoRound's own layout",
     "export it again with format \"auto_gptq\""},
    {"intel/auto-round", "AutoRound's own layout",
     "export it again with format \"auto_gptq\""},
    {"aqlm", "AQLM", kUseGptq},
    {"eetq", "EETQ", kUseGptq},
    {"exl2", "ExLlamaV2's own layout", kUseGptq},
    {"exl3", "ExLlamaV3's own layout", kUseGptq},
    {"hqq", "HQQ", kUseGptq},
    {"higgs", "HIGGS", kUseGptq},
    {"marlin", "Marlin's packing", kSaveAsGptq},
    {"paroquant", "ParoQuant", kUseGptq},
    {"qqq", "QQQ", kUseGptq},
    {"quanto", "Quanto", kUseGptq},
    {"quip", "QuIP", kUseGptq},
    {"spqr", "SpQR", kUseGptq},
    {"torchao", "torchao", kUseGptq},
    {"vptq", "VPTQ", kUseGptq},
};

// checkpoint_format, of those that are read.
constexpr std::string_view kGptqLayouts[] = {"gptq", "gptq_v2", "gptq_p"};

// checkpoint_format, of the others.
constexpr Format kLayouts[] = {
    {"marlin", "Marlin's packing", kSaveAsGptq},
    {"bitblas", "BitBLAS's packing", kSaveAsGptq},
    {"qqq", "QQQ's packing", kSaveAsGptq},
    {"gemm", "AWQ's packing", "it belongs to quant_method \"awq\""},
};

// AWQ's `version`, beside "gemm".
constexpr char kSaveAsGemm[] = "save it again from AutoAWQ as \"gemm\"";
constexpr Format kAwqLayouts[] = {
    {"gemv", "AWQ's packing along the inputs", kSaveAsGemm},
    {"gemv_fast", "AWQ's interleaved packing along the inputs", kSaveAsGemm},
    {"llm-awq", "llm-awq's own packing", kSaveAsGemm},
    {"marlin", "Marlin's packing", kSaveAsGemm},
    {"exllama", "ExLlama's packing", kSaveAsGemm},
};

// What weights are read by, of the fields that are one word or number.
constexpr const char* kMeaningfulFields[] = {
    "quant_method", "checkpoint_format", "format", "version",
    "bits",         "group_size",        "sym",    "desc_act",
    "zero_point",   "pack_dtype"};

template <size_t n>
absl::Status Refuse(const JsonFields& config, std::string_view field,
                    const std::string& value, const Format (&formats)[n],
                    const char* kind) {
  const std::string lower = absl::AsciiStrToLower(value);
  const auto* format =
      std::find_if(std::begin(formats), std::end(formats),
                   [&lower](const Format& f) { return lower == f.name; });
  if (format == std::end(formats))
    return config.Error(
        field, absl::StrCat("is ", Quoted(value), ", which is not a known ",
                            kind, " format: ", kUseGptq));
  return config.Error(
      field, absl::StrCat("is ", Quoted(value), ": ", format->description,
                          " is not supported here; ", format->remedy));
}

absl::StatusOr<QuantizationMethod> FindMethod(const JsonFields& config) {
  const auto field = FindAlias(config, {"quant_method", "method"});
  if (absl::IsNotFound(field.status())) {
    // Files from before the field existed.
    for (const char* flag : {"load_in_4bit", "load_in_8bit"}) {
      QUIRE_ASSIGN_OR_RETURN(const bool set, config.GetBoolOr(flag, false));
      if (set)
        return Refuse(config, flag, "bitsandbytes", kMethods, "quantisation");
    }
    return config.Has("version") ? QuantizationMethod::kAwq
                                 : QuantizationMethod::kGptq;
  }
  QUIRE_RETURN_IF_ERROR(field.status());
  QUIRE_ASSIGN_OR_RETURN(const std::string method, config.GetString(*field));
  const std::string lower = absl::AsciiStrToLower(method);
  const auto* supported =
      std::find_if(std::begin(kSupported), std::end(kSupported),
                   [&lower](const Method& m) { return lower == m.name; });
  if (supported == std::end(kSupported))
    return Refuse(config, *field, method, kMethods, "quantisation");
  // GPTQ takes a missing format for v1, OneComp's vLLM plugin for v2.
  if (lower == "mixed_gptq" && !config.Has("checkpoint_format"))
    return config.Error("checkpoint_format",
                        "is missing; with \"mixed_gptq\" readers disagree on "
                        "what that means: add \"gptq\" or \"gptq_v2\"");
  return supported->method;
}

absl::Status CheckAwqLayout(const JsonFields& config) {
  const auto field =
      FindAlias(config, {"version", "checkpoint_format", "format"});
  if (absl::IsNotFound(field.status())) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(field.status());
  QUIRE_ASSIGN_OR_RETURN(const std::string layout, config.GetString(*field));
  if (absl::AsciiStrToLower(layout) == "gemm") return absl::OkStatus();
  return Refuse(config, *field, layout, kAwqLayouts, "AWQ");
}

absl::Status CheckGptqLayout(const JsonFields& config) {
  QUIRE_ASSIGN_OR_RETURN(const bool marlin,
                         config.GetBoolOr("is_marlin_format", false));
  if (marlin)
    return Refuse(config, "is_marlin_format", "marlin", kLayouts, "GPTQ");
  const auto field = FindAlias(config, {"checkpoint_format", "format"});
  if (absl::IsNotFound(field.status())) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(field.status());
  QUIRE_ASSIGN_OR_RETURN(const std::string layout, config.GetString(*field));
  if (std::find(std::begin(kGptqLayouts), std::end(kGptqLayouts), layout) !=
      std::end(kGptqLayouts))
    return absl::OkStatus();
  return Refuse(config, *field, layout, kLayouts, "GPTQ");
}

// What GPTQ and AWQ have in common.
absl::Status CheckPacking(const JsonFields& config) {
  QUIRE_ASSIGN_OR_RETURN(const std::string pack_dtype,
                         config.GetStringOr("pack_dtype", "int32"));
  if (pack_dtype != "int32")
    return config.Error(
        "pack_dtype",
        absl::StrCat("is ", Quoted(pack_dtype),
                     "; only words of \"int32\" are supported: ", kSaveAsGptq));
  QUIRE_ASSIGN_OR_RETURN(const bool rotated,
                         config.GetBoolOr("rotated", false));
  if (rotated)
    return config.Error("rotated",
                        "is true: OneComp's rotated models need a Hadamard "
                        "transform before every down_proj, which is not "
                        "supported; quantise again without rotation");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string_view> FindAlias(
    const JsonFields& fields, std::initializer_list<std::string_view> aliases) {
  std::string_view found;
  for (const std::string_view alias : aliases) {
    if (!fields.Has(alias)) continue;
    if (found.empty()) {
      found = alias;
    } else if (*fields.Find(found) != *fields.Find(alias)) {
      return fields.Error(alias, absl::StrCat("contradicts ", Quoted(found)));
    }
  }
  if (found.empty())
    return absl::NotFoundError(absl::StrCat(
        fields.where(), ": field ", Quoted(*aliases.begin()), " is missing"));
  return found;
}

std::string QuantizationConfigName(const Checkpoint& checkpoint) {
  const std::string& path = checkpoint.quantization_config_path();
  const bool embedded = path.ends_with("config.json") &&
                        !path.ends_with("quantize_config.json") &&
                        !path.ends_with("quant_config.json");
  if (embedded)
    return absl::StrCat(Printable(path), ": ",
                        EmbeddedQuantization(checkpoint.config()));
  const std::string otherwise = ContradictionsOfConfigJson(checkpoint);
  if (otherwise.empty()) return Printable(path);
  return absl::StrCat(Printable(path), ", but config.json says ", otherwise);
}

std::string ContradictionsOfConfigJson(const Checkpoint& checkpoint) {
  const nlohmann::json& file = checkpoint.quantization_config();
  const auto embedded = checkpoint.config().find("quantization_config");
  if (embedded == checkpoint.config().end() || !embedded->is_object())
    return "";
  std::string contradictions;
  for (const char* field : kMeaningfulFields) {
    const auto ours = file.find(field);
    const auto other = embedded->find(field);
    if (ours == file.end() || other == embedded->end() || *ours == *other)
      continue;
    absl::StrAppend(
        &contradictions, contradictions.empty() ? "" : ", ", field, " = ",
        Printable(other->dump(-1, ' ', /*ensure_ascii=*/true,
                              nlohmann::json::error_handler_t::replace)));
  }
  return contradictions;
}

absl::StatusOr<QuantizationMethod> FindQuantizationMethod(
    const JsonFields& config) {
  QUIRE_ASSIGN_OR_RETURN(const QuantizationMethod method, FindMethod(config));
  if (method == QuantizationMethod::kGptq) {
    QUIRE_RETURN_IF_ERROR(CheckGptqLayout(config));
    QUIRE_RETURN_IF_ERROR(CheckPacking(config));
  } else if (method == QuantizationMethod::kAwq) {
    QUIRE_RETURN_IF_ERROR(CheckAwqLayout(config));
    QUIRE_RETURN_IF_ERROR(CheckPacking(config));
  }
  return method;
}

}  // namespace quire
