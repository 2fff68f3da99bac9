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
    Bytes chunk_size) {
  std::vector<TensorPlacement> in_file_order;
  in_file_order.reserve(placements.size());
  Bytes total;
  for (const TensorPlacement& placement : placements) {
    QUIRE_RETURN_IF_ERROR(CheckPlacement(checkpoint, placement));
    if (placement.tensor->size.zero()) continue;
    const auto sum = CheckedAdd(total, placement.tensor->size);
    if (!sum)
      return absl::InvalidArgumentError("the placements exceed 2^64 bytes");
    total = *sum;
    in_file_order.push_back(placement);
  }
  std::sort(in_file_order.begin(), in_file_order.end(),
            [](const TensorPlacement& a, const TensorPlacement& b) {
              return std::tie(a.tensor->file, a.tensor->offset, a.destination) <
                     std::tie(b.tensor->file, b.tensor->offset, b.destination);
            });
  return ChunkPlan(std::move(in_file_order), chunk_size, total);
}

ChunkPlan::ChunkPlan(std::vector<TensorPlacement> placements, Bytes chunk_size,
                     Bytes total)
    : placements_(std::move(placements)),
      chunk_size_(chunk_size.value()),
      total_(total) {}

std::optional<Chunk> ChunkPlan::Next() {
  if (placement_ == placements_.size()) return std::nullopt;
  const TensorInfo& first = *placements_[placement_].tensor;
  Chunk chunk;
  chunk.index = chunks_++;
  chunk.file = first.file;
  chunk.offset = first.offset + offset_in_tensor_;
  const uint64_t limit = chunk_size_ - chunk.offset % chunk_size_;
  while (placement_ < placements_.size() && chunk.size < limit) {
    const TensorPlacement& placement = placements_[placement_];
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
      ++placement_;
    }
  }
  chunk.last_of_file = placement_ == placements_.size() ||
                       placements_[placement_].tensor->file != chunk.file;
  return chunk;
}

}  // namespace quire
