#include "model/quantizer/checkpoint_export.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "model/config/family.h"
#include "model/quantizer/quantization_grid.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_fields.h"
#include "quire/loader/output_file.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::array<const char*, 4> kTokenizerFiles = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja"};
constexpr std::array<const char*, 4> kModelFiles = {
    "config.json", "quantize_config.json", "generation_config.json",
    "model.safetensors"};

absl::Status WriteJson(const std::string& path, const Json& value) {
  return WriteFile(path, value.dump(2) + "\n");
}

// Copies those of `names` that the source's folder has.
absl::Status CopyFiles(const Checkpoint& source,
                       std::span<const char* const> names,
                       const std::string& folder) {
  for (const char* name : names) {
    const fs::path from = fs::path(source.folder()) / name;
    std::error_code error;
    if (!fs::exists(from, error)) continue;
    fs::copy_file(from, fs::path(folder) / name, error);
    if (error)
      return absl::UnknownError(absl::StrCat(from.string(), ": cannot copy to ",
                                             folder, ": ", error.message()));
  }
  return absl::OkStatus();
}

Json RopeScalingJson(const RopeConfig& rope) {
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return nullptr;
    case RopeScaling::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeScaling::kLlama3:
      return {
          {"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_frequency_factor},
          {"high_freq_factor", rope.high_frequency_factor},
          {"original_max_position_embeddings", rope.original_max_positions}};
    case RopeScaling::kYarn:
      return {
          {"rope_type", "yarn"},
          {"factor", rope.factor},
          {"beta_fast", rope.beta_fast},
          {"beta_slow", rope.beta_slow},
          {"truncate", rope.truncate},
          {"attention_factor", rope.magnitude},
          {"original_max_position_embeddings", rope.original_max_positions}};
    case RopeScaling::kDynamic:
      return {{"rope_type", "dynamic"}, {"factor", rope.factor}};
  }
  return nullptr;
}

// config.json of a model that came without one.
Json ConfigFromGguf(const Checkpoint& source, const ModelConfig& config,
                    bool attention_bias) {
  const FamilyTraits* const family =
      FindFamily(CheckpointFormat::kSafetensors, config.family);
  Json result = {{"architectures", {family->transformers_class}},
                 {"model_type", config.family},
                 {"hidden_act", "silu"},
                 {"hidden_size", config.hidden_size},
                 {"intermediate_size", config.intermediate_size},
                 {"num_hidden_layers", config.layers},
                 {"num_attention_heads", config.heads},
                 {"num_key_value_heads", config.kv_heads},
                 {"head_dim", config.head_dim},
                 {"vocab_size", config.vocab_size},
                 {"max_position_embeddings", config.max_positions},
                 {"rms_norm_eps", config.norm_epsilon},
                 {"rope_theta", config.rope.theta},
                 {"rope_scaling", RopeScalingJson(config.rope)},
                 {"attention_bias", attention_bias},
                 {"mlp_bias", false},
                 {"tie_word_embeddings", config.tied_embeddings},
                 {"torch_dtype", "float16"},
                 {"eos_token_id", config.eos_tokens}};
  if (config.eos_tokens.size() == 1)
    result["eos_token_id"] = config.eos_tokens[0];
  const JsonFields metadata(source.gguf_metadata(), "");
  if (const Json* bos = metadata.Find("tokenizer.ggml.bos_token_id"))
    result["bos_token_id"] = *bos;
  return result;
}

// The text of a special token that the metadata gives by id.
Json SpecialToken(const JsonFields& metadata, const char* id_key,
                  const Tokenizer& tokenizer) {
  const auto id = metadata.GetUint(id_key, 0, INT32_MAX);
  if (!id.ok()) return nullptr;
  const TokenId token = static_cast<TokenId>(*id);
  const auto text = tokenizer.Decode(std::span(&token, 1));
  return text.ok() ? Json(*text) : Json(nullptr);
}

}  // namespace

