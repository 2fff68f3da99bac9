#include "loader/chunk_plan.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/quote.h"

namespace quire {
namespace {

absl::Status CheckPlacement(const Checkpoint& checkpoint,
                            const TensorPlacement& placement) {
  if (placement.tensor == nullptr)
    return absl::InvalidArgumentError("a placement names no tensor");
  const TensorInfo& tensor = *placement.tensor;
  if (tensor.file >= checkpoint.files().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(tensor.name), " lies in file ",
                     tensor.file, " of ", checkpoint.files().size()));
  }
  const CheckpointFile& file = checkpoint.files()[tensor.file];
  const std::string where = absl::StrCat(
      Printable(file.path), ": tensor ", Quoted(tensor.name), " of ",
      tensor.size.value(), " bytes at offset ", tensor.offset);
  const auto end = CheckedAdd(tensor.offset, tensor.size.value());
  if (!end || *end > file.size.value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, " exceeds the file's ", file.size.value(), " bytes"));
  }
  if (!tensor.size.zero() && (placement.destination.null() ||
                              !CheckedAdd(placement.destination, tensor.size)))
    return absl::InvalidArgumentError(
        absl::StrCat(where, " has no destination: it would go to address ",
                     placement.destination.value()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChunkPlan> ChunkPlan::Create(
    const Checkpoint& checkpoint, std::span<const TensorPlacement> placements,
    Bytes chunk_size, LoadOrder order) {
  std::vector<Step> steps;
  steps.reserve(placements.size());
  std::vector<size_t> steps_in_file(checkpoint.files().size());
  Bytes total;
  for (const TensorPlacement& placement : placements) {
    QUIRE_RETURN_IF_ERROR(CheckPlacement(checkpoint, placement));
    if (placement.tensor->size.zero()) continue;
    const auto sum = CheckedAdd(total, placement.tensor->size);
    if (!sum)
      return absl::InvalidArgumentError("the placements exceed 2^64 bytes");
    total = *sum;
    steps.push_back(
        {placement, static_cast<size_t>(&placement - placements.data())});
    ++steps_in_file[placement.tensor->file];
  }
  if (order == LoadOrder::kFile) {
    std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
      const TensorPlacement& one = a.placement;
      const TensorPlacement& two = b.placement;
      return std::tie(one.tensor->file, one.tensor->offset, one.destination) <
             std::tie(two.tensor->file, two.tensor->offset, two.destination);
    });
  }
  return ChunkPlan(std::move(steps), std::move(steps_in_file),
                   placements.size(), chunk_size, total);
}

ChunkPlan::ChunkPlan(std::vector<Step> steps, std::vector<size_t> steps_in_file,
                     size_t placements, Bytes chunk_size, Bytes total)
    : steps_(std::move(steps)),
      steps_in_file_(std::move(steps_in_file)),
      placements_(placements),
      chunk_size_(chunk_size.value()),
      total_(total) {}

std::optional<Chunk> ChunkPlan::Next() {
  if (step_ == steps_.size()) return std::nullopt;
  const TensorInfo& first = *steps_[step_].placement.tensor;
  Chunk chunk;
  chunk.index = chunks_++;
  chunk.file = first.file;
  chunk.offset = first.offset + offset_in_tensor_;
  const uint64_t limit = chunk_size_ - chunk.offset % chunk_size_;
  while (step_ < steps_.size() && chunk.size < limit) {
    const TensorPlacement& placement = steps_[step_].placement;
    const TensorInfo& tensor = *placement.tensor;
    if (tensor.file != chunk.file ||
        tensor.offset + offset_in_tensor_ != chunk.offset + chunk.size)
      break;
    const uint64_t size =
        std::min(tensor.size.value() - offset_in_tensor_, limit - chunk.size);
    chunk.pieces.push_back(
        {&tensor, chunk.size, size,
         DeviceAddress(placement.destination.value() + offset_in_tensor_)});
    chunk.size += size;
    offset_in_tensor_ += size;
    if (offset_in_tensor_ == tensor.size.value()) {
      offset_in_tensor_ = 0;
      ++step_;
      --steps_in_file_[chunk.file];
    }
  }
  chunk.last_of_file = steps_in_file_[chunk.file] == 0;
  chunk.placements_done =
      step_ == steps_.size() ? placements_ : steps_[step_].number;
  return chunk;
}

}  // namespace quire
