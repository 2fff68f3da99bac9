#include "quire/model/published_models.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "quire/alloc/status_macros.h"
#include "quire/loader/json_text.h"

namespace quire {
namespace {

// gpt-oss is published with MXFP4 experts, the others are in bf16.
constexpr PublishedModel kModels[] = {
    {"qwen3-0.6b",
     R"({"model_type": "qwen3", "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
         "max_position_embeddings": 40960, "sliding_window": null})",
     Bytes(1'192'099'840), 0.596e9},
    {"qwen3-8b",
     R"({"model_type": "qwen3", "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "max_position_embeddings": 40960, "sliding_window": null})",
     Bytes(16'381'470'720), 8.19e9},
    {"llama2-7b",
     R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32,
         "max_position_embeddings": 4096})",
     Bytes(13'476'831'232), 6.74e9},
    // 3.1, as 3 has 8192 positions.
    {"llama3-8b",
     R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8,
         "max_position_embeddings": 131072})",
     Bytes(16'060'522'496), 8.03e9},
    // 0.2 and later, as 0.1 has a window.
    {"mistral-7b",
     R"({"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8,
         "max_position_embeddings": 32768, "sliding_window": null})",
     Bytes(14'496'047'104), 7.25e9},
    {"gemma2-9b",
     R"({"model_type": "gemma2", "num_hidden_layers": 42,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
         "max_position_embeddings": 8192, "sliding_window": 4096})",
     Bytes(18'483'411'968), 9.24e9},
    {"gemma3-12b",
     R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
         "num_hidden_layers": 48, "num_attention_heads": 16,
         "num_key_value_heads": 8, "sliding_window": 1024}})",
     Bytes(24'374'650'080), 11.8e9},
    {"gpt-oss-20b",
     R"({"model_type": "gpt_oss", "num_hidden_layers": 24,
         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
         "max_position_embeddings": 131072, "sliding_window": 128})",
     Bytes(13'761'264'768), 3.6e9},
    // Multi-head latent attention: 512 elements that keys and values come from,
    // and 64 of the position.
    {"deepseek-v2-lite",
     R"({"model_type": "deepseek_v2", "num_hidden_layers": 27,
         "num_attention_heads": 16, "num_key_value_heads": 16,
         "kv_lora_rank": 512, "qk_rope_head_dim": 64,
         "max_position_embeddings": 163840})",
     Bytes(31'412'968'448), 2.4e9},
};

}  // namespace

absl::StatusOr<KvConfig> PublishedModel::ParseKv() const {
  QUIRE_ASSIGN_OR_RETURN(const nlohmann::json json,
                         ParseJsonText(config, name));
  return ParseKvConfig(json, name);
}

std::span<const PublishedModel> PublishedModels() { return kModels; }

const PublishedModel* FindPublishedModel(std::string_view name) {
  const auto found = std::find_if(
      std::begin(kModels), std::end(kModels),
      [&](const PublishedModel& model) { return model.name == name; });
  return found == std::end(kModels) ? nullptr : &*found;
}

}  // namespace quire
