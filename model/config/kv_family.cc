#include "model/config/kv_family.h"

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

// Mistral's, and Mixtral's, GGUF files are of llama.cpp's "llama", DeepSeek
// V3's and Kimi K2's of its "deepseek2".
constexpr KvFamily kFamilies[] = {
    {.model_type = "llama",
     .gguf_architecture = "llama",
     .max_positions = 2048},
    {.model_type = "qwen2",
     .gguf_architecture = "qwen2",
     .max_positions = 32768,
     .windowed = WindowedLayers::kLaterOnes,
     .window = 4096},
    {.model_type = "qwen2_moe",
     .gguf_architecture = "qwen2moe",
     .max_positions = 32768,
     .windowed = WindowedLayers::kLaterOnes,
     .window = 4096},
    {.model_type = "qwen3",
     .gguf_architecture = "qwen3",
     .max_positions = 32768,
     .head_dim = 128,
     .windowed = WindowedLayers::kLaterOnes,
     .window = 4096},
    {.model_type = "qwen3_moe",
     .gguf_architecture = "qwen3moe",
     .max_positions = 32768,
     .kv_heads = 4,
     .windowed = WindowedLayers::kLaterOnes,
     .window = 4096},
    {.model_type = "mistral",
     .gguf_architecture = nullptr,
     .max_positions = 131072,
     .kv_heads = 8,
     .windowed = WindowedLayers::kAll,
     .window = 4096},
    {.model_type = "mixtral",
     .gguf_architecture = nullptr,
     .max_positions = 131072,
     .kv_heads = 8,
     .windowed = WindowedLayers::kAll},
    {.model_type = "gemma",
     .gguf_architecture = "gemma",
     .max_positions = 8192,
     .layers = 28,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 256},
    {.model_type = "gemma2",
     .gguf_architecture = "gemma2",
     .max_positions = 8192,
     .layers = 26,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .windowed = WindowedLayers::kAllButEveryNth,
     .window = 4096,
     .pattern = 2},
    {.model_type = "gemma3_text",
     .gguf_architecture = "gemma3",
     .max_positions = 131072,
     .layers = 26,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .windowed = WindowedLayers::kAllButEveryNth,
     .window = 4096,
     .pattern = 6},
    {.model_type = "gpt_oss",
     .gguf_architecture = "gpt-oss",
     .max_positions = 131072,
     .layers = 36,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .windowed = WindowedLayers::kAllButEveryNth,
     .window = 128,
     .pattern = 2},
    {.model_type = "phi", .gguf_architecture = "phi2", .max_positions = 2048},
    {.model_type = "phi3",
     .gguf_architecture = "phi3",
     .max_positions = 4096,
     .windowed = WindowedLayers::kAll},
    {.model_type = "cohere2",
     .gguf_architecture = "cohere2",
     .max_positions = 8192,
     .windowed = WindowedLayers::kAllButEveryNth,
     .window = 4096,
     .pattern = 4},
    {.model_type = "starcoder2",
     .gguf_architecture = "starcoder2",
     .max_positions = 4096,
     .kv_heads = 2,
     .windowed = WindowedLayers::kAll},
    {.model_type = "deepseek_v2",
     .gguf_architecture = "deepseek2",
     .max_positions = 2048,
     .latent = true,
     .latent_rank = 512,
     .latent_rope = 64},
    {.model_type = "deepseek_v3",
     .gguf_architecture = nullptr,
     .max_positions = 4096,
     .latent = true,
     .latent_rank = 512,
     .latent_rope = 64},
    {.model_type = "kimi_k2",
     .gguf_architecture = nullptr,
     .max_positions = 4096,
     .latent = true,
     .latent_rank = 512,
     .latent_rope = 64},
    {.model_type = "minicpm3",
     .gguf_architecture = "minicpm3",
     .max_positions = 32768,
     .latent = true,
     .latent_rank = 256,
     .latent_rope = 32},
};

}  // namespace

const KvFamily* FindKvFamily(std::string_view model_type) {
  for (const KvFamily& family : kFamilies)
    if (model_type == family.model_type) return &family;
  return nullptr;
}

const KvFamily* FindGgufKvFamily(std::string_view architecture) {
  for (const KvFamily& family : kFamilies)
    if (family.gguf_architecture != nullptr &&
        architecture == family.gguf_architecture)
      return &family;
  return nullptr;
}

std::string KnownKvFamilies() {
  std::string names;
  for (const KvFamily& family : kFamilies)
    absl::StrAppend(&names, names.empty() ? "" : ", ", family.model_type);
  return names;
}

std::string KnownGgufKvFamilies() {
  std::string names;
  for (const KvFamily& family : kFamilies)
    if (family.gguf_architecture != nullptr)
      absl::StrAppend(&names, names.empty() ? "" : ", ",
                      family.gguf_architecture);
  return names;
}

}  // namespace quire
