// Tensor parallelism: the shares of every format, put together, are the whole.
//
// Every linear of every golden case is decoded from its whole tensors, element
// by element, and so is every share from its slices alone, as a linear of its
// own; of two ranks they pass through the ring of a load. The elements agree
// exactly, and so do the products: one after the other where outputs are split,
// added where inputs are.

#include "quire/loader/tensor_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "loader/streaming_test_util.h"
#include "loader/tensors_test_util.h"
#include "quire/loader/quantization.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

using ByteVector = std::vector<std::byte>;

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

// A linear by its own tensors: the whole, or one share of it.
struct Stored {
  uint64_t in_features = 0;
  uint64_t out_features = 0;
  ByteVector codes = {};
  ByteVector scales = {};
  ByteVector zeros = {};
  ByteVector bias = {};
  uint64_t row_bytes = 0;
  uint64_t groups = 0;
  std::vector<uint32_t> group_of_input = {};
};

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

// A null target: the slices are read, not loaded, which takes less time.
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

// The tensors of a quantised module, all of them; what the formats say in
// different ways is left to the caller.
template <typename Module>
Stored WholeOf(const Checkpoint& checkpoint, const Module& module,
               const TensorInfo* codes, const TensorInfo* zeros) {
  return {.in_features = module.in_features,
          .out_features = module.out_features,
          .codes = Read(checkpoint, codes),
          .scales = Read(checkpoint, module.scales),
          .zeros = Read(checkpoint, zeros),
          .bias = Read(checkpoint, module.bias)};
}

// A linear as numbers: weight [outputs, inputs], and the bias it adds, or none.
struct Numbers {
  uint64_t in_features = 0;
  uint64_t out_features = 0;
  std::vector<float> weight;
  std::vector<float> bias;
};

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

// One of the linears of the module.
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

std::vector<double> Product(const Numbers& numbers, const double* input) {
  std::vector<double> output(numbers.out_features);
  for (uint64_t n = 0; n < numbers.out_features; ++n) {
    for (uint64_t k = 0; k < numbers.in_features; ++k)
      output[n] += numbers.weight[n * numbers.in_features + k] * input[k];
    if (!numbers.bias.empty()) output[n] += numbers.bias[n];
  }
  return output;
}

void ExpectPartsMakeWhole(const Numbers& whole,
                          const std::vector<LinearShard>& shards,
                          const std::vector<Numbers>& parts, SplitAxis axis,
                          const std::string& what) {
  SCOPED_TRACE(what);
  const bool outputs = axis == SplitAxis::kOutputs;
  uint64_t begin = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Numbers& part = parts[rank];
    ASSERT_EQ(shards[rank].begin, begin);
    begin = shards[rank].end;
    const uint64_t row = outputs ? shards[rank].begin : 0;
    const uint64_t column = outputs ? 0 : shards[rank].begin;
    ASSERT_EQ(part.weight.size(), part.out_features * part.in_features);
    for (uint64_t n = 0; n < part.out_features; ++n) {
      for (uint64_t k = 0; k < part.in_features; ++k)
        ASSERT_EQ(part.weight[n * part.in_features + k],
                  whole.weight[(row + n) * whole.in_features + column + k])
            << "rank " << rank << ", output " << n << ", input " << k;
    }
  }
  EXPECT_EQ(begin, outputs ? whole.out_features : whole.in_features);

  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> input(whole.in_features);
  for (double& x : input) x = normal(random);
  const std::vector<double> expected = Product(whole, input.data());
  std::vector<double> actual;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const std::vector<double> product =
        Product(parts[rank], input.data() + (outputs ? 0 : shards[rank].begin));
    if (outputs || actual.empty()) {
      actual.insert(actual.end(), product.begin(), product.end());
    } else {
      for (size_t n = 0; n < product.size(); ++n) actual[n] += product[n];
    }
  }
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t n = 0; n < actual.size(); ++n)
    EXPECT_NEAR(actual[n], expected[n], 1e-9 * (1 + std::abs(expected[n])));
}

struct Trial {
  LoadTarget target{MiB(1)};
  // How many linears were split and checked, by format and axis.
  std::map<std::pair<std::string, SplitAxis>, int> counts;
};

