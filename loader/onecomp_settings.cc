#include "loader/onecomp_settings.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/gptq_overrides.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr char kEveryModule[] = "_all";

struct LayerModule {
  size_t layer = 0;
  std::string_view suffix;
};

// "model.layers.3.mlp.down_proj" is layer 3's "mlp.down_proj".
std::optional<LayerModule> Split(std::string_view module) {
  constexpr std::string_view kLayers = ".layers.";
  const size_t at = module.find(kLayers);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = module.substr(at + kLayers.size());
  LayerModule result;
  const auto [end, error] =
      std::from_chars(rest.data(), rest.data() + rest.size(), result.layer);
  const size_t digits = static_cast<size_t>(end - rest.data());
  if (error != std::errc() || digits == rest.size() || *end != '.')
    return std::nullopt;
  result.suffix = rest.substr(digits + 1);
  return result;
}

}  // namespace

absl::StatusOr<OneCompSettings::Layer> OneCompSettings::ParseLayer(
    const JsonFields& layer) {
  Layer result;
  if (!layer.object().is_object())
    return absl::InvalidArgumentError(
        absl::StrCat(layer.where(), " is not an object"));
  for (const auto& [name, unused] : layer.object().items()) {
    if (!layer.Has(name)) continue;
    QUIRE_ASSIGN_OR_RETURN(const JsonFields entry, layer.GetObject(name));
    QUIRE_ASSIGN_OR_RETURN(const std::string method,
                           entry.GetStringOr("method", "gptq"));
    if (method != "gptq")
      return entry.Error("method",
                         absl::StrCat("is ", Quoted(method),
                                      ", which is not supported: only modules "
                                      "that are all quantised with \"gptq\" "
                                      "are"));
    Setting setting;
    if (entry.Has("bits")) {
      QUIRE_ASSIGN_OR_RETURN(setting.bits, GetGptqBits(entry, "bits"));
    }
    if (entry.Has("group_size")) {
      QUIRE_ASSIGN_OR_RETURN(setting.group_size,
                             GetGptqGroupSize(entry, "group_size"));
    } else if (entry.Has("params")) {
      QUIRE_ASSIGN_OR_RETURN(const JsonFields params,
                             entry.GetObject("params"));
      if (params.Has("group_size")) {
        QUIRE_ASSIGN_OR_RETURN(setting.group_size,
                               GetGptqGroupSize(params, "group_size"));
      }
    }
    result.emplace(name, setting);
  }
  return result;
}

absl::StatusOr<OneCompSettings> OneCompSettings::Parse(
    const JsonFields& config) {
  OneCompSettings result;
  if (const nlohmann::json* layers = config.Find("quantization_bits")) {
    if (!layers->is_array())
      return config.Error("quantization_bits", "is not an array");
    for (const nlohmann::json& layer : *layers) {
      const std::string where = absl::StrCat(
          config.where(), ": quantization_bits[", result.layers_.size(), "]");
      QUIRE_ASSIGN_OR_RETURN(Layer parsed,
                             ParseLayer(JsonFields(layer, where)));
      result.layers_.push_back(std::move(parsed));
    }
  }
  if (config.Has("module_wbits")) {
    QUIRE_ASSIGN_OR_RETURN(const JsonFields modules,
                           config.GetObject("module_wbits"));
    for (const auto& [name, unused] : modules.object().items()) {
      QUIRE_ASSIGN_OR_RETURN(result.module_bits_[name],
                             GetGptqBits(modules, name));
    }
  }
  if (config.Has("mlp_wbits")) {
    QUIRE_ASSIGN_OR_RETURN(result.mlp_bits_, GetGptqBits(config, "mlp_wbits"));
  }
  if (config.Has("mlp_groupsize")) {
    QUIRE_ASSIGN_OR_RETURN(result.mlp_group_size_,
                           GetGptqGroupSize(config, "mlp_groupsize"));
  }
  return result;
}

const OneCompSettings::Setting* OneCompSettings::FindInLayers(
    std::string_view module) const {
  const auto place = Split(module);
  if (!place || place->layer >= layers_.size()) return nullptr;
  const Layer& layer = layers_[place->layer];
  // OneComp takes the first key of the file that is the begin of the name. Its
  // writer makes whole names only, so the longest key says the same.
  for (size_t size = place->suffix.size(); size > 0; --size) {
    const auto found = layer.find(place->suffix.substr(0, size));
    if (found != layer.end()) return &found->second;
  }
  const auto all = layer.find(kEveryModule);
  return all == layer.end() ? nullptr : &all->second;
}

GptqSettings OneCompSettings::Apply(std::string_view module,
                                    GptqSettings settings) const {
  const bool is_mlp = module.find("mlp") != std::string_view::npos;
  const Setting* const entry = FindInLayers(module);
  const auto by_name = module_bits_.find(module);
  if (entry != nullptr && entry->bits) {
    settings.bits = *entry->bits;
  } else if (by_name != module_bits_.end()) {
    settings.bits = by_name->second;
  } else if (is_mlp && mlp_bits_) {
    settings.bits = *mlp_bits_;
  }
  if (entry != nullptr && entry->group_size) {
    settings.group_size = *entry->group_size;
  } else if (is_mlp && mlp_group_size_) {
    settings.group_size = *mlp_group_size_;
  }
  return settings;
}

}  // namespace quire
