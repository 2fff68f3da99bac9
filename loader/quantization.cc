#include "quire/loader/quantization.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "loader/quantization_formats.h"
#include "loader/scaled_module_readers.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_fields.h"

namespace quire {

const char* QuantizationMethodName(QuantizationMethod method) {
  switch (method) {
    case QuantizationMethod::kNone:
      return "none";
    case QuantizationMethod::kGptq:
      return "gptq";
    case QuantizationMethod::kAwq:
      return "awq";
    case QuantizationMethod::kFp8:
      return "fp8";
    case QuantizationMethod::kCompressedTensors:
      return "compressed-tensors";
    case QuantizationMethod::kMxfp4:
      return "mxfp4";
  }
  return "?";
}

absl::StatusOr<QuantizedModules> FindQuantizedModules(
    const Checkpoint& checkpoint) {
  QuantizedModules result;
  const bool packed = std::any_of(
      checkpoint.tensors().begin(), checkpoint.tensors().end(),
      [](const TensorInfo& t) { return t.name.ends_with(".qweight"); });
  if (!packed && checkpoint.quantization_config().empty()) return result;
  const JsonFields config(checkpoint.quantization_config(),
                          QuantizationConfigName(checkpoint));
  QUIRE_ASSIGN_OR_RETURN(result.method, FindQuantizationMethod(config));
  const std::string otherwise = ContradictionsOfConfigJson(checkpoint);
  if (!otherwise.empty())
    result.notes.push_back(absl::StrCat(
        Printable(checkpoint.quantization_config_path()),
        " counts; the quantization_config of config.json says otherwise: ",
        otherwise));
  switch (result.method) {
    case QuantizationMethod::kFp8:
      QUIRE_RETURN_IF_ERROR(FindFp8Modules(checkpoint, config, &result));
      break;
    case QuantizationMethod::kCompressedTensors:
      QUIRE_RETURN_IF_ERROR(FindCompressedTensors(checkpoint, config, &result));
      break;
    case QuantizationMethod::kMxfp4:
      QUIRE_RETURN_IF_ERROR(FindMxfp4Modules(checkpoint, &result));
      break;
    default: {
      QUIRE_ASSIGN_OR_RETURN(result.gptq_config, GptqConfig::Parse(checkpoint));
      QUIRE_ASSIGN_OR_RETURN(result.gptq,
                             FindGptqModules(checkpoint, *result.gptq_config));
    }
  }
  return result;
}

}  // namespace quire
