#include "model/quantizer/gptq_packing.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace quire {
namespace {

// Bit `index` of a little-endian bit string of words that are `stride` apart.
uint32_t Bit(const uint32_t* words, size_t stride, size_t index) {
  return words[index / 32 * stride] >> (index % 32) & 1;
}

uint32_t Code(const uint32_t* words, size_t stride, int bits, size_t index) {
  uint32_t code = 0;
  for (int b = 0; b < bits; ++b)
    code |= Bit(words, stride,
                index * static_cast<size_t>(bits) + static_cast<size_t>(b))
            << b;
  return code;
}

QuantizedLinear RandomLinear(size_t in, size_t out, size_t group_size, int bits,
                             bool shuffled) {
  std::mt19937 random(11);
  QuantizedLinear linear;
  linear.in_features = in;
  linear.out_features = out;
  linear.groups = (in + group_size - 1) / group_size;
  linear.codes.resize(in * out);
  for (uint8_t& code : linear.codes)
    code = static_cast<uint8_t>(random() % (1u << bits));
  linear.grids.resize(linear.groups * out);
  for (QuantizationGrid& grid : linear.grids)
    grid = {.scale = RoundToHalf(1e-3f * static_cast<float>(1 + random() % 99)),
            .zero = static_cast<uint32_t>(random() % (1u << bits))};
  for (size_t k = 0; k < in; ++k)
    linear.group_of_input.push_back(static_cast<uint32_t>(k / group_size));
  if (shuffled)
    std::shuffle(linear.group_of_input.begin(), linear.group_of_input.end(),
                 random);
  return linear;
}

class GptqPackingTest
    : public testing::TestWithParam<std::tuple<int, uint32_t>> {};

TEST_P(GptqPackingTest, EveryFieldIsWhereTheFormatSays) {
  const auto [bits, zero_offset] = GetParam();
  const QuantizedLinear linear = RandomLinear(45, 13, 16, bits, false);
  const PackedLinear packed = PackLinear(linear, bits, zero_offset);
  ASSERT_EQ(packed.qweight.size(),
            (45u * static_cast<size_t>(bits) + 31) / 32 * 13);
  for (size_t k = 0; k < 45; ++k)
    for (size_t n = 0; n < 13; ++n)
      EXPECT_EQ(Code(&packed.qweight[n], 13, bits, k),
                linear.codes[k * 13 + n]);
  const size_t zero_words = (13u * static_cast<size_t>(bits) + 31) / 32;
  ASSERT_EQ(packed.qzeros.size(), 3 * zero_words);
  for (size_t g = 0; g < 3; ++g) {
    for (size_t n = 0; n < 13; ++n) {
      const uint32_t stored = Code(&packed.qzeros[g * zero_words], 1, bits, n);
      EXPECT_EQ((stored + zero_offset) % (1u << bits),
                linear.grids[g * 13 + n].zero);
    }
  }
}

// The host op reads what was packed: the product is that of the values.
TEST_P(GptqPackingTest, MatMulOverTheViewGivesTheValues) {
  const auto [bits, zero_offset] = GetParam();
  for (const bool shuffled : {false, true}) {
    const QuantizedLinear linear = RandomLinear(64, 40, 32, bits, shuffled);
    ThreadPool pool(1);
    const PackedLinearView view(PackLinear(linear, bits, zero_offset),
                                zero_offset, &pool);
    std::vector<float> input(64);
    for (size_t k = 0; k < input.size(); ++k)
      input[k] = static_cast<float>(k % 7) - 3;
    std::vector<float> output(40);
    MatMul(view.matrix(), input.data(), 1, output.data(), &pool);
    for (size_t n = 0; n < output.size(); ++n) {
      double expected = 0;
      for (size_t k = 0; k < input.size(); ++k)
        expected += double{input[k]} * linear.Value(k, n);
      EXPECT_NEAR(output[n], expected,
                  1e-4 * std::max(1.0, std::abs(expected)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(BitsAndOffsets, GptqPackingTest,
                         testing::Combine(testing::Values(2, 3, 4, 8),
                                          testing::Values(0u, 1u)));

}  // namespace
}  // namespace quire