// Splits one linear in every way; what cannot be split must say so.
template <typename Module>
void CheckLinear(
    const Checkpoint& checkpoint, const Module& module, const std::string& name,
    const std::string& format,
    const std::function<std::vector<Numbers>(const Stored&)>& decode,
    const std::vector<Numbers>& whole, Trial* trial) {
  for (const SplitAxis axis : {SplitAxis::kOutputs, SplitAxis::kInputs}) {
    for (const uint32_t ranks : {1u, 2u, 3u, 4u}) {
      const auto shards =
          SplitLinear(checkpoint, module, {.axis = axis, .ranks = ranks});
      if (!shards.ok()) {
        EXPECT_TRUE(absl::IsInvalidArgument(shards.status()));
        EXPECT_NE(shards.status().message().find(name), std::string::npos)
            << shards.status();
        continue;
      }
      ASSERT_EQ(shards->size(), ranks);
      std::vector<std::vector<Numbers>> parts(whole.size());
      for (const LinearShard& shard : *shards) {
        std::vector<Numbers> decoded = decode(
            Shard(checkpoint, shard, ranks == 2 ? &trial->target : nullptr));
        ASSERT_EQ(decoded.size(), whole.size());
        for (size_t i = 0; i < decoded.size(); ++i)
          parts[i].push_back(std::move(decoded[i]));
      }
      for (size_t i = 0; i < whole.size(); ++i)
        ExpectPartsMakeWhole(whole[i], *shards, parts[i], axis,
                             name + " over " + std::to_string(ranks));
      if (ranks > 1) ++trial->counts[{format, axis}];
    }
  }
}

void CheckGptq(const Checkpoint& checkpoint, const QuantizedModules& quantized,
               Trial* trial) {
  for (const GptqModule& module : quantized.gptq) {
    const auto group_of_input = ReadGroupIndex(checkpoint, module);
    ASSERT_TRUE(group_of_input.ok());
    const uint32_t offset = quantized.gptq_config->zeros_are_v2() ? 0 : 1;
    const auto decode = [&](const Stored& stored) {
      return std::vector<Numbers>{Decode(module, offset, stored)};
    };
    const bool act_order =
        !std::is_sorted(group_of_input->begin(), group_of_input->end());
    Stored whole = WholeOf(checkpoint, module, module.qweight, module.qzeros);
    whole.groups = module.groups;
    whole.group_of_input = *group_of_input;
    CheckLinear(checkpoint, module, module.name,
                std::string(QuantizationMethodName(quantized.method)) +
                    std::to_string(module.settings.bits) +
                    (act_order ? " act-order" : ""),
                decode, decode(whole), trial);
  }
}

void CheckScaled(const Checkpoint& checkpoint,
                 const QuantizedModules& quantized, Trial* trial) {
  for (const ScaledModule& module : quantized.scaled) {
    const auto columns = ReadScaleColumns(checkpoint, module);
    ASSERT_TRUE(columns.ok());
    const auto decode = [&](const Stored& stored) {
      std::vector<Numbers> numbers;
      for (uint64_t expert = 0; expert < module.count; ++expert)
        numbers.push_back(Decode(module, expert, stored));
      return numbers;
    };
    Stored whole = WholeOf(checkpoint, module, module.codes, module.zeros);
    whole.row_bytes = module.row_bytes;
    whole.groups = module.scale_columns();
    whole.group_of_input = *columns;
    CheckLinear(checkpoint, module, module.name,
                std::string(QuantizationMethodName(quantized.method)) + " " +
                    CodeKindName(module.kind) +
                    (columns->empty() ? "" : " act-order"),
                decode, decode(whole), trial);
  }
}

bool IsPlain(const TensorInfo& tensor) {
  return tensor.shape.size() == 2 && tensor.name.ends_with(".weight") &&
         (tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 ||
          tensor.dtype == DType::kBF16 || BlockElements(tensor.dtype) > 1);
}

void CheckPlain(const Checkpoint& checkpoint, Trial* trial) {
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (!IsPlain(tensor)) continue;
    std::string bias = tensor.name;
    bias.replace(bias.size() - 6, 6, "bias");
    const PlainLinear linear = {&tensor, checkpoint.Find(bias), std::nullopt};
    const auto decode = [&](const Stored& stored) {
      return std::vector<Numbers>{Decode(linear, stored)};
    };
    const Stored whole = {.in_features = tensor.shape[1],
                          .out_features = tensor.shape[0],
                          .codes = Read(checkpoint, &tensor),
                          .bias = Read(checkpoint, linear.bias)};
    CheckLinear(checkpoint, linear, tensor.name, DTypeName(tensor.dtype),
                decode, decode(whole), trial);
  }
}

