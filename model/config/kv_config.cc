#include "quire/model/kv_config.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "model/config/kv_family.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_fields.h"

namespace quire {
namespace {

// `otherwise` nullopt: the field has to be there.
absl::StatusOr<uint64_t> ReadSize(const JsonFields& fields,
                                  std::string_view field,
                                  std::optional<uint64_t> otherwise,
                                  uint64_t most = kMaxKvDimension) {
  return otherwise ? fields.GetUintOr(field, *otherwise, 1, most)
                   : fields.GetUint(field, 1, most);
}

// A null, where that is not the same as a field that is left out.
bool IsNull(const JsonFields& fields, const char* field) {
  const auto found = fields.object().find(field);
  return found != fields.object().end() && found->is_null();
}

// 0: none. A null says that there is none, a field that is left out leaves it
// to the family.
absl::StatusOr<uint64_t> ReadWindow(const JsonFields& fields,
                                    const KvFamily& family) {
  constexpr char kField[] = "sliding_window";
  if (IsNull(fields, kField)) return 0;
  if (!fields.Has(kField)) return family.window;
  return fields.GetUint(kField, 1, kMaxKvPositions);
}

absl::StatusOr<std::vector<bool>> ReadLayerTypes(const JsonFields& fields,
                                                 uint32_t layers) {
  constexpr char kField[] = "layer_types";
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> types,
                         fields.GetStrings(kField));
  if (types.size() != layers)
    return fields.Error(
        kField,
        absl::StrCat("has ", types.size(), " entries for ", layers, " layers"));
  std::vector<bool> windowed;
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention")
      return absl::UnimplementedError(absl::StrCat(
          fields.where(), ": layer_types: what layers of type ", Quoted(type),
          " keep is not known; those of \"full_attention\" and "
          "\"sliding_attention\" is"));
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

// Which layers have the window, if there is one.
absl::StatusOr<std::vector<bool>> FindWindowed(const JsonFields& fields,
                                               const KvFamily& family,
                                               uint32_t layers) {
  std::vector<bool> windowed(layers);
  uint64_t pattern = family.pattern;
  switch (family.windowed) {
    case WindowedLayers::kNone:
      return windowed;
    case WindowedLayers::kLaterOnes:
    case WindowedLayers::kEarlierEven:
    case WindowedLayers::kAllWhereUsed: {
      QUIRE_ASSIGN_OR_RETURN(const bool used,
                             fields.GetBoolOr("use_sliding_window", false));
      if (!used) return windowed;
      break;
    }
    case WindowedLayers::kAllButEveryNth:
      // Releases of transformers that list the types keep the old name so.
      for (const char* field :
           {"_sliding_window_pattern", "sliding_window_pattern"}) {
        QUIRE_ASSIGN_OR_RETURN(
            pattern, fields.GetUintOr(field, pattern, 1, kMaxKvLayers));
      }
      break;
    case WindowedLayers::kAll:
      break;
  }
  if (fields.Has("layer_types")) return ReadLayerTypes(fields, layers);
  QUIRE_ASSIGN_OR_RETURN(
      const uint64_t border,
      fields.GetUintOr("max_window_layers", family.max_window_layers));
  for (uint32_t layer = 0; layer < layers; ++layer) {
    switch (family.windowed) {
      case WindowedLayers::kLaterOnes:
        windowed[layer] = layer >= border;
        break;
      case WindowedLayers::kEarlierEven:
        windowed[layer] = layer < border && layer % 2 == 0;
        break;
      case WindowedLayers::kAllButEveryNth:
        windowed[layer] = (layer + 1) % pattern != 0;
        break;
      case WindowedLayers::kNone:
      case WindowedLayers::kAll:
      case WindowedLayers::kAllWhereUsed:
        windowed[layer] = family.windowed != WindowedLayers::kNone;
        break;
    }
  }
  return windowed;
}

// What a layer keeps that sees all tokens. `has_sizes`: what is left out of how
// large the model is, is the family's.
absl::StatusOr<KvLayerKind> ReadKind(const JsonFields& fields,
                                     const KvFamily& family, bool has_sizes,
                                     uint64_t heads) {
  if (family.latent) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t rank, ReadSize(fields, "kv_lora_rank",
                                                         family.latent_rank));
    QUIRE_ASSIGN_OR_RETURN(
        const uint64_t rope,
        ReadSize(fields, "qk_rope_head_dim", family.latent_rope));
    return LatentKvLayer(static_cast<uint32_t>(rank),
                         static_cast<uint32_t>(rope), KvDType::kF16);
  }
  QUIRE_ASSIGN_OR_RETURN(
      const uint64_t kv_heads,
      ReadSize(fields, "num_key_value_heads",
               family.kv_heads == 0 || IsNull(fields, "num_key_value_heads")
                   ? heads
                   : family.kv_heads));
  if (heads % kv_heads != 0)
    return fields.Error("num_key_value_heads",
                        absl::StrCat("is ", kv_heads, ", which the ", heads,
                                     " attention heads cannot share evenly"));
  uint64_t head_dim = family.head_dim;
  if (!fields.Has("head_dim") && head_dim == 0) {
    QUIRE_ASSIGN_OR_RETURN(
        const uint64_t hidden,
        ReadSize(fields, "hidden_size",
                 has_sizes ? std::optional(family.hidden) : std::nullopt));
    if (hidden % heads != 0)
      return fields.Error(
          "hidden_size",
          absl::StrCat("is ", hidden, ", no multiple of the ", heads,
                       " attention heads, and there is "
                       "no head_dim"));
    head_dim = hidden / heads;
  }
  QUIRE_ASSIGN_OR_RETURN(head_dim, ReadSize(fields, "head_dim", head_dim));
  return KvLayerKind{.kv_heads = static_cast<uint32_t>(kv_heads),
                     .key_dim = static_cast<uint32_t>(head_dim),
                     .value_dim = static_cast<uint32_t>(head_dim)};
}

