// Linears that are quantised while they are loaded.
//
// Their 16-bit rows come to a landing on the device, a slice of at most
// kLandingBytes at a time and in the order of the files, are rounded there, and
// are overwritten by the next slice. So neither host nor device ever holds the
// 16-bit model.

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "model/decoder/weight_builder.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr Bytes kLandingBytes = MiB(64);
constexpr uint64_t kSliceAlignment = 64;
constexpr size_t kRowsOfOneTask = 16;

bool CanBeRounded(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

uint64_t RowBytes(const TensorInfo& tensor) {
  return tensor.size.value() / tensor.shape[0];
}

}  // namespace

const char* LoadQuantizationName(LoadQuantization quantization) {
  switch (quantization) {
    case LoadQuantization::kNone:
      return "none";
    case LoadQuantization::kInt8:
      return "int8";
    case LoadQuantization::kNf4:
      return "nf4";
  }
  return "?";
}

absl::Status WeightBuilder::RefuseAtLoad(const TensorInfo& tensor) const {
  return absl::FailedPreconditionError(absl::StrCat(
      checkpoint_.files()[tensor.file].path, ": ", Printable(tensor.name),
      " is ", DTypeName(tensor.dtype), " and cannot be quantised to ",
      LoadQuantizationName(options_.quantization),
      " at load: only linears of F16, BF16 and F32 can; load it as it is"));
}

absl::Status WeightBuilder::DescribeAtLoad(const TensorInfo& tensor,
                                           uint64_t out_features,
                                           uint64_t in_features,
                                           Linear* linear) {
  if (!CanBeRounded(tensor.dtype)) return RefuseAtLoad(tensor);
  QUIRE_RETURN_IF_ERROR(CheckShape(tensor, {out_features, in_features}));
  const bool nf4 = options_.quantization == LoadQuantization::kNf4;
  linear->matrix = ScaledMatrix{
      .kind = nf4 ? CodeKind::kNf4 : CodeKind::kInt8,
      .in_features = in_features,
      .out_features = out_features,
      .row_bytes = nf4 ? (in_features + 1) / 2 : in_features,
      .scales_dtype = DType::kF32,
      .block_rows = 1,
      .block_columns = nf4 ? kNf4BlockColumns : in_features,
  };
  pending_at_load_.push_back({&tensor, &std::get<ScaledMatrix>(linear->matrix),
                              weights_->parts_.size() - 1});
  return absl::OkStatus();
}

absl::Status WeightBuilder::AllocateAtLoad() {
  for (const PendingAtLoad* const pending : AtLoadInHand()) {
    ScaledMatrix& matrix = *pending->matrix;
    part_ = pending->part;
    QUIRE_ASSIGN_OR_RETURN(const DeviceAddress codes,
                           AllocateBytes(CodeBytes(matrix)));
    QUIRE_ASSIGN_OR_RETURN(const DeviceAddress scales,
                           AllocateBytes(ScaleBytes(matrix)));
    matrix.codes = codes.host_pointer<uint8_t>();
    matrix.scales = scales.host_pointer<void>();
  }
  return absl::OkStatus();
}

std::vector<const WeightBuilder::PendingAtLoad*> WeightBuilder::AtLoadInHand()
    const {
  std::vector<const PendingAtLoad*> in_hand;
  for (const PendingAtLoad& pending : pending_at_load_)
    if (IsInHand(pending.part)) in_hand.push_back(&pending);
  std::sort(in_hand.begin(), in_hand.end(),
            [](const PendingAtLoad* a, const PendingAtLoad* b) {
              return std::tie(a->tensor->file, a->tensor->offset) <
                     std::tie(b->tensor->file, b->tensor->offset);
            });
  return in_hand;
}

absl::StatusOr<DeviceAddress> WeightBuilder::AllocateLanding(
    std::span<const PendingAtLoad* const> pending, Bytes* size) {
  uint64_t total = 0;
  uint64_t longest_row = 0;
  for (const PendingAtLoad* const one : pending) {
    total = SaturatingAdd(total, one->tensor->size.value());
    longest_row = std::max(longest_row, RowBytes(*one->tensor));
  }
  *size = Bytes(std::max(std::min(total, kLandingBytes.value()), longest_row));
  return runtime_->allocator()->Allocate(*size, {.owner = owner_});
}

absl::Status WeightBuilder::FreeLanding(DeviceAddress landing) {
  QUIRE_RETURN_IF_ERROR(runtime_->allocator()->Free(landing));
  // It will not be wanted again: its pages are for sequences.
  runtime_->allocator()->Trim();
  return absl::OkStatus();
}

absl::Status WeightBuilder::ReserveLanding(const StreamingOptions& options) {
  const std::vector<const PendingAtLoad*> in_hand = AtLoadInHand();
  if (in_hand.empty()) return absl::OkStatus();
  Bytes size;
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress landing,
                         AllocateLanding(in_hand, &size));
  QUIRE_RETURN_IF_ERROR(
      ForEachLanding(in_hand, size, [&](std::span<const LandedRows> landed) {
        return ReserveStaging(PlacementsIn(landing, landed), options);
      }));
  return FreeLanding(landing);
}

