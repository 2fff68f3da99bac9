// Reads the checksums that a checkpoint's writer left beside it.

#include <charconv>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "loader/json_file.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_fields.h"
#include "quire/loader/streaming_loader.h"

namespace quire {
namespace {

// "00ff12ab", as "%08x" writes it.
bool ParseCrc32(const std::string& text, uint32_t* crc) {
  if (text.size() != 8) return false;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *crc, 16);
  return error == std::errc() && at == end;
}

using Checksums = std::unordered_map<std::string, uint32_t>;

// Adds those of one file: {"tensors": {name: {"crc32": ...}}}.
absl::Status AddChecksums(const JsonFields& file, Checksums* checksums) {
  const nlohmann::json* const tensors = file.Find("tensors");
  if (tensors == nullptr || !tensors->is_object())
    return file.Error("tensors", "is not an object of tensors");
  checksums->reserve(checksums->size() + tensors->size());
  for (const auto& [name, entry] : tensors->items()) {
    const JsonFields tensor(
        entry, absl::StrCat(file.where(), ": tensor ", Quoted(name)));
    const nlohmann::json* const crc = tensor.Find("crc32");
    uint32_t value = 0;
    if (crc == nullptr || !crc->is_string() ||
        !ParseCrc32(crc->get_ref<const std::string&>(), &value))
      return tensor.Error("crc32", "is not 8 hexadecimal digits");
    if (!checksums->emplace(name, value).second)
      return tensor.Error("crc32", "stands in another file's list as well");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unordered_map<std::string, uint32_t>> ReadManifest(
    const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/manifest.json");
  QUIRE_ASSIGN_OR_RETURN(const JsonFile json, ReadJsonFile(path));
  const JsonFields manifest(json.value, Printable(path));
  const nlohmann::json* const files = manifest.Find("files");
  if (files == nullptr || !files->is_object())
    return manifest.Error("files", "is not an object of files");
  Checksums checksums;
  for (const auto& [name, entry] : files->items()) {
    QUIRE_RETURN_IF_ERROR(AddChecksums(
        JsonFields(entry,
                   absl::StrCat(manifest.where(), ": file ", Quoted(name))),
        &checksums));
  }
  return checksums;
}

}  // namespace quire
