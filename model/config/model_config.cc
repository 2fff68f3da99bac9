#include "quire/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/config/family.h"
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

absl::StatusOr<double> ReadPositive(const JsonFields& fields,
                                    std::string_view field, double otherwise) {
  QUIRE_ASSIGN_OR_RETURN(const double value,
                         fields.GetDoubleOr(field, otherwise));
  if (!(value > 0))
    return fields.Error(field, absl::StrCat("is ", value, ", not above 0"));
  return value;
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

absl::Status CheckRotatedPart(const JsonFields& fields) {
  QUIRE_ASSIGN_OR_RETURN(const double rotated_part,
                         fields.GetDoubleOr("partial_rotary_factor", 1));
  if (rotated_part == 1) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(fields.where(), ": rotation of ", rotated_part,
                   " of each head is not supported for this family"));
}

// transformers 4 has rope_theta and rope_scaling (its kind under "type" or
// "rope_type"); transformers 5 has both in rope_parameters, and takes
// rope_scaling in its place where that is there and not empty.
absl::StatusOr<RopeConfig> ParseRope(const JsonFields& fields) {
  RopeConfig rope;
  QUIRE_ASSIGN_OR_RETURN(rope.theta,
                         ReadPositive(fields, "rope_theta", rope.theta));
  const nlohmann::json* const old_field = fields.Find("rope_scaling");
  const char* const name = old_field != nullptr && !old_field->empty()
                               ? "rope_scaling"
                               : "rope_parameters";
  if (!fields.Has(name)) {
    QUIRE_RETURN_IF_ERROR(CheckRotatedPart(fields));
    return rope;
  }
  QUIRE_ASSIGN_OR_RETURN(const JsonFields scaling, fields.GetObject(name));
  QUIRE_ASSIGN_OR_RETURN(rope.theta,
                         ReadPositive(scaling, "rope_theta", rope.theta));
  QUIRE_RETURN_IF_ERROR(CheckRotatedPart(
      scaling.Has("partial_rotary_factor") ? scaling : fields));
  const char* const kind_field =
      scaling.Has("rope_type") ? "rope_type" : "type";
  QUIRE_ASSIGN_OR_RETURN(const std::string kind,
                         scaling.GetStringOr(kind_field, "default"));
  if (kind == "default") return rope;
  if (kind != "linear" && kind != "llama3")
    return absl::UnimplementedError(absl::StrCat(
        scaling.where(), ": rope type ", Quoted(kind),
        " is not supported; \"default\", \"linear\" and \"llama3\" are"));
  rope.scaling = kind == "linear" ? RopeScaling::kLinear : RopeScaling::kLlama3;
  // Without the factor the angles would silently be others than trained with.
  QUIRE_RETURN_IF_ERROR(scaling.GetDouble("factor").status());
  QUIRE_ASSIGN_OR_RETURN(rope.factor, ReadPositive(scaling, "factor", 1));
  if (rope.scaling == RopeScaling::kLinear) return rope;

  for (const char* field : {"low_freq_factor", "high_freq_factor",
                            "original_max_position_embeddings"})
    QUIRE_RETURN_IF_ERROR(scaling.GetDouble(field).status());
  QUIRE_ASSIGN_OR_RETURN(rope.low_frequency_factor,
                         ReadPositive(scaling, "low_freq_factor", 1));
  QUIRE_ASSIGN_OR_RETURN(rope.high_frequency_factor,
                         ReadPositive(scaling, "high_freq_factor", 1));
  QUIRE_ASSIGN_OR_RETURN(
      rope.original_max_positions,
      ReadPositive(scaling, "original_max_position_embeddings", 1));
  if (!(rope.high_frequency_factor > rope.low_frequency_factor))
    return scaling.Error("high_freq_factor",
                         "must be larger than low_freq_factor");
  return rope;
}

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
                         ReadPositive(fields, "rms_norm_eps", 1e-6));
  config.norm_epsilon = static_cast<float>(epsilon);
  QUIRE_ASSIGN_OR_RETURN(config.tied_embeddings,
                         fields.GetBoolOr("tie_word_embeddings", false));
  config.has_own_head =
      fields.Has("tie_word_embeddings") && !config.tied_embeddings;
  config.head_norms = family->has_head_norms;
  QUIRE_RETURN_IF_ERROR(ReadBiases(fields, *family, &config));
  if (family->reads_sliding_window)
    QUIRE_RETURN_IF_ERROR(CheckSlidingWindow(fields, config));
  QUIRE_ASSIGN_OR_RETURN(config.rope, ParseRope(fields));
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
      ReadPositive(fields, key("attention.layer_norm_rms_epsilon"), 1e-5));
  config.norm_epsilon = static_cast<float>(epsilon);
  config.tied_embeddings = checkpoint.Find("output.weight") == nullptr;

  config.rope.pairing = family->gguf_pairing;
  QUIRE_ASSIGN_OR_RETURN(
      config.rope.theta,
      ReadPositive(fields, key("rope.freq_base"), config.rope.theta));
  QUIRE_ASSIGN_OR_RETURN(const std::string scaling,
                         fields.GetStringOr(key("rope.scaling.type"), "none"));
  if (scaling == "linear") {
    config.rope.scaling = RopeScaling::kLinear;
    QUIRE_ASSIGN_OR_RETURN(config.rope.factor,
                           ReadPositive(fields, key("rope.scaling.factor"), 1));
  } else if (scaling != "none") {
    return absl::UnimplementedError(
        absl::StrCat(fields.where(), ": rope scaling ", Quoted(scaling),
                     " is not supported; \"none\" and \"linear\" are"));
  }
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

absl::Status DivideFrequencies(std::span<const float> factors,
                               std::vector<float>* frequencies) {
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(factors[i] > 0) || std::isinf(factors[i]))
      return absl::InvalidArgumentError(absl::StrCat(
          "factor ", i, " is ", factors[i], ", not above 0 and finite"));
    (*frequencies)[i] /= factors[i];
  }
  return absl::OkStatus();
}

std::vector<float> InverseFrequencies(const RopeConfig& rope,
                                      uint32_t head_dim) {
  std::vector<float> frequencies(head_dim / 2);
  for (uint32_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / head_dim);
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3: {
        // How often the pair turns within the context trained on, on the scale
        // from low_frequency_factor (0: divide) to high_frequency_factor
        // (1: keep).
        const double turns =
            rope.original_max_positions * frequency / (2 * std::numbers::pi);
        const double keep = std::clamp(
            (turns - rope.low_frequency_factor) /
                (rope.high_frequency_factor - rope.low_frequency_factor),
            0.0, 1.0);
        frequency = (1 - keep) * frequency / rope.factor + keep * frequency;
        break;
      }
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace quire
