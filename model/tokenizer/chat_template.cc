#include "quire/model/chat_template.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/loader/json_fields.h"
#include "quire/loader/json_text.h"
#include "quire/loader/regular_file.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Templates = std::map<std::string, std::string>;

constexpr char kDefault[] = "default";
constexpr std::string_view kGgufKey = "tokenizer.chat_template";
// The longest in use are a few 10 KiB.
constexpr Bytes kMaxTemplate = MiB(16);

absl::StatusOr<Templates> OfGguf(const Checkpoint& checkpoint) {
  const JsonFields metadata(checkpoint.gguf_metadata(),
                            checkpoint.files().front().path);
  Templates templates;
  for (const auto& [key, value] : checkpoint.gguf_metadata().items()) {
    if (!key.starts_with(kGgufKey)) continue;
    const std::string rest = key.substr(kGgufKey.size());
    if (!rest.empty() && rest.front() != '.') continue;
    QUIRE_ASSIGN_OR_RETURN(std::string text, metadata.GetString(key));
    templates[rest.empty() ? kDefault : rest.substr(1)] = std::move(text);
  }
  return templates;
}

absl::StatusOr<Templates> OfConfig(const std::string& path) {
  const absl::StatusOr<Json> config = ReadJsonText(path);
  if (absl::IsNotFound(config.status())) return Templates();
  if (!config.ok()) return config.status();
  const JsonFields fields(*config, path);
  const Json* const value = fields.Find("chat_template");
  Templates templates;
  if (value == nullptr) return templates;
  if (!value->is_array()) {
    QUIRE_ASSIGN_OR_RETURN(templates[kDefault],
                           fields.GetString("chat_template"));
    return templates;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const JsonFields one((*value)[i],
                         absl::StrCat(path, ": chat_template[", i, "]"));
    QUIRE_ASSIGN_OR_RETURN(const std::string name, one.GetString("name"));
    QUIRE_ASSIGN_OR_RETURN(templates[name], one.GetString("template"));
  }
  return templates;
}

absl::Status AddFile(const fs::path& path, const std::string& name,
                     Templates* templates) {
  const auto text = ReadRegularFile(path.string(), kMaxTemplate);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  (*templates)[name] = *text;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Templates> ReadChatTemplates(const Checkpoint& checkpoint) {
  if (checkpoint.format() == CheckpointFormat::kGguf) return OfGguf(checkpoint);
  const fs::path folder(checkpoint.folder());
  QUIRE_ASSIGN_OR_RETURN(Templates templates,
                         OfConfig((folder / "tokenizer_config.json").string()));
  QUIRE_RETURN_IF_ERROR(
      AddFile(folder / "chat_template.jinja", kDefault, &templates));
  std::error_code no_folder;
  for (fs::directory_iterator entry(folder / "additional_chat_templates",
                                    no_folder);
       !no_folder && entry != fs::directory_iterator();
       entry.increment(no_folder)) {
    if (entry->path().extension() == ".jinja")
      QUIRE_RETURN_IF_ERROR(
          AddFile(entry->path(), entry->path().stem().string(), &templates));
  }
  return templates;
}

}  // namespace quire
