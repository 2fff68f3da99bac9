#include "quire/model/model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/config/family.h"
#include "model/config/rope_config.h"
#include "model/tokenizer/stop_checker.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_fields.h"
#include "quire/paging/kv_layout.h"

namespace quire {
namespace {

// Larger than any model, small enough that products of two cannot overflow.
constexpr uint64_t kMaxDimension = uint64_t{1} << 24;

absl::Status ReadDimension(const JsonFields& fields, std::string_view field,
                           uint32_t* value, uint64_t most = kMaxDimension) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t n, fields.GetUint(field, 1, most));
  *value = static_cast<uint32_t>(n);
  return absl::OkStatus();
}

absl::Status ReadDimensionOr(const JsonFields& fields, std::string_view field,
                             uint64_t otherwise, uint32_t* value) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t n,
                         fields.GetUintOr(field, otherwise, 1, kMaxDimension));
  *value = static_cast<uint32_t>(n);
  return absl::OkStatus();
}

absl::Status CheckShape(const ModelConfig& config, const std::string& where) {
  if (config.heads % config.kv_heads != 0)
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", config.heads,
                     " attention heads cannot share the keys and values of ",
                     config.kv_heads, " heads evenly"));
  if (config.head_dim % 2 != 0)
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": a head of ", config.head_dim,
                     " elements has no pairs to rotate"));
  return absl::OkStatus();
}

// ---- config.json ------------------------------------------------------------

// Whether `layer` has a window: transformers 5 lists the kinds of layers,
// transformers 4 gives the first with a window.
absl::StatusOr<bool> IsWindowed(const JsonFields& fields, uint32_t layer) {
  if (!fields.Has("layer_types")) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t first,
                           fields.GetUintOr("max_window_layers", 28));
    return layer >= first;
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> types,
                         fields.GetStrings("layer_types"));
  return layer < types.size() && types[layer] == "sliding_attention";
}

// Windows that hide something are refused: without them the tokens would be
// others. Many configurations have a sliding_window that is not used.
absl::Status CheckSlidingWindow(const JsonFields& fields,
                                const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(const bool used,
                         fields.GetBoolOr("use_sliding_window", false));
  if (!used) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const uint64_t window,
                         fields.GetUintOr("sliding_window", 4096));
  if (window >= config.max_positions) return absl::OkStatus();
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    QUIRE_ASSIGN_OR_RETURN(const bool windowed, IsWindowed(fields, layer));
    if (windowed)
      return absl::UnimplementedError(absl::StrCat(
          fields.where(), ": use_sliding_window: the window of ", window,
          " tokens in layer ", layer, " is not supported for this family"));
  }
  return absl::OkStatus();
}

