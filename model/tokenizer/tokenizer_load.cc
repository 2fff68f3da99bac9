// Tokenizer::Load. Apart from the rest, which reads no files.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

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
  const fs::path path(model_path);
  if (path.extension() == ".gguf") {
    QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                           Checkpoint::Open(model_path));
    return FromGguf(checkpoint->gguf_metadata(), model_path);
  }
  const fs::path folder =
      path.extension() == ".safetensors" ? path.parent_path() : path;
  const std::string file = (folder / "tokenizer.json").string();
  QUIRE_ASSIGN_OR_RETURN(const nlohmann::json json,
                         ReadJsonText(file, kMaxFileSize));
  return FromTokenizerJson(json, file);
}

}  // namespace quire
