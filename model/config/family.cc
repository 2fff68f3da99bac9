#include "model/config/family.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr TensorNames kHuggingFaceNames = {
    .layer_prefix = "model.layers.",
    .embedding = "model.embed_tokens",
    .output_norm = "model.norm",
    .output = "lm_head",
    .attention_norm = "input_layernorm",
    .query = "self_attn.q_proj",
    .key = "self_attn.k_proj",
    .value = "self_attn.v_proj",
    .attention_output = "self_attn.o_proj",
    .query_norm = "self_attn.q_norm",
    .key_norm = "self_attn.k_norm",
    .ffn_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

// The same modules under other prefixes.
constexpr TensorNames Prefixed(const char* layers, const char* embedding,
                               const char* norm, const char* output) {
  TensorNames names = kHuggingFaceNames;
  names.layer_prefix = layers;
  names.embedding = embedding;
  names.output_norm = norm;
  names.output = output;
  return names;
}

// Hugging Face's names first.
constexpr std::array<TensorNames, 4> kSafetensorsNames = {{
    kHuggingFaceNames,
    // As a wrapper for several modalities has them: OneComp's full_wrapper, and
    // transformers' classes for images and text, of today and of before.
    Prefixed("model.language_model.layers.",
             "model.language_model.embed_tokens", "model.language_model.norm",
             "lm_head"),
    Prefixed("language_model.model.layers.",
             "language_model.model.embed_tokens", "language_model.model.norm",
             "language_model.lm_head"),
    // Saved from the model without a head (LlamaModel).
    Prefixed("layers.", "embed_tokens", "norm", "lm_head"),
}};

// llama.cpp's gguf-py/gguf/constants.py.
constexpr TensorNames kGgufNames = {
    .layer_prefix = "blk.",
    .embedding = "token_embd",
    .output_norm = "output_norm",
    .output = "output",
    .attention_norm = "attn_norm",
    .query = "attn_q",
    .key = "attn_k",
    .value = "attn_v",
    .attention_output = "attn_output",
    .query_norm = "attn_q_norm",
    .key_norm = "attn_k_norm",
    .ffn_norm = "ffn_norm",
    .gate = "ffn_gate",
    .up = "ffn_up",
    .down = "ffn_down",
};

// transformers' models/*/configuration_*.py and modeling_*.py, llama.cpp's
// convert_hf_to_gguf.py.
constexpr std::array<FamilyTraits, 3> kFamilyTraits = {{
    {.model_type = "llama",
     .gguf_architecture = "llama",
     .transformers_class = "LlamaForCausalLM",
     .gguf_pairing = RopePairing::kInterleaved,
     .reads_attention_bias = true,
     .reads_mlp_bias = true},
    {.model_type = "qwen2",
     .gguf_architecture = "qwen2",
     .transformers_class = "Qwen2ForCausalLM",
     .gguf_pairing = RopePairing::kHalf,
     .has_qkv_bias = true,
     .reads_sliding_window = true,
     .default_max_positions = 32768},
    {.model_type = "qwen3",
     .gguf_architecture = "qwen3",
     .transformers_class = "Qwen3ForCausalLM",
     .gguf_pairing = RopePairing::kHalf,
     .reads_attention_bias = true,
     .has_head_norms = true,
     .reads_sliding_window = true,
     .default_head_dim = 128,
     .default_max_positions = 32768},
}};

}  // namespace

std::string TensorNames::Layer(uint32_t layer) const {
  return absl::StrCat(layer_prefix, layer);
}

std::string TensorNames::InLayer(uint32_t layer, const char* module) const {
  return absl::StrCat(Layer(layer), ".", module);
}

const TensorNames& NamesFor(CheckpointFormat format) {
  return format == CheckpointFormat::kGguf ? kGgufNames : kHuggingFaceNames;
}

const TensorNames& NamesOf(const Checkpoint& checkpoint) {
  if (checkpoint.format() == CheckpointFormat::kSafetensors) {
    for (const TensorNames& names : kSafetensorsNames)
      if (checkpoint.Find(absl::StrCat(names.embedding, ".weight")) != nullptr)
        return names;
  }
  return NamesFor(checkpoint.format());
}

const TensorNames& NamesOf(const std::vector<LoraModule>& modules) {
  for (const TensorNames& names : kSafetensorsNames) {
    if (std::any_of(modules.begin(), modules.end(),
                    [&names](const LoraModule& module) {
                      return module.name.starts_with(names.layer_prefix) ||
                             module.name == names.embedding ||
                             module.name == names.output_norm;
                    }))
      return names;
  }
  return kHuggingFaceNames;
}

const FamilyTraits* FindFamily(CheckpointFormat format, std::string_view name) {
  for (const FamilyTraits& family : kFamilyTraits) {
    if (name == (format == CheckpointFormat::kGguf ? family.gguf_architecture
                                                   : family.model_type))
      return &family;
  }
  return nullptr;
}

std::string SupportedFamilies() {
  std::string names;
  for (const FamilyTraits& family : kFamilyTraits)
    absl::StrAppend(&names, names.empty() ? "" : ", ", family.model_type);
  return names;
}

}  // namespace quire
