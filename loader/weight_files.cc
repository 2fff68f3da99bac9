#include "loader/weight_files.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/random_access_file.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr char kSuffix[] = ".safetensors";
constexpr char kIndexSuffix[] = ".safetensors.index.json";
constexpr size_t kMaxFiles = 100'000;  // in a folder
constexpr size_t kNamesInMessage = 4;

std::string Join(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

// The names of all regular files, and of links to such.
absl::StatusOr<std::set<std::string>> ListFiles(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  while (!error && entries != std::filesystem::directory_iterator()) {
    if (std::string name = entries->path().filename().string();
        name.front() != '.' && IsRegularFile(entries->path().string()))
      names.insert(std::move(name));
    if (names.size() > kMaxFiles)
      return absl::InvalidArgumentError(
          absl::StrCat(Printable(folder), ": more than ", kMaxFiles, " files"));
    entries.increment(error);
  }
  if (error)
    return absl::ErrnoToStatus(
        error.value(), absl::StrCat(Printable(folder), ": cannot list"));
  return names;
}

// "a, b, c, d and 12 more".
std::string NameSome(const std::vector<std::string>& names) {
  std::vector<std::string> some;
  for (size_t i = 0; i < std::min(names.size(), kNamesInMessage); ++i)
    some.push_back(Printable(names[i]));
  std::string text = absl::StrJoin(some, ", ");
  if (names.size() > some.size())
    absl::StrAppend(&text, " and ", names.size() - some.size(), " more");
  return text;
}

absl::Status NoWeightsError(const std::string& folder,
                            const std::set<std::string>& files) {
  const auto first_with = [&files](absl::string_view end) {
    const auto found = std::find_if(
        files.begin(), files.end(),
        [end](const auto& name) { return absl::EndsWith(name, end); });
    return found == files.end() ? std::string() : Printable(*found);
  };
  std::string hint;
  if (std::string gguf = first_with(".gguf"); !gguf.empty()) {
    hint = absl::StrCat("; for ", gguf, " give the file itself");
  } else if (std::string adapter = first_with("adapter_model.safetensors");
             !adapter.empty()) {
    hint = absl::StrCat("; ", adapter,
                        " is an adapter: give its folder with --adapter, and "
                        "the base model as the model");
  } else {
    for (const char* end : {".bin", ".pt", ".pth", ".ckpt", ".npz"}) {
      if (std::string other = first_with(end); !other.empty()) {
        hint = absl::StrCat("; ", other,
                            " is of a format that is not read, because it can "
                            "run code: convert it to safetensors");
        break;
      }
    }
  }
  return absl::NotFoundError(absl::StrCat(
      Printable(folder), ": no model.safetensors, no ",
      "model.safetensors.index.json and no other .safetensors file", hint));
}

// The basenames to try: AutoGPTQ's first.
absl::StatusOr<std::vector<std::string>> Basenames(
    const std::string& folder, const std::set<std::string>& files) {
  std::vector<std::string> names;
  for (const std::string& file : files) {
    if (!absl::StartsWith(file, "gptq_model-")) continue;
    std::string_view base = file;
    if (absl::EndsWith(file, kIndexSuffix)) {
      base.remove_suffix(sizeof(kIndexSuffix) - 1);
    } else if (absl::EndsWith(file, kSuffix) &&
               !absl::StrContains(file, "-of-")) {
      base.remove_suffix(sizeof(kSuffix) - 1);
    } else {
      continue;
    }
    if (names.empty() || names.back() != base) names.emplace_back(base);
  }
  if (names.size() > 1)
    return absl::InvalidArgumentError(absl::StrCat(
        Printable(folder), ": several quantised models (", NameSome(names),
        "): give the .safetensors file that is meant"));
  names.push_back("model");
  return names;
}

// True where the folder's index is used; false where it is stale and the single
// file beside it is to be used.
absl::StatusOr<bool> UseIndex(const std::string& folder,
                              const std::set<std::string>& files,
                              const std::string& base, WeightFiles* out) {
  const std::string index_name = base + kIndexSuffix;
  const std::string single = base + kSuffix;
  QUIRE_ASSIGN_OR_RETURN(const auto file, OpenFile(Join(folder, index_name)));
  QUIRE_ASSIGN_OR_RETURN(ShardIndex index, ShardIndex::Read(*file));
  std::vector<std::string> absent;
  for (const std::string& shard : index.shards())
    if (!files.contains(shard)) absent.push_back(shard);
  if (absent.size() == index.shards().size() && files.contains(single)) {
    out->warnings.push_back(
        absl::StrCat(file->display_name(), ": none of its shards is there (",
                     NameSome(absent), "); the index is stale, and ", single,
                     " is read instead"));
    return false;
  }
  if (!absent.empty())
    return absl::NotFoundError(absl::StrCat(
        file->display_name(), ": ", absent.size(), " of ",
        index.shards().size(), " shards are absent: ", NameSome(absent)));
  out->names = index.shards();
  out->index = std::move(index);
  out->index_name = index_name;
  return true;
}

// One of several files by its name: model-00002-of-00003.safetensors.
struct ShardName {
  std::string prefix;  // "model-"
  std::string suffix;  // "-of-00003.safetensors"
  int number = 0;
  int count = 0;

  std::string Sibling(int other) const {
    return absl::StrCat(prefix, absl::Dec(other, absl::kZeroPad5), suffix);
  }
};

std::optional<ShardName> ParseShardName(const std::string& name) {
  constexpr std::string_view kOf = "-of-";
  constexpr size_t kDigits = 5;
  const size_t of = name.rfind(kOf);
  if (of == std::string::npos || of < kDigits) return std::nullopt;
  const std::string number = name.substr(of - kDigits, kDigits);
  const std::string count = name.substr(of + kOf.size(), kDigits);
  ShardName result = {name.substr(0, of - kDigits), name.substr(of), 0, 0};
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (const std::string& text : {number, count})
    if (text.size() != kDigits ||
        !std::all_of(text.begin(), text.end(), is_digit))
      return std::nullopt;
  if (!absl::SimpleAtoi(number, &result.number) ||
      !absl::SimpleAtoi(count, &result.count))
    return std::nullopt;
  return result;
}

// Such names promise their siblings, which can be checked without an index.
absl::Status CheckSiblings(const std::string& folder,
                           const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto shard = ParseShardName(name);
    if (!shard) continue;
    // The first one answers for all; the others only ask for the first.
    const int last = shard->number == 1 ? shard->count : 1;
    for (int i = 1; i <= last; ++i) {
      if (!std::binary_search(names.begin(), names.end(), shard->Sibling(i)))
        return absl::NotFoundError(absl::StrCat(
            Printable(folder), ": ", Printable(name), " is there but ",
            Printable(shard->Sibling(i)), " is absent"));
    }
  }
  return absl::OkStatus();
}