absl::StatusOr<KvConfig> ParseText(const JsonFields& fields, bool nested) {
  KvConfig config;
  QUIRE_ASSIGN_OR_RETURN(config.model_type, fields.GetString("model_type"));
  const KvFamily* const family = FindKvFamily(config.model_type);
  if (family == nullptr)
    return absl::UnimplementedError(absl::StrCat(
        fields.where(), ": what models of type ", Quoted(config.model_type),
        " keep of a token is not known; known: ", KnownKvFamilies()));
  const bool has_sizes = nested || family->has_sizes;
  const auto size = [&](uint64_t otherwise) {
    return has_sizes ? std::optional(otherwise) : std::nullopt;
  };
  QUIRE_ASSIGN_OR_RETURN(const uint64_t layers,
                         ReadSize(fields, "num_hidden_layers",
                                  size(family->layers), kMaxKvLayers));
  QUIRE_ASSIGN_OR_RETURN(
      const uint64_t heads,
      ReadSize(fields, "num_attention_heads", size(family->heads)));
  config.query_heads = static_cast<uint32_t>(heads);
  QUIRE_ASSIGN_OR_RETURN(config.max_positions,
                         ReadSize(fields, "max_position_embeddings",
                                  family->max_positions, kMaxKvPositions));
  QUIRE_ASSIGN_OR_RETURN(KvLayerKind kind,
                         ReadKind(fields, *family, has_sizes, heads));
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<bool> windowed,
      FindWindowed(fields, *family, static_cast<uint32_t>(layers)));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t window, ReadWindow(fields, *family));
  for (const bool has_window : windowed) {
    kind.window = has_window ? window : 0;
    config.shape.layers.push_back(kind);
  }
  return config;
}

}  // namespace

absl::StatusOr<KvConfig> ParseKvConfig(const nlohmann::json& config,
                                       const std::string& where) {
  const JsonFields fields(config, where);
  if (!fields.Has("text_config")) return ParseText(fields, /*nested=*/false);
  QUIRE_ASSIGN_OR_RETURN(const JsonFields text,
                         fields.GetObject("text_config"));
  return ParseText(text, /*nested=*/true);
}

KvModelShape WithElements(KvModelShape shape, KvDType dtype) {
  for (KvLayerKind& kind : shape.layers) {
    kind.dtype = dtype;
    kind.scale =
        KvElementSize(dtype) == Bytes(1) ? KvScale::kF16 : KvScale::kNone;
  }
  return shape;
}

}  // namespace quire
