#include "quire/loader/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "loader/checkpoint_configs.h"
#include "loader/checkpoint_file.h"
#include "loader/checkpoint_tensors.h"
#include "loader/gguf_reader.h"
#include "loader/random_access_file.h"
#include "loader/tensor_errors.h"
#include "loader/weight_files.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

uint64_t TensorInfo::elements() const {
  // The size was checked when the header was read, so this does not overflow.
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1},
                         std::multiplies<>());
}

Checkpoint::Checkpoint()
    : config_(std::make_unique<nlohmann::json>(nlohmann::json::object())),
      generation_config_(
          std::make_unique<nlohmann::json>(nlohmann::json::object())),
      quantization_config_(
          std::make_unique<nlohmann::json>(nlohmann::json::object())),
      gguf_metadata_(
          std::make_unique<nlohmann::json>(nlohmann::json::object())) {}

Checkpoint::~Checkpoint() = default;

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(
    const std::string& path) {
  auto checkpoint = absl::WrapUnique(new Checkpoint);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    QUIRE_RETURN_IF_ERROR(checkpoint->OpenSafetensors(path, ""));
    return checkpoint;
  }
  QUIRE_ASSIGN_OR_RETURN(const auto file, OpenFile(path));
  QUIRE_ASSIGN_OR_RETURN(const bool is_gguf, IsGguf(*file));
  if (is_gguf || absl::EndsWith(path, ".gguf")) {
    QUIRE_RETURN_IF_ERROR(checkpoint->OpenGguf(*file));
  } else if (absl::EndsWith(path, ".safetensors")) {
    QUIRE_RETURN_IF_ERROR(checkpoint->OpenSafetensors(
        FolderOf(path), std::filesystem::path(path).filename().string()));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(file->display_name(),
                     ": neither a folder nor a .safetensors or .gguf file"));
  }
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Describe(
    const std::string& folder,
    const std::function<
        absl::StatusOr<std::vector<TensorInfo>>(const Checkpoint&)>& tensors) {
  auto checkpoint = absl::WrapUnique(new Checkpoint);
  QUIRE_RETURN_IF_ERROR(
      checkpoint->OpenConfigs(folder, /*config_required=*/true));
  QUIRE_ASSIGN_OR_RETURN(checkpoint->tensors_, tensors(*checkpoint));
  checkpoint->files_.resize(1);
  checkpoint->files_.front().path = folder;
  QUIRE_RETURN_IF_ERROR(checkpoint->IndexTensors());
  checkpoint->files_.front().size = checkpoint->total_size_;
  return checkpoint;
}

absl::Status Checkpoint::OpenConfigs(const std::string& folder,
                                     bool config_required) {
  folder_ = folder;
  QUIRE_ASSIGN_OR_RETURN(auto configs,
                         ReadCheckpointConfigs(folder, config_required));
  *config_ = std::move(configs.config);
  *generation_config_ = std::move(configs.generation_config);
  *quantization_config_ = std::move(configs.quantization_config);
  quantization_config_path_ = std::move(configs.quantization_config_path);
  dynamic_patterns_ = std::move(configs.dynamic_patterns);
  warnings_ = std::move(configs.warnings);
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenSafetensors(const std::string& folder,
                                         const std::string& single_file) {
  // The small files first: where one of them is wrong, nothing else is read.
  QUIRE_RETURN_IF_ERROR(
      OpenConfigs(folder, /*config_required=*/single_file.empty()));
  WeightFiles weights;
  if (single_file.empty()) {
    QUIRE_ASSIGN_OR_RETURN(weights, FindWeightFiles(folder));
  } else {
    weights.names = {single_file};
  }
  QUIRE_ASSIGN_OR_RETURN(auto tensors, ReadCheckpointTensors(folder, weights));
  files_ = std::move(tensors.files);
  tensors_ = std::move(tensors.tensors);
  for (auto* warnings : {&weights.warnings, &tensors.warnings})
    std::move(warnings->begin(), warnings->end(),
              std::back_inserter(warnings_));
  return IndexTensors();
}

absl::Status Checkpoint::OpenGguf(const RandomAccessFile& file) {
  QUIRE_ASSIGN_OR_RETURN(GgufFile gguf, ReadGguf(file));
  format_ = CheckpointFormat::kGguf;
  folder_ = FolderOf(file.path());
  tensors_ = std::move(gguf.tensors);
  QUIRE_ASSIGN_OR_RETURN(CheckpointFile opened,
                         MakeCheckpointFile(file, gguf.header_size));
  files_.push_back(std::move(opened));
  *gguf_metadata_ = std::move(gguf.metadata);
  for (const std::string& warning : gguf.warnings)
    warnings_.push_back(absl::StrCat(file.display_name(), ": ", warning));
  return IndexTensors();
}

absl::Status Checkpoint::IndexTensors() {
  uint64_t total = 0;
  for (const TensorInfo& tensor : tensors_) {
    const auto sum = CheckedAdd(total, tensor.size.value());
    if (!sum)
      return absl::InvalidArgumentError(absl::StrCat(
          Printable(files_[tensor.file].path), ": tensor ", Quoted(tensor.name),
          ": the sizes of all tensors exceed 64 bits"));
    total = *sum;
  }
  total_size_ = Bytes(total);
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
    return tensors_[a].name < tensors_[b].name;
  });
  const auto twice = std::adjacent_find(
      by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
        return tensors_[a].name == tensors_[b].name;
      });
  if (twice == by_name_.end()) return absl::OkStatus();
  const TensorInfo& first = tensors_[std::min(twice[0], twice[1])];
  const TensorInfo& second = tensors_[std::max(twice[0], twice[1])];
  return absl::InvalidArgumentError(absl::StrCat(
      Printable(files_[second.file].path), ": tensor ", Quoted(second.name),
      " is also in ", Printable(files_[first.file].path),
      ", and no index says which one counts"));
}

const TensorInfo* Checkpoint::Find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [this](uint32_t tensor, std::string_view wanted) {
                         return tensors_[tensor].name < wanted;
                       });
  if (found == by_name_.end() || tensors_[*found].name != name) return nullptr;
  return &tensors_[*found];
}

absl::Status Checkpoint::CheckUnchanged() const {
  for (const CheckpointFile& file : files_)
    QUIRE_RETURN_IF_ERROR(quire::CheckUnchanged(file));
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadSmallTensor(const TensorInfo& tensor,
                                         std::vector<std::byte>* out,
                                         Bytes limit) const {
  const std::string& path = files_[tensor.file].path;
  if (tensor.size > limit)
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(path), ": tensor ", Quoted(tensor.name), " has ",
                     tensor.size.value(), " bytes, more than the ",
                     limit.value(), " that may be read at once here"));
  const auto read = [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const auto file, OpenUnchanged(files_[tensor.file]));
    out->resize(tensor.size.value());
    return file->Read(tensor.offset, *out);
  };
  return OfTensor(tensor, read());
}

}  // namespace quire