DType ExportedType(DType source) {
  return BlockElements(source) > 1 ? DType::kF16 : source;
}

absl::Status ExportMatrix(const DenseMatrix& matrix, const std::string& name,
                          SafetensorsWriter* writer) {
  if (ExportedType(matrix.dtype) == matrix.dtype) {
    const auto size =
        BytesOf(matrix.dtype, matrix.out_features * matrix.in_features);
    return writer->Append(name, {static_cast<const std::byte*>(matrix.data),
                                 size.value_or(Bytes(0)).value()});
  }
  std::vector<float> row(matrix.in_features);
  std::vector<uint16_t> halves(matrix.in_features);
  for (size_t i = 0; i < matrix.out_features; ++i) {
    DequantizeRow(matrix, i, row.data());
    for (size_t k = 0; k < row.size(); ++k)
      halves[k] = HalfBits(RoundToHalf(row[k]));
    QUIRE_RETURN_IF_ERROR(
        writer->Append(name, std::as_bytes(std::span(halves))));
  }
  return absl::OkStatus();
}

absl::Status ExportVector(const ParameterVector& vector, size_t size,
                          const std::string& name, SafetensorsWriter* writer) {
  return ExportMatrix({.data = vector.data,
                       .dtype = vector.dtype,
                       .out_features = 1,
                       .in_features = size},
                      name, writer);
}

bool IsExportedFile(std::string_view name) {
  // While they are written, files have a name of theirs with an ending.
  constexpr std::string_view kUnfinished = ".partial";
  const bool unfinished = name.ends_with(kUnfinished);
  const auto matches = [&](std::string_view file) {
    return name == file || (unfinished && name.starts_with(file) &&
                            name.substr(file.size()).starts_with('.'));
  };
  return std::any_of(kModelFiles.begin(), kModelFiles.end(), matches) ||
         std::any_of(kTokenizerFiles.begin(), kTokenizerFiles.end(), matches);
}

absl::Status WriteConfig(const Checkpoint& source, const ModelConfig& config,
                         bool attention_bias, const Json& quantization,
                         const std::string& folder) {
  Json result = source.format() == CheckpointFormat::kGguf
                    ? ConfigFromGguf(source, config, attention_bias)
                    : source.config();
  result["quantization_config"] = quantization;
  if (!source.generation_config().empty())
    QUIRE_RETURN_IF_ERROR(WriteJson(folder + "/generation_config.json",
                                    source.generation_config()));
  QUIRE_RETURN_IF_ERROR(
      WriteJson(folder + "/quantize_config.json", quantization));
  return WriteJson(folder + "/config.json", result);
}

absl::Status WriteTokenizer(const Checkpoint& source,
                            const Tokenizer* tokenizer,
                            const std::string& folder) {
  if (source.format() == CheckpointFormat::kSafetensors) {
    return CopyFiles(source, kTokenizerFiles, folder);
  }
  if (tokenizer == nullptr) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(
      WriteJson(folder + "/tokenizer.json", tokenizer->ToTokenizerJson()));
  const JsonFields metadata(source.gguf_metadata(), "");
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  const std::array<std::pair<const char*, const char*>, 4> kSpecial = {
      {{"bos_token", "tokenizer.ggml.bos_token_id"},
       {"eos_token", "tokenizer.ggml.eos_token_id"},
       {"unk_token", "tokenizer.ggml.unknown_token_id"},
       {"pad_token", "tokenizer.ggml.padding_token_id"}}};
  for (const auto& [field, key] : kSpecial) {
    const Json text = SpecialToken(metadata, key, *tokenizer);
    if (!text.is_null()) config[field] = text;
  }
  if (const Json* chat_template = metadata.Find("tokenizer.chat_template"))
    config["chat_template"] = *chat_template;
  return WriteJson(folder + "/tokenizer_config.json", config);
}

}  // namespace quire
