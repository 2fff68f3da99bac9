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
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "loader/streaming_test_util.h"
#include "quire/loader/quantization.h"
#include "tests/tensor_split_numbers.h"

namespace quire {
namespace {

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

}  // namespace
}  // namespace quire