std::vector<TensorPlacement> WeightBuilder::PlacementsIn(
    DeviceAddress landing, std::span<const LandedRows> landed) {
  std::vector<TensorPlacement> placements;
  placements.reserve(landed.size());
  for (const LandedRows& part : landed) {
    // Inside the landing, so it does not overflow.
    placements.push_back(
        {&part.slice, *CheckedAdd(landing, Bytes(part.offset))});
  }
  return placements;
}

absl::Status WeightBuilder::StreamAtLoad(const StreamingOptions& options,
                                         ThreadPool* pool) {
  const std::vector<const PendingAtLoad*> in_hand = AtLoadInHand();
  if (in_hand.empty()) return absl::OkStatus();
  Bytes landing_size;
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress landing,
                         AllocateLanding(in_hand, &landing_size));
  const auto give_back =
      absl::MakeCleanup([&] { FreeLanding(landing).IgnoreError(); });

  return ForEachLanding(in_hand, landing_size,
                        [&](std::span<const LandedRows> landed) {
                          return LoadAndRound(landing, landed, options, pool);
                        });
}

absl::Status WeightBuilder::ForEachLanding(
    std::span<const PendingAtLoad* const> all, Bytes landing_size,
    const std::function<absl::Status(std::span<const LandedRows>)>& load) {
  std::vector<LandedRows> landed;
  uint64_t used = 0;
  const auto flush = [&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(load(landed));
    landed.clear();
    used = 0;
    return absl::OkStatus();
  };
  for (const PendingAtLoad* const pending : all) {
    const TensorInfo& tensor = *pending->tensor;
    const uint64_t row_bytes = RowBytes(tensor);
    for (uint64_t row = 0; row < tensor.shape[0];) {
      // Any element may begin there.
      const uint64_t begin =
          (used + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
      const uint64_t fit =
          SaturatingSubtract(landing_size, Bytes(begin)).value() / row_bytes;
      if (fit == 0) {
        QUIRE_RETURN_IF_ERROR(flush());
        continue;
      }
      const uint64_t rows = std::min(fit, tensor.shape[0] - row);
      LandedRows part = {.pending = pending,
                         .slice = tensor,
                         .first_row = row,
                         .offset = begin};
      part.slice.shape[0] = rows;
      part.slice.offset += row * row_bytes;
      part.slice.size = Bytes(rows * row_bytes);
      landed.push_back(std::move(part));
      used = begin + rows * row_bytes;
      row += rows;
    }
  }
  return flush();
}

absl::Status WeightBuilder::LoadAndRound(DeviceAddress landing,
                                         std::span<const LandedRows> landed,
                                         const StreamingOptions& options,
                                         ThreadPool* pool) {
  const std::vector<TensorPlacement> placements = PlacementsIn(landing, landed);
  QUIRE_RETURN_IF_ERROR(Stream(placements, options));
  for (size_t i = 0; i < landed.size(); ++i)
    QUIRE_RETURN_IF_ERROR(
        Round(landed[i], placements[i].destination.host_pointer<void>(), pool));
  return absl::OkStatus();
}

absl::Status WeightBuilder::Round(const LandedRows& part, const void* rows,
                                  ThreadPool* pool) {
  const ScaledMatrix& matrix = *part.pending->matrix;
  const size_t columns = (matrix.in_features - 1) / matrix.block_columns + 1;
  auto* const codes =
      const_cast<uint8_t*>(matrix.codes) + part.first_row * matrix.row_bytes;
  auto* const scales = static_cast<float*>(const_cast<void*>(matrix.scales)) +
                       part.first_row * columns;
  const DenseMatrix dense = {.data = rows,
                             .dtype = part.slice.dtype,
                             .out_features = part.slice.shape[0],
                             .in_features = matrix.in_features};
  std::atomic<uint64_t> wrong_rows = 0;
  pool->ParallelFor(
      dense.out_features, kRowsOfOneTask, [&](size_t begin, size_t end) {
        std::vector<float> values(matrix.in_features);
        for (size_t row = begin; row < end; ++row) {
          DequantizeRow(dense, row, values.data());
          if (!QuantizeRow(matrix.kind, values.data(), values.size(),
                           codes + row * matrix.row_bytes,
                           scales + row * columns))
            ++wrong_rows;
        }
      });
  if (wrong_rows > 0)
    return absl::InvalidArgumentError(absl::StrCat(
        Printable(checkpoint_.files()[part.slice.file].path), ": tensor ",
        Quoted(part.slice.name), ": ", wrong_rows.load(),
        " row(s) have weights that are not finite, which cannot be rounded to ",
        LoadQuantizationName(options_.quantization)));
  return absl::OkStatus();
}

}  // namespace quire
