#include "loader/chunk_plan.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Whether the runs lie in the tensor, none over another.
bool LiesIn(const TensorSlice& slice, uint64_t tensor_size) {
  if (slice.run == 0 || slice.count == 0) return true;
  if (slice.count > 1 && slice.run > slice.stride) return false;
  const auto last = CheckedMultiply(slice.count - 1, slice.stride);
  const auto begin = last ? CheckedAdd(slice.offset, *last) : std::nullopt;
  const auto end = begin ? CheckedAdd(*begin, slice.run) : std::nullopt;
  return end && *end <= tensor_size;
}

absl::Status CheckPlacement(const Checkpoint& checkpoint,
                            const SlicePlacement& placement) {
  const TensorSlice& slice = placement.slice;
  const TensorInfo& tensor = *slice.tensor;
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
  if (!LiesIn(slice, tensor.size.value()))
    return absl::InvalidArgumentError(absl::StrCat(
        where, " has no ", slice.count, " runs of ", slice.run, " bytes, ",
        slice.stride, " apart, from byte ", slice.offset, " on"));
  if (!slice.size().zero() &&
      (placement.destination.null() ||
       !CheckedAdd(placement.destination, slice.size())))
    return absl::InvalidArgumentError(
        absl::StrCat(where, " has no destination: it would go to address ",
                     placement.destination.value()));
  return absl::OkStatus();
}

// Runs without a gap are one.
TensorSlice Joined(TensorSlice slice) {
  if (slice.count > 1 && slice.run == slice.stride) {
    slice.run = slice.size().value();
    slice.stride = slice.run;
    slice.count = 1;
  }
  return slice;
}

}  // namespace

// Adds one placement after another, so that those of whole tensors need not be
// there as slices all at once.
class ChunkPlan::Builder {
 public:
  Builder(const Checkpoint& checkpoint, size_t placements)
      : checkpoint_(checkpoint), steps_in_file_(checkpoint.files().size()) {
    steps_.reserve(placements);
  }

  absl::Status Add(const SlicePlacement& placement) {
    const size_t number = placements_++;
    const TensorSlice& slice = placement.slice;
    if (slice.tensor == nullptr) return absl::OkStatus();
    QUIRE_RETURN_IF_ERROR(CheckPlacement(checkpoint_, placement));
    if (slice.size().zero()) return absl::OkStatus();
    const auto sum = CheckedAdd(total_, slice.size());
    if (!sum)
      return absl::InvalidArgumentError("the placements exceed 2^64 bytes");
    total_ = *sum;
    steps_.push_back({{Joined(slice), placement.destination}, number});
    ++steps_in_file_[slice.tensor->file];
    return absl::OkStatus();
  }

  ChunkPlan Finish(Bytes chunk_size, LoadOrder order) {
    if (order == LoadOrder::kFile) {
      const auto key = [](const Step& step) {
        return std::tuple(step.slice().tensor->file, step.begin(),
                          step.placement.destination);
      };
      std::sort(steps_.begin(), steps_.end(),
                [&](const Step& a, const Step& b) { return key(a) < key(b); });
    }
    return ChunkPlan(std::move(steps_), std::move(steps_in_file_), placements_,
                     chunk_size, total_);
  }

 private:
  const Checkpoint& checkpoint_;
  std::vector<Step> steps_;
  std::vector<size_t> steps_in_file_;
  size_t placements_ = 0;
  Bytes total_;
};

absl::StatusOr<ChunkPlan> ChunkPlan::Create(
    const Checkpoint& checkpoint, std::span<const TensorPlacement> placements,
    Bytes chunk_size, LoadOrder order) {
  Builder builder(checkpoint, placements.size());
  for (const TensorPlacement& placement : placements) {
    if (placement.tensor == nullptr)
      return absl::InvalidArgumentError("a placement names no tensor");
    QUIRE_RETURN_IF_ERROR(
        builder.Add({WholeTensor(placement.tensor), placement.destination}));
  }
  return builder.Finish(chunk_size, order);
}

absl::StatusOr<ChunkPlan> ChunkPlan::Create(
    const Checkpoint& checkpoint, std::span<const SlicePlacement> placements,
    Bytes chunk_size, LoadOrder order) {
  Builder builder(checkpoint, placements.size());
  for (const SlicePlacement& placement : placements)
    QUIRE_RETURN_IF_ERROR(builder.Add(placement));
  return builder.Finish(chunk_size, order);
}

ChunkPlan::ChunkPlan(std::vector<Step> steps, std::vector<size_t> steps_in_file,
                     size_t placements, Bytes chunk_size, Bytes total)
    : steps_(std::move(steps)),
      steps_in_file_(std::move(steps_in_file)),
      placements_(placements),
      chunk_size_(chunk_size.value()),
      total_(total) {}

void ChunkPlan::Rewind() {
  for (; step_ > 0; --step_)
    ++steps_in_file_[steps_[step_ - 1].slice().tensor->file];
  offset_in_slice_ = 0;
  chunks_ = 0;
}

std::optional<Chunk> ChunkPlan::Next() {
  if (step_ == steps_.size()) return std::nullopt;
  const TensorSlice& first = steps_[step_].slice();
  Chunk chunk;
  chunk.index = chunks_++;
  chunk.file = first.tensor->file;
  if (first.count > 1) {
    TakeRuns(&chunk);
  } else {
    TakeSideBySide(&chunk);
  }
  chunk.last_of_file = steps_in_file_[chunk.file] == 0;
  chunk.placements_done =
      step_ == steps_.size() ? placements_ : steps_[step_].number;
  return chunk;
}

void ChunkPlan::TakeRuns(Chunk* chunk) {
  const Step& step = steps_[step_];
  const TensorSlice& slice = step.slice();
  const uint64_t in_run = offset_in_slice_ % slice.run;
  chunk->offset =
      step.begin() + offset_in_slice_ / slice.run * slice.stride + in_run;
  chunk->size = std::min(slice.size().value() - offset_in_slice_, chunk_size_);
  chunk->first_run = std::min<uint64_t>(slice.run - in_run, chunk->size);
  chunk->run = slice.run;
  chunk->stride = slice.stride;
  chunk->pieces.push_back(
      {slice.tensor, 0, chunk->size,
       DeviceAddress(step.placement.destination.value() + offset_in_slice_)});
  offset_in_slice_ += chunk->size;
  if (offset_in_slice_ == slice.size().value()) FinishStep();
}

void ChunkPlan::TakeSideBySide(Chunk* chunk) {
  chunk->offset = steps_[step_].begin() + offset_in_slice_;
  const uint64_t limit = chunk_size_ - chunk->offset % chunk_size_;
  while (step_ < steps_.size() && chunk->size < limit) {
    const Step& step = steps_[step_];
    const TensorSlice& slice = step.slice();
    if (slice.count > 1 || slice.tensor->file != chunk->file ||
        step.begin() + offset_in_slice_ != chunk->offset + chunk->size)
      break;
    const uint64_t size =
        std::min(slice.run - offset_in_slice_, limit - chunk->size);
    chunk->pieces.push_back(
        {slice.tensor, chunk->size, size,
         DeviceAddress(step.placement.destination.value() + offset_in_slice_)});
    chunk->size += size;
    offset_in_slice_ += size;
    if (offset_in_slice_ == slice.run) FinishStep();
  }
  chunk->first_run = chunk->size;
}

void ChunkPlan::FinishStep() {
  --steps_in_file_[steps_[step_].slice().tensor->file];
  offset_in_slice_ = 0;
  ++step_;
}

}  // namespace quire