absl::Status ReadBiases(const JsonFields& fields, const FamilyTraits& family,
                        ModelConfig* config) {
  config->qkv_bias = family.has_qkv_bias;
  if (family.reads_attention_bias) {
    QUIRE_ASSIGN_OR_RETURN(config->attention_output_bias,
                           fields.GetBoolOr("attention_bias", false));
    config->qkv_bias |= config->attention_output_bias;
  }
  if (family.reads_mlp_bias) {
    QUIRE_ASSIGN_OR_RETURN(config->ffn_bias,
                           fields.GetBoolOr("mlp_bias", false));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ParseHuggingFace(const Checkpoint& checkpoint) {
  const JsonFields fields(checkpoint.config(),
                          checkpoint.folder() + "/config.json");
  if (checkpoint.config().empty())
    return absl::NotFoundError(absl::StrCat(
        fields.where(), ": there is none, so the model's shape is unknown"));
  ModelConfig config;
  QUIRE_ASSIGN_OR_RETURN(config.family, fields.GetString("model_type"));
  const FamilyTraits* family = FindFamily(checkpoint.format(), config.family);
  if (family == nullptr)
    return absl::UnimplementedError(
        absl::StrCat(fields.where(), ": models of type ", Quoted(config.family),
                     " are not supported; supported: ", SupportedFamilies()));
  QUIRE_ASSIGN_OR_RETURN(const std::string activation,
                         fields.GetStringOr("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish")  // two names of one
    return absl::UnimplementedError(
        absl::StrCat(fields.where(), ": hidden_act ", Quoted(activation),
                     " is not supported for this family; \"silu\" is"));

  QUIRE_RETURN_IF_ERROR(
      ReadDimension(fields, "hidden_size", &config.hidden_size));
  QUIRE_RETURN_IF_ERROR(
      ReadDimension(fields, "intermediate_size", &config.intermediate_size));
  QUIRE_RETURN_IF_ERROR(
      ReadDimension(fields, "num_hidden_layers", &config.layers, kMaxKvLayers));
  QUIRE_RETURN_IF_ERROR(
      ReadDimension(fields, "num_attention_heads", &config.heads));
  QUIRE_RETURN_IF_ERROR(ReadDimensionOr(fields, "num_key_value_heads",
                                        config.heads, &config.kv_heads));
  // Never derived where it is given: the two differ in some models.
  const bool derive_head_dim =
      !fields.Has("head_dim") && family->default_head_dim == 0;
  if (derive_head_dim && config.hidden_size % config.heads != 0)
    return fields.Error("hidden_size",
                        absl::StrCat("is ", config.hidden_size,
                                     ", no multiple of the ", config.heads,
                                     " attention heads, and there is no "
                                     "head_dim"));
  QUIRE_RETURN_IF_ERROR(
      ReadDimensionOr(fields, "head_dim",
                      derive_head_dim ? config.hidden_size / config.heads
                                      : std::max(family->default_head_dim, 1u),
                      &config.head_dim));
  QUIRE_RETURN_IF_ERROR(
      ReadDimension(fields, "vocab_size", &config.vocab_size));
  QUIRE_ASSIGN_OR_RETURN(
      config.max_positions,
      fields.GetUintOr("max_position_embeddings", family->default_max_positions,
                       1, uint64_t{1} << 40));
  QUIRE_ASSIGN_OR_RETURN(const double epsilon,
                         fields.GetPositiveOr("rms_norm_eps", 1e-6));
  config.norm_epsilon = static_cast<float>(epsilon);
  QUIRE_ASSIGN_OR_RETURN(config.tied_embeddings,
                         fields.GetBoolOr("tie_word_embeddings", false));
  config.has_own_head =
      fields.Has("tie_word_embeddings") && !config.tied_embeddings;
  config.head_norms = family->has_head_norms;
  QUIRE_RETURN_IF_ERROR(ReadBiases(fields, *family, &config));
  QUIRE_RETURN_IF_ERROR(ReadRope(fields, &config));
  if (family->reads_sliding_window)
    QUIRE_RETURN_IF_ERROR(CheckSlidingWindow(fields, config));
  QUIRE_RETURN_IF_ERROR(CheckShape(config, fields.where()));
  return config;
}

// ---- GGUF -------------------------------------------------------------------

// Keys: llama.cpp's gguf-py/gguf/constants.py.
absl::StatusOr<ModelConfig> ParseGguf(const Checkpoint& checkpoint) {
  const JsonFields fields(checkpoint.gguf_metadata(),
                          checkpoint.files().front().path);
  QUIRE_ASSIGN_OR_RETURN(const std::string architecture,
                         fields.GetString("general.architecture"));
  const FamilyTraits* family = FindFamily(checkpoint.format(), architecture);
  if (family == nullptr)
    return absl::UnimplementedError(absl::StrCat(
        fields.where(), ": models of architecture ", Quoted(architecture),
        " are not supported; supported: ", SupportedFamilies()));
  const auto key = [&](std::string_view name) {
    return absl::StrCat(architecture, ".", std::string(name));
  };
  ModelConfig config;
  config.family = family->model_type;
  config.qkv_bias = family->has_qkv_bias;
  config.head_norms = family->has_head_norms;
  QUIRE_RETURN_IF_ERROR(
      ReadDimension(fields, key("embedding_length"), &config.hidden_size));
  QUIRE_RETURN_IF_ERROR(ReadDimension(fields, key("feed_forward_length"),
                                      &config.intermediate_size));
  QUIRE_RETURN_IF_ERROR(
      ReadDimension(fields, key("block_count"), &config.layers, kMaxKvLayers));
  QUIRE_RETURN_IF_ERROR(
      ReadDimension(fields, key("attention.head_count"), &config.heads));
  QUIRE_RETURN_IF_ERROR(ReadDimensionOr(fields, key("attention.head_count_kv"),
                                        config.heads, &config.kv_heads));
  QUIRE_RETURN_IF_ERROR(
      ReadDimensionOr(fields, key("attention.key_length"),
                      std::max<uint32_t>(config.hidden_size / config.heads, 1),
                      &config.head_dim));
  QUIRE_ASSIGN_OR_RETURN(
      const uint64_t rotated,
      fields.GetUintOr(key("rope.dimension_count"), config.head_dim));
  if (rotated != config.head_dim)
    return absl::UnimplementedError(absl::StrCat(
        fields.where(), ": rotation of ", rotated, " of ", config.head_dim,
        " elements of each head is not supported for this family"));
  const TensorInfo* embedding = checkpoint.Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": there is no matrix token_embd.weight"));
  if (embedding->shape[0] > kMaxDimension)
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": token_embd.weight has ",
                     embedding->shape[0], " rows, beyond any vocabulary"));
  config.vocab_size = static_cast<uint32_t>(embedding->shape[0]);
  QUIRE_ASSIGN_OR_RETURN(
      config.max_positions,
      fields.GetUintOr(key("context_length"), 2048, 1, uint64_t{1} << 40));
  QUIRE_ASSIGN_OR_RETURN(
      const double epsilon,
      fields.GetPositiveOr(key("attention.layer_norm_rms_epsilon"), 1e-5));
  config.norm_epsilon = static_cast<float>(epsilon);
  config.tied_embeddings = checkpoint.Find("output.weight") == nullptr;

  config.rope.pairing = family->gguf_pairing;
  QUIRE_RETURN_IF_ERROR(ReadGgufRope(fields, architecture, &config));
  QUIRE_RETURN_IF_ERROR(CheckShape(config, fields.where()));
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig config,
                         checkpoint.format() == CheckpointFormat::kGguf
                             ? ParseGguf(checkpoint)
                             : ParseHuggingFace(checkpoint));
  QUIRE_ASSIGN_OR_RETURN(
      config.eos_tokens,
      EosTokenIds(checkpoint.format() == CheckpointFormat::kGguf
                      ? checkpoint.files().front().path
                      : checkpoint.folder(),
                  checkpoint.config(), checkpoint.generation_config(),
                  nlohmann::json::object(), checkpoint.gguf_metadata(),
                  /*tokenizer=*/nullptr));
  return config;
}

}  // namespace quire
