#include "loader/checkpoint_tensors.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/checkpoint_file.h"
#include "loader/random_access_file.h"
#include "loader/safetensors_header.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Tensors that are left out for one reason: how many, and which was first.
struct LeftOut {
  uint64_t count = 0;
  std::string first;

  void Add(const std::string& name) {
    if (count++ == 0) first = name;
  }
  void Warn(const std::string& file, const std::string& reason,
            std::vector<std::string>* warnings) const {
    if (count > 0)
      warnings->push_back(absl::StrCat(file, ": ", count, " tensors ", reason,
                                       " and are ignored, the first is ",
                                       Quoted(first)));
  }
};

// Which of the index's tensors were found, and what was left out of each file.
class IndexFilter {
 public:
  explicit IndexFilter(const WeightFiles& weights)
      : weights_(weights), found_(weights.index->mappings().size()) {}

  // Leaves in `tensors` what the index takes from file number `file`.
  void Apply(uint32_t file, const std::string& display_name,
             std::vector<TensorInfo>* tensors,
             std::vector<std::string>* warnings) {
    LeftOut unlisted;
    LeftOut elsewhere;
    std::erase_if(*tensors, [&](const TensorInfo& tensor) {
      const auto position = weights_.index->Find(tensor.name);
      if (!position) {
        unlisted.Add(tensor.name);
        return true;
      }
      if (weights_.index->mappings()[*position].shard != file) {
        elsewhere.Add(tensor.name);
        return true;
      }
      found_[*position] = true;
      return false;
    });
    unlisted.Warn(display_name, "are not listed in " + weights_.index_name,
                  warnings);
    elsewhere.Warn(display_name,
                   "are mapped to another shard by " + weights_.index_name,
                   warnings);
  }

  absl::Status CheckAllFound(const std::vector<CheckpointFile>& files) const {
    const auto missing = std::find(found_.begin(), found_.end(), false);
    if (missing == found_.end()) return absl::OkStatus();
    const auto& mapping =
        weights_.index
            ->mappings()[static_cast<size_t>(missing - found_.begin())];
    const auto count = std::count(found_.begin(), found_.end(), false);
    return absl::InvalidArgumentError(absl::StrCat(
        Printable(files[mapping.shard].path), ": tensor ",
        Quoted(weights_.index->Name(mapping)), " is not in this file, where ",
        weights_.index_name, " says it is",
        count > 1 ? absl::StrCat("; so are ", count - 1, " others") : ""));
  }

 private:
  const WeightFiles& weights_;
  std::vector<bool> found_;  // as the index's mappings()
};

void CheckTotalSize(const WeightFiles& weights,
                    const std::vector<TensorInfo>& tensors,
                    std::vector<std::string>* warnings) {
  if (!weights.index->total_size()) return;
  uint64_t total = 0;
  for (const TensorInfo& tensor : tensors) total += tensor.size.value();
  if (total != *weights.index->total_size())
    warnings->push_back(
        absl::StrCat(weights.index_name, ": metadata.total_size is ",
                     *weights.index->total_size(), ", but the tensors have ",
                     total, " bytes"));
}

}  // namespace

absl::StatusOr<CheckpointTensors> ReadCheckpointTensors(
    const std::string& folder, const WeightFiles& weights) {
  CheckpointTensors result;
  std::optional<IndexFilter> filter;
  if (weights.index) filter.emplace(weights);
  for (const std::string& name : weights.names) {
    const auto number = static_cast<uint32_t>(result.files.size());
    QUIRE_ASSIGN_OR_RETURN(
        const auto file,
        OpenFile((std::filesystem::path(folder) / name).string()));
    QUIRE_ASSIGN_OR_RETURN(auto tensors, ReadSafetensorsHeader(*file, number));
    // Before tensors are left out.
    const Bytes header_size =
        tensors.empty() ? file->size() : Bytes(tensors.front().offset);
    QUIRE_ASSIGN_OR_RETURN(CheckpointFile opened,
                           MakeCheckpointFile(*file, header_size));
    result.files.push_back(std::move(opened));
    if (filter)
      filter->Apply(number, file->display_name(), &tensors, &result.warnings);
    if (result.tensors.empty()) {
      result.tensors = std::move(tensors);
    } else {
      std::move(tensors.begin(), tensors.end(),
                std::back_inserter(result.tensors));
    }
  }
  if (filter) {
    QUIRE_RETURN_IF_ERROR(filter->CheckAllFound(result.files));
    CheckTotalSize(weights, result.tensors, &result.warnings);
  }
  return result;
}

}  // namespace quire