TEST(TensorSplitTest, SharesOfEveryFormatMakeTheWhole) {
  Trial trial;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden")) {
    if (!std::filesystem::exists(entry.path() / "config.json") &&
        !std::filesystem::exists(entry.path() / "model.gguf"))
      continue;
    SCOPED_TRACE(entry.path().filename());
    const std::filesystem::path gguf = entry.path() / "model.gguf";
    const auto checkpoint = Checkpoint::Open(
        std::filesystem::exists(gguf) ? gguf.string() : entry.path().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto quantized = FindQuantizedModules(**checkpoint);
    ASSERT_TRUE(quantized.ok()) << quantized.status();
    CheckGptq(**checkpoint, *quantized, &trial);
    CheckScaled(**checkpoint, *quantized, &trial);
    CheckPlain(**checkpoint, &trial);
  }
  for (const char* format :
       {"gptq2", "gptq3", "gptq4", "gptq4 act-order", "gptq8", "awq4",
        "fp8 F8_E4M3", "compressed-tensors F8_E4M3", "compressed-tensors INT4",
        "compressed-tensors INT4 act-order", "compressed-tensors INT8",
        "mxfp4 F4_E2M1", "F32", "F16", "BF16"}) {
    for (const SplitAxis axis : {SplitAxis::kOutputs, SplitAxis::kInputs})
      EXPECT_GT((trial.counts[{format, axis}]), 0)
          << format << " along "
          << (axis == SplitAxis::kOutputs ? "outputs" : "inputs");
  }
}

// github.com/vllm-project/vllm/issues/7374: act-order on several devices gave
// nonsense. The inputs of a rank are in any groups: it has the scales of all,
// and the groups of its own inputs as they are in the whole.
TEST(TensorSplitTest, Vllm7374EveryRankHasTheScalesOfAllGroupsInActOrder) {
  const auto checkpoint =
      Checkpoint::Open(std::filesystem::path(QUIRE_SOURCE_DIR) /
                       "tests/golden/gptq-w4-act-order");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto quantized = FindQuantizedModules(**checkpoint);
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  size_t checked = 0;
  for (const GptqModule& module : quantized->gptq) {
    const auto group_of_input = ReadGroupIndex(**checkpoint, module);
    ASSERT_TRUE(group_of_input.ok()) << group_of_input.status();
    if (std::is_sorted(group_of_input->begin(), group_of_input->end()))
      continue;
    const auto shards = SplitLinear(**checkpoint, module,
                                    {.axis = SplitAxis::kInputs, .ranks = 2});
    ASSERT_TRUE(shards.ok()) << shards.status();
    std::vector<uint32_t> groups;
    for (const LinearShard& shard : *shards) {
      EXPECT_EQ(shard.groups, module.groups);
      EXPECT_EQ(shard.scales.size(), module.scales->size);
      EXPECT_EQ(shard.zeros.size(), module.qzeros->size);
      groups.insert(groups.end(), shard.group_of_input.begin(),
                    shard.group_of_input.end());
    }
    EXPECT_EQ(groups, *group_of_input);
    ++checked;
  }
  EXPECT_GT(checked, 0u);
}

