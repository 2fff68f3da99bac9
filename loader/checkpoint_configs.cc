#include "loader/checkpoint_configs.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/json_file.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr const char* kCompressionField = "compression_config";

struct Reader {
  const std::string& folder;
  std::vector<std::string>& warnings;

  std::string PathOf(const char* name) const {
    return (std::filesystem::path(folder) / name).string();
  }

  // nullopt where there is no such file.
  absl::StatusOr<std::optional<JsonFile>> Read(
      const char* name, std::string_view ordered_path = {}) const {
    const std::string path = PathOf(name);
    auto file = ReadJsonFile(path, ordered_path);
    if (absl::IsNotFound(file.status())) return std::nullopt;
    QUIRE_RETURN_IF_ERROR(file.status());
    for (const std::string& field : file->repeated_fields)
      warnings.push_back(absl::StrCat(Printable(path), ": field ",
                                      Quoted(field),
                                      " occurs twice; the last one counts"));
    return *std::move(file);
  }
};

// Of a folder without a configuration, as those are in which GGUF files lie.
std::string GgufHint(const std::string& folder) {
  std::string first;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder, ignored)) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(".gguf") && (first.empty() || name < first))
      first = std::move(name);
  }
  if (first.empty()) return "";
  return absl::StrCat(
      "; a GGUF file is given by its own path: ",
      Printable((std::filesystem::path(folder) / first).string()));
}

}  // namespace

const char* EmbeddedQuantization(const nlohmann::json& config) {
  for (const char* field : {"quantization_config", kCompressionField}) {
    const auto found = config.find(field);
    if (found != config.end() && !found->is_null()) return field;
  }
  return nullptr;
}

absl::StatusOr<CheckpointConfigs> ReadCheckpointConfigs(
    const std::string& folder, bool config_required) {
  CheckpointConfigs result;
  const Reader reader = {folder, result.warnings};
  QUIRE_ASSIGN_OR_RETURN(
      auto config, reader.Read("config.json", "quantization_config.dynamic"));
  if (!config && config_required)
    return absl::NotFoundError(
        absl::StrCat(Printable(reader.PathOf("config.json")),
                     ": there is no such file, so the model is not known",
                     GgufHint(folder)));
  if (config) result.config = std::move(config->value);
  QUIRE_ASSIGN_OR_RETURN(auto generation,
                         reader.Read("generation_config.json"));
  if (generation) result.generation_config = std::move(generation->value);

  for (const char* name : {"quantize_config.json", "quant_config.json"}) {
    QUIRE_ASSIGN_OR_RETURN(auto quantization, reader.Read(name, "dynamic"));
    if (!quantization) continue;
    result.quantization_config = std::move(quantization->value);
    result.quantization_config_path = reader.PathOf(name);
    result.dynamic_patterns = std::move(quantization->ordered_keys);
    return result;
  }
  const char* const field = EmbeddedQuantization(result.config);
  if (field == nullptr) return result;
  const nlohmann::json& embedded = result.config[field];
  if (!embedded.is_object())
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(reader.PathOf("config.json")), ": field \"",
                     field, "\" is not an object"));
  result.quantization_config = embedded;
  // Only compressed-tensors has written this field.
  if (field == kCompressionField &&
      !result.quantization_config.contains("quant_method"))
    result.quantization_config["quant_method"] = "compressed-tensors";
  result.quantization_config_path = reader.PathOf("config.json");
  result.dynamic_patterns = std::move(config->ordered_keys);
  return result;
}

}  // namespace quire
