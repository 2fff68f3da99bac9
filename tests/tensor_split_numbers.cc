#include "tests/tensor_split_numbers.h"

#include <gtest/gtest.h>

#include <utility>

#include "quire/loader/streaming_loader.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

// Loads the slices side by side, but for gaps, through a ring whose buffers end
// in the middle of runs.
std::vector<ByteVector> Stream(const Checkpoint& checkpoint,
                               const std::vector<TensorSlice>& slices,
                               LoadTarget* target) {
  std::vector<SlicePlacement> placements;
  uint64_t end = target->base().value();
  uint64_t total = 0;
  for (const TensorSlice& slice : slices) {
    placements.push_back({slice, DeviceAddress(end)});
    end += slice.size().value() + 5;
    total += slice.size().value();
  }
  StreamingOptions options;
  options.buffers = 2;
  options.buffer_size = Bytes(1000);
  const auto report = StreamSlices(target->driver(), DeviceId(0), checkpoint,
                                   placements, options);
  EXPECT_TRUE(report.ok()) << report.status();
  if (report.ok()) {
    EXPECT_EQ(report->bytes, Bytes(total));
  }
  std::vector<ByteVector> loaded;
  for (const SlicePlacement& placement : placements) {
    const auto* const bytes = placement.destination.host_pointer<std::byte>();
    loaded.emplace_back(bytes, bytes + placement.slice.size().value());
  }
  return loaded;
}

std::vector<float> Floats(const ByteVector& bytes, DType dtype, size_t count) {
  std::vector<float> values(count);
  if (count > 0)
    DequantizeRow({.data = bytes.data(),
                   .dtype = dtype,
                   .out_features = 1,
                   .in_features = count},
                  0, values.data());
  return values;
}

std::vector<float> Bias(const ByteVector& bytes, const TensorInfo* bias) {
  if (bias == nullptr) return {};
  return Floats(bytes, bias->dtype, bytes.size() * 8 / BlockBits(bias->dtype));
}

}  // namespace

ByteVector Read(const Checkpoint& checkpoint, const TensorInfo* tensor) {
  ByteVector bytes;
  if (tensor != nullptr) {
    const absl::Status status = checkpoint.ReadSmallTensor(*tensor, &bytes);
    EXPECT_TRUE(status.ok()) << status;
  }
  return bytes;
}

ByteVector Read(const Checkpoint& checkpoint, const TensorSlice& slice) {
  ByteVector bytes;
  const absl::Status status = ReadSlice(checkpoint, slice, &bytes);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(bytes.size(), slice.size().value());
  return bytes;
}

Stored Shard(const Checkpoint& checkpoint, const LinearShard& shard,
             LoadTarget* target) {
  const std::vector<TensorSlice> slices = {shard.codes, shard.scales,
                                           shard.zeros, shard.bias};
  std::vector<ByteVector> loaded;
  if (target != nullptr) {
    loaded = Stream(checkpoint, slices, target);
  } else {
    for (const TensorSlice& slice : slices)
      loaded.push_back(Read(checkpoint, slice));
  }
  return {.in_features = shard.in_features,
          .out_features = shard.out_features,
          .codes = std::move(loaded[0]),
          .scales = std::move(loaded[1]),
          .zeros = std::move(loaded[2]),
          .bias = std::move(loaded[3]),
          .row_bytes = shard.row_bytes,
          .groups = shard.groups,
          .group_of_input = shard.group_of_input};
}

Numbers Decode(const GptqModule& module, uint32_t zero_offset, Stored stored) {
  const int bits = module.settings.bits;
  const uint64_t n = stored.out_features;
  auto* const words = reinterpret_cast<uint32_t*>(stored.codes.data());
  auto* const zeros = reinterpret_cast<uint32_t*>(stored.zeros.data());
  if (module.packing == GptqPacking::kAwq) {
    ThreadPool pool(1);
    RepackAwqCodes(words, stored.in_features, n, &pool);
    RepackAwqZeros(zeros, stored.zeros.size() / sizeof(uint32_t));
  }
  const uint64_t zero_words =
      stored.zeros.size() / sizeof(uint32_t) / stored.groups;
  const std::vector<float> scales =
      Floats(stored.scales, module.scales->dtype, stored.groups * n);
  Numbers numbers{stored.in_features, n, {}, Bias(stored.bias, module.bias)};
  for (uint64_t out = 0; out < n; ++out) {
    for (uint64_t in = 0; in < stored.in_features; ++in) {
      const uint64_t group = stored.group_of_input[in];
      const uint32_t zero =
          (UnpackCode(zeros + group * zero_words, bits, 1, out, 0) +
           zero_offset) &
          ((1u << bits) - 1);
      const uint32_t code = UnpackCode(words, bits, n, in, out);
      numbers.weight.push_back(
          scales[group * n + out] *
          (static_cast<float>(code) - static_cast<float>(zero)));
    }
  }
  return numbers;
}

Numbers Decode(const ScaledModule& module, uint64_t expert,
               const Stored& stored) {
  const uint64_t scale_rows =
      (stored.out_features + module.block_rows - 1) / module.block_rows;
  const uint64_t scale_bytes =
      scale_rows * stored.groups * (BlockBits(module.scales_dtype) / 8);
  EXPECT_EQ(stored.scales.size(), module.count * scale_bytes);
  EXPECT_EQ(stored.codes.size(),
            module.count * stored.out_features * stored.row_bytes);
  const ScaledMatrix matrix = {
      .kind = module.kind,
      .in_features = stored.in_features,
      .out_features = stored.out_features,
      .codes = reinterpret_cast<const uint8_t*>(stored.codes.data()) +
               expert * stored.out_features * stored.row_bytes,
      .row_bytes = stored.row_bytes,
      .scales = stored.scales.data() + expert * scale_bytes,
      .scales_dtype = module.scales_dtype,
      .block_rows = module.block_rows,
      // With act-order it says how many scales a row has, and no more.
      .block_columns =
          stored.group_of_input.empty()
              ? module.block_columns
              : (stored.in_features + stored.groups - 1) / stored.groups,
      .zeros = stored.zeros.empty() ? nullptr : stored.zeros.data(),
      .zeros_dtype = module.zeros == nullptr ? DType::kI8 : module.zeros->dtype,
      .scale_column = stored.group_of_input.empty()
                          ? nullptr
                          : stored.group_of_input.data()};
  Numbers numbers{stored.in_features, stored.out_features, {}, {}};
  numbers.weight.resize(stored.in_features * stored.out_features);
  for (uint64_t row = 0; row < stored.out_features; ++row)
    DequantizeRow(matrix, row, &numbers.weight[row * stored.in_features]);
  const std::vector<float> biases = Bias(stored.bias, module.bias);
  if (!biases.empty())
    numbers.bias.assign(
        biases.begin() + static_cast<ptrdiff_t>(expert * stored.out_features),
        biases.begin() +
            static_cast<ptrdiff_t>((expert + 1) * stored.out_features));
  return numbers;
}

Numbers Decode(const PlainLinear& linear, const Stored& stored) {
  Numbers numbers{stored.in_features,
                  stored.out_features,
                  {},
                  Bias(stored.bias, linear.bias)};
  numbers.weight.resize(stored.in_features * stored.out_features);
  for (uint64_t row = 0; row < stored.out_features; ++row)
    DequantizeRow({.data = stored.codes.data(),
                   .dtype = linear.weight->dtype,
                   .out_features = stored.out_features,
                   .in_features = stored.in_features},
                  row, &numbers.weight[row * stored.in_features]);
  return numbers;
}

}  // namespace quire