// A checkpoint of one matrix, whose numbers are of no importance.
class OneMatrix {
 public:
  OneMatrix(std::vector<uint64_t> shape, const std::string& dtype) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> values(shape[0] * shape[1]);
    for (float& x : values) x = normal(random);
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    folder_.Write("model.safetensors",
                  FileOf({{"w.weight", {dtype, std::move(shape), bytes}}}));
    folder_.Write("config.json", "{}");
    auto opened = Checkpoint::Open(folder_.path());
    EXPECT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  PlainLinear Linear(std::optional<uint64_t> block = std::nullopt) const {
    return {checkpoint_->Find("w.weight"), nullptr, block};
  }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

// Rows [outputs, inputs] rounded: codes as one value for each input, scales.
struct Rounded {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};
Rounded Round(CodeKind kind, const ByteVector& bytes, uint64_t inputs) {
  Rounded rounded;
  const bool nf4 = kind == CodeKind::kNf4;
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  for (size_t at = 0; at < bytes.size() / sizeof(float); at += inputs) {
    std::vector<uint8_t> codes(inputs);
    std::vector<float> scales(
        nf4 ? (inputs + kNf4BlockColumns - 1) / kNf4BlockColumns : 1);
    EXPECT_TRUE(
        QuantizeRow(kind, values + at, inputs, codes.data(), scales.data()));
    for (uint64_t k = 0; k < inputs; ++k)
      rounded.codes.push_back(nf4 ? codes[k / 2] >> (k % 2 * 4) & 15
                                  : codes[k]);
    rounded.scales.insert(rounded.scales.end(), scales.begin(), scales.end());
  }
  return rounded;
}

TEST(TensorSplitTest, WhatIsRoundedAtLoadHasTheCodesOfTheWhole) {
  constexpr uint64_t kOutputs = 8;
  constexpr uint64_t kInputs = 256;
  const OneMatrix matrix({kOutputs, kInputs}, "F32");
  const Checkpoint& checkpoint = matrix.checkpoint();
  for (const CodeKind kind : {CodeKind::kInt8, CodeKind::kNf4}) {
    const PlainLinear linear =
        matrix.Linear(kind == CodeKind::kNf4 ? kNf4BlockColumns : kInputs);
    const Rounded whole = Round(kind, Read(checkpoint, linear.weight), kInputs);
    for (const SplitAxis axis : {SplitAxis::kOutputs, SplitAxis::kInputs}) {
      const auto shards =
          SplitLinear(checkpoint, linear, {.axis = axis, .ranks = 4});
      ASSERT_TRUE(shards.ok()) << shards.status();
      for (const LinearShard& shard : *shards) {
        const bool outputs = axis == SplitAxis::kOutputs;
        EXPECT_EQ(shard.rounded_first, kind == CodeKind::kInt8 && !outputs);
        const uint64_t read = shard.rounded_first ? kInputs : shard.in_features;
        const uint64_t skip = shard.rounded_first ? shard.begin : 0;
        const Rounded part = Round(kind, Read(checkpoint, shard.codes), read);
        for (uint64_t n = 0; n < shard.out_features; ++n) {
          for (uint64_t k = 0; k < shard.in_features; ++k) {
            const uint64_t row = outputs ? shard.begin + n : n;
            const uint64_t column = outputs ? k : shard.begin + k;
            const uint64_t part_blocks =
                part.scales.size() / (part.codes.size() / read);
            const uint64_t blocks = whole.scales.size() / kOutputs;
            ASSERT_EQ(part.codes[n * read + skip + k],
                      whole.codes[row * kInputs + column]);
            ASSERT_EQ(
                part.scales[n * part_blocks + (skip + k) * part_blocks / read],
                whole.scales[row * blocks + column * blocks / kInputs]);
          }
        }
      }
    }
  }
  // A block of 64 has one scale.
  const auto cut = SplitLinear(checkpoint, matrix.Linear(kNf4BlockColumns),
                               {.axis = SplitAxis::kInputs, .ranks = 8});
  EXPECT_TRUE(absl::IsInvalidArgument(cut.status()));
}

TEST(TensorSplitTest, BlocksOfGgufAreNotCut) {
  const OneMatrix any({1, 1}, "F32");
  TensorInfo tensor;
  tensor.name = "blk.0.ffn_down.weight";
  tensor.dtype = DType::kQ8_0;  // 32 inputs in 34 bytes
  tensor.shape = {6, 128};
  tensor.size = Bytes(6 * 4 * 34);
  const PlainLinear linear = {&tensor, nullptr, std::nullopt};
  const auto inputs = SplitLinear(any.checkpoint(), linear,
                                  {.axis = SplitAxis::kInputs, .ranks = 2});
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  const TensorSlice& second = (*inputs)[1].codes;
  EXPECT_EQ(second.offset, 2u * 34);
  EXPECT_EQ(second.run, 2u * 34);
  EXPECT_EQ(second.stride, 4u * 34);
  EXPECT_EQ(second.count, 6u);
  EXPECT_EQ((*inputs)[1].row_bytes, 2u * 34);
  const auto outputs = SplitLinear(any.checkpoint(), linear,
                                   {.axis = SplitAxis::kOutputs, .ranks = 3});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ((*outputs)[2].codes.offset, 4u * 4 * 34);
  EXPECT_EQ((*outputs)[2].codes.size(), Bytes(2 * 4 * 34));
  const auto cut = SplitLinear(any.checkpoint(), linear,
                               {.axis = SplitAxis::kInputs, .ranks = 8});
  EXPECT_TRUE(absl::IsInvalidArgument(cut.status())) << cut.status();
}

TEST(TensorSplitTest, SizesThatDoNotDivideAreRefusedWithTheNumbers) {
  const OneMatrix matrix({12, 20}, "F32");
  const struct {
    SplitRule rule;
    const char* text;
  } kCases[] = {
      {{SplitAxis::kOutputs, 5, 1}, "12 outputs have no equal shares for 5"},
      {{SplitAxis::kInputs, 3, 1}, "20 inputs have no equal shares for 3"},
      {{SplitAxis::kOutputs, 4, 6}, "a share of 3 is no multiple of 6"},
      {{SplitAxis::kOutputs, 0, 1}, "0 ranks"},
      {{SplitAxis::kOutputs, 2, 0}, "units of 0"},
  };
  for (const auto& c : kCases) {
    const auto shards =
        SplitLinear(matrix.checkpoint(), matrix.Linear(), c.rule);
    ASSERT_FALSE(shards.ok());
    EXPECT_NE(shards.status().message().find(c.text), std::string::npos)
        << shards.status();
    EXPECT_NE(shards.status().message().find("w.weight"), std::string::npos);
  }
  EXPECT_TRUE(SplitLinear(matrix.checkpoint(), matrix.Linear(),
                          {SplitAxis::kOutputs, 2, 6})
                  .ok());
}

}  // namespace
}  // namespace quire
