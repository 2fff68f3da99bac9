// What a model keeps of each token, told from the metadata of a GGUF file.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/config/kv_family.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_fields.h"
#include "quire/model/kv_config.h"

namespace quire {
namespace {

// Keys: llama.cpp's gguf-py/gguf/constants.py; what is made of them:
// llama_model::load_hparams.
class GgufKvReader {
 public:
  GgufKvReader(const JsonFields& fields, std::string architecture,
               const KvFamily& family)
      : fields_(fields),
        architecture_(std::move(architecture)),
        family_(family) {}

  absl::StatusOr<KvConfig> Read() const {
    KvConfig config;
    config.model_type = architecture_;
    QUIRE_ASSIGN_OR_RETURN(
        const uint64_t layers,
        fields_.GetUint(Key("block_count"), 1, kMaxKvLayers));
    QUIRE_ASSIGN_OR_RETURN(
        config.max_positions,
        fields_.GetUintOr(Key("context_length"), family_.max_positions, 1,
                          kMaxKvPositions));
    QUIRE_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> heads,
        ReadPerLayer(Key("attention.head_count"), layers, std::nullopt));
    config.query_heads =
        static_cast<uint32_t>(*std::max_element(heads.begin(), heads.end()));
    QUIRE_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> kv_heads,
        ReadPerLayer(Key("attention.head_count_kv"), layers, heads));
    QUIRE_ASSIGN_OR_RETURN(KvLayerKind kind, ReadKind(heads.front()));
    QUIRE_ASSIGN_OR_RETURN(const std::vector<uint64_t> windows,
                           ReadWindows(layers));
    for (size_t layer = 0; layer < layers; ++layer) {
      if (!family_.latent)
        kind.kv_heads = static_cast<uint32_t>(kv_heads[layer]);
      kind.window = windows[layer];
      config.shape.layers.push_back(kind);
    }
    return config;
  }

 private:
  std::string Key(const char* name) const {
    return absl::StrCat(architecture_, ".", name);
  }

  // One number for all layers, or an array with one for each.
  absl::StatusOr<std::vector<uint64_t>> ReadPerLayer(
      const std::string& key, uint64_t layers,
      std::optional<std::vector<uint64_t>> otherwise) const {
    const nlohmann::json* const value = fields_.Find(key);
    if (value == nullptr && otherwise) return *std::move(otherwise);
    if (value == nullptr || !value->is_array()) {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t number,
                             fields_.GetUint(key, 1, kMaxKvDimension));
      return std::vector<uint64_t>(layers, number);
    }
    QUIRE_ASSIGN_OR_RETURN(std::vector<uint64_t> numbers,
                           fields_.GetUints(key));
    if (numbers.size() != layers)
      return fields_.Error(
          key, absl::StrCat("has ", numbers.size(), " entries for ", layers,
                            " layers"));
    for (const uint64_t number : numbers)
      if (number == 0 || number > kMaxKvDimension)
        return fields_.Error(
            key, absl::StrCat("has an entry of ", number, ", not of 1 to ",
                              kMaxKvDimension));
    return numbers;
  }

  // Of a layer that sees all tokens.
  absl::StatusOr<KvLayerKind> ReadKind(uint64_t heads) const {
    if (family_.latent) {
      QUIRE_ASSIGN_OR_RETURN(
          const uint64_t rank,
          fields_.GetUint(Key("attention.kv_lora_rank"), 1, kMaxKvDimension));
      QUIRE_ASSIGN_OR_RETURN(
          const uint64_t rope,
          fields_.GetUint(Key("rope.dimension_count"), 1, kMaxKvDimension));
      return LatentKvLayer(static_cast<uint32_t>(rank),
                           static_cast<uint32_t>(rope), KvDType::kF16);
    }
    const std::string key = Key("attention.key_length");
    const std::string value = Key("attention.value_length");
    uint64_t head_dim = 1;  // where both are there
    if (!fields_.Has(key) || !fields_.Has(value)) {
      QUIRE_ASSIGN_OR_RETURN(
          const uint64_t hidden,
          fields_.GetUint(Key("embedding_length"), 1, kMaxKvDimension));
      head_dim = std::max<uint64_t>(hidden / heads, 1);
    }
    QUIRE_ASSIGN_OR_RETURN(
        const uint64_t key_dim,
        fields_.GetUintOr(key, head_dim, 1, kMaxKvDimension));
    QUIRE_ASSIGN_OR_RETURN(
        const uint64_t value_dim,
        fields_.GetUintOr(value, head_dim, 1, kMaxKvDimension));
    return KvLayerKind{.key_dim = static_cast<uint32_t>(key_dim),
                       .value_dim = static_cast<uint32_t>(value_dim)};
  }

  // 0: none. Which layers have one is the architecture's, not the file's, but
  // where the file lists them.
  absl::StatusOr<std::vector<uint64_t>> ReadWindows(uint64_t layers) const {
    std::vector<uint64_t> windows(layers);
    const bool by_pattern = family_.windowed == WindowedLayers::kAllButEveryNth;
    if (!by_pattern && family_.windowed != WindowedLayers::kAll) return windows;
    QUIRE_ASSIGN_OR_RETURN(
        const uint64_t window,
        fields_.GetUintOr(Key("attention.sliding_window"),
                          by_pattern ? family_.window : 0, 0, kMaxKvPositions));
    const std::string key = Key("attention.sliding_window_pattern");
    const nlohmann::json* const listed = fields_.Find(key);
    if (listed != nullptr && listed->is_array() && listed->size() != layers)
      return fields_.Error(
          key, absl::StrCat("has ", listed->size(), " entries for ", layers,
                            " layers"));
    uint64_t pattern = family_.pattern;
    if (listed != nullptr && !listed->is_array()) {
      QUIRE_ASSIGN_OR_RETURN(pattern, fields_.GetUint(key, 1, kMaxKvLayers));
    }
    for (size_t layer = 0; layer < layers; ++layer) {
      const bool windowed = listed != nullptr && listed->is_array()
                                ? (*listed)[layer] == true
                                : pattern == 0 || (layer + 1) % pattern != 0;
      if (windowed) windows[layer] = window;
    }
    return windows;
  }

  const JsonFields& fields_;
  const std::string architecture_;
  const KvFamily& family_;
};

}  // namespace

absl::StatusOr<KvConfig> ParseGgufKvConfig(const nlohmann::json& metadata,
                                           const std::string& where) {
  const JsonFields fields(metadata, where);
  QUIRE_ASSIGN_OR_RETURN(std::string architecture,
                         fields.GetString("general.architecture"));
  const KvFamily* const family = FindGgufKvFamily(architecture);
  if (family == nullptr)
    return absl::UnimplementedError(absl::StrCat(
        where, ": what models of architecture ", Quoted(architecture),
        " keep of a token is not known; known: ", KnownGgufKvFamilies()));
  return GgufKvReader(fields, std::move(architecture), *family).Read();
}

}  // namespace quire
