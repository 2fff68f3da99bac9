// Tokenizer::Load. Apart from the rest, which reads no files.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/json_text.h"
#include "quire/model/tokenizer.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// The largest in use are about 40 MB.
constexpr Bytes kMaxFileSize = MiB(512);

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(
    const std::string& model_path) {
  fs::path folder(model_path);
  if (folder.extension() == ".safetensors") {
    folder = folder.parent_path();
  } else if (std::error_code ignored; !fs::is_directory(folder, ignored)) {
    // A GGUF file is one by its contents, whatever its name.
    QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                           Checkpoint::Open(model_path));
    return FromGguf(checkpoint->gguf_metadata(), model_path);
  }
  const std::string file = (folder / "tokenizer.json").string();
  QUIRE_ASSIGN_OR_RETURN(const nlohmann::json json,
                         ReadJsonText(file, kMaxFileSize));
  return FromTokenizerJson(json, file);
}

}  // namespace quire
