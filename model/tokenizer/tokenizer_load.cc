// Tokenizer::Load. Apart from the rest, which reads no files.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/tokenizer.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// The largest in use are about 40 MB.
constexpr Bytes kMaxFileSize = MiB(512);

absl::StatusOr<nlohmann::json> ReadJson(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  }
  if (size > kMaxFileSize.value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", FormatBytes(Bytes(size)),
        " is more than a tokenizer may have, ", FormatBytes(kMaxFileSize)));
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || !text) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  }
  try {
    return nlohmann::json::parse(text.str());
  } catch (const nlohmann::json::exception& exception) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not JSON: ", exception.what()));
  }
}

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
  QUIRE_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJson(file));
  return FromTokenizerJson(json, file);
}

}  // namespace quire