void WarnOfUnusedFiles(const std::string& folder,
                       const std::set<std::string>& files, WeightFiles* out) {
  std::vector<std::string> unused;
  for (const std::string& file : files)
    if (absl::EndsWith(file, kSuffix) &&
        !std::binary_search(out->names.begin(), out->names.end(), file))
      unused.push_back(file);
  if (unused.empty()) return;
  out->warnings.push_back(absl::StrCat(
      Printable(folder), ": not part of the checkpoint and ignored, as ",
      out->index ? absl::StrCat(out->index_name, " does not list them")
                 : absl::StrCat(out->names.front(), " is the whole of it"),
      ": ", NameSome(unused)));
}

}  // namespace

absl::StatusOr<WeightFiles> FindWeightFiles(const std::string& folder) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, ListFiles(folder));
  QUIRE_ASSIGN_OR_RETURN(const auto basenames, Basenames(folder, files));
  WeightFiles found;
  for (const std::string& base : basenames) {
    if (files.contains(base + kIndexSuffix)) {
      QUIRE_ASSIGN_OR_RETURN(const bool used,
                             UseIndex(folder, files, base, &found));
      if (used) break;
    }
    if (files.contains(base + kSuffix)) {
      found.names = {base + kSuffix};
      break;
    }
  }
  if (found.names.empty()) {
    for (const std::string& file : files)
      if (absl::EndsWith(file, kSuffix) && !absl::StartsWith(file, "adapter_"))
        found.names.push_back(file);
    if (found.names.empty()) return NoWeightsError(folder, files);
    QUIRE_RETURN_IF_ERROR(CheckSiblings(folder, found.names));
  }
  WarnOfUnusedFiles(folder, files, &found);
  return found;
}

}  // namespace quire
