// Tensor parallelism: shares of one matrix, by what its format allows to cut.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "loader/tensors_test_util.h"
#include "quire/loader/tensor_split.h"
#include "quire/model/ops.h"
#include "tests/tensor_split_numbers.h"

namespace quire {
namespace {

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

TEST(TensorSplitShapesTest, WhatIsRoundedAtLoadHasTheCodesOfTheWhole) {
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

TEST(TensorSplitShapesTest, BlocksOfGgufAreNotCut) {
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

TEST(TensorSplitShapesTest, SizesThatDoNotDivideAreRefusedWithTheNumbers) {
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
