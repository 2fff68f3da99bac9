#include "quire/model/shared_weights.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/decoder/shared_weights_entry.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Two loads of which all of this is the same have the same weights.
std::string KeyOf(const Checkpoint& checkpoint,
                  const WeightPlacement& placement,
                  const WeightOptions& options) {
  std::string key = absl::StrCat(static_cast<int>(options.quantization), "|");
  for (const CheckpointFile& file : checkpoint.files()) {
    absl::StrAppend(&key, file.stamp.device, ",", file.stamp.inode, ",",
                    file.stamp.size.value(), ",",
                    file.stamp.modified_nanoseconds, ",",
                    file.header_size.value(), ",", file.header_crc32, "|");
  }
  for (const MemoryPlace& place : placement.places)
    absl::StrAppend(&key, PlaceName(place), "|");
  // The same tensors mean another model where the configuration says so.
  for (const nlohmann::json* const config :
       {&checkpoint.config(), &checkpoint.quantization_config()})
    absl::StrAppend(
        &key,
        config->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
        "|");
  for (const std::string& pattern : checkpoint.dynamic_patterns())
    absl::StrAppend(&key, pattern, "|");
  return key;
}

std::string NameOf(const Checkpoint& checkpoint) {
  const std::string& path = checkpoint.files().empty()
                                ? checkpoint.folder()
                                : checkpoint.files().front().path;
  const std::filesystem::path folder =
      std::filesystem::path(path).parent_path().filename();
  return folder.empty() ? "model" : folder.string();
}

}  // namespace

std::shared_ptr<SharedWeightsEntry> SharedWeights::FindOrMake(
    const Checkpoint& checkpoint, const WeightPlacement& placement,
    const WeightOptions& weight_options) {
  const std::string key = KeyOf(checkpoint, placement, weight_options);
  MutexLock lock(&mutex_);
  std::erase_if(entries_,
                [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<SharedWeightsEntry>& found = entries_[key];
  std::shared_ptr<SharedWeightsEntry> entry = found.lock();
  if (entry != nullptr) return entry;
  // Two of the same name have nothing in common.
  const std::vector<std::string> names = runtime_->owners()->Names();
  std::string owner;
  do {
    owner = absl::StrCat("shared/", NameOf(checkpoint), "-", ++made_);
  } while (std::find(names.begin(), names.end(), owner) != names.end());
  entry = std::make_shared<SharedWeightsEntry>(runtime_, owner, placement,
                                               weight_options);
  found = entry;
  return entry;
}

absl::StatusOr<std::unique_ptr<ModelWeights>> SharedWeights::Load(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const StreamingOptions& options, ThreadPool* pool,
    const WeightPlacement& placement, const WeightOptions& weight_options) {
  for (const MemoryPlace& place : placement.places) {
    if (place.tier != MemoryTier::kDevice)
      return absl::InvalidArgumentError(absl::StrCat(
          "shared weights lie on devices, not on ", PlaceName(place),
          ": parts there run from pages of "
          "one model"));
  }
  const std::shared_ptr<SharedWeightsEntry> entry =
      FindOrMake(checkpoint, placement, weight_options);
  return entry->MakeUser(entry, {checkpoint, config, options, pool});
}

size_t SharedWeights::size() const {
  MutexLock lock(&mutex_);
  return static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(),
                    [](const auto& entry) { return !entry.second.expired(); }));
}

}  // namespace quire
