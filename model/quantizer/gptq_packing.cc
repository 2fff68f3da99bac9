#include "model/quantizer/gptq_packing.h"

#include <utility>

namespace quire {
namespace {

// Adds code i of a bit string whose word w is words[w * stride].
void PutCode(uint32_t* words, size_t stride, int bits, size_t index,
             uint32_t code) {
  const size_t bit = index * static_cast<size_t>(bits);
  const size_t shift = bit % 32;
  words[bit / 32 * stride] |= code << shift;
  // 3-bit codes straddle words.
  if (shift + static_cast<size_t>(bits) > 32)
    words[(bit / 32 + 1) * stride] |= code >> (32 - shift);
}

}  // namespace

PackedLinear PackLinear(const QuantizedLinear& linear, int bits,
                        uint32_t zero_offset) {
  const size_t n = linear.out_features;
  const uint32_t mask = (1u << bits) - 1;
  PackedLinear packed;
  packed.bits = bits;
  packed.in_features = linear.in_features;
  packed.out_features = n;
  packed.groups = linear.groups;
  packed.g_idx = linear.group_of_input;
  packed.qweight.resize(PackedWords(linear.in_features, bits) * n);
  for (size_t k = 0; k < linear.in_features; ++k) {
    for (size_t i = 0; i < n; ++i)
      PutCode(&packed.qweight[i], n, bits, k, linear.codes[k * n + i]);
  }
  const size_t zero_words = PackedWords(n, bits);
  packed.qzeros.resize(linear.groups * zero_words);
  packed.scales.resize(linear.groups * n);
  for (size_t g = 0; g < linear.groups; ++g) {
    for (size_t i = 0; i < n; ++i) {
      const QuantizationGrid& grid = linear.grids[g * n + i];
      PutCode(&packed.qzeros[g * zero_words], 1, bits, i,
              (grid.zero - zero_offset) & mask);
      packed.scales[g * n + i] = HalfBits(grid.scale);
    }
  }
  return packed;
}

PackedLinearView::PackedLinearView(PackedLinear packed, uint32_t zero_offset,
                                   ThreadPool* pool)
    : packed_(std::move(packed)),
      zero_offset_(zero_offset),
      rows_(SortRowsByGroup(packed_.g_idx, packed_.groups)) {
  if (!rows_.order.empty())
    PermutePackedRows(packed_.qweight.data(), packed_.bits, packed_.in_features,
                      packed_.out_features, rows_.order.data(), pool);
}

GptqMatrix PackedLinearView::matrix() const {
  return {.bits = packed_.bits,
          .in_features = packed_.in_features,
          .out_features = packed_.out_features,
          .groups = packed_.groups,
          .qweight = packed_.qweight.data(),
          .qzeros = packed_.qzeros.data(),
          .scales = packed_.scales.data(),
          .scales_dtype = DType::kF16,
          .zero_offset = zero_offset_,
          .group_begin = rows_.begin.data(),
          .input_order = rows_.order.empty() ? nullptr : rows_.order.data()};
}

}  // namespace quire
