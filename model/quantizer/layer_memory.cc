#include "model/quantizer/layer_memory.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "model/quantizer/gptq_solver.h"
#include "model/quantizer/hessian.h"
#include "model/quantizer/layer_quantizer.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

uint64_t Product(std::initializer_list<uint64_t> factors) {
  uint64_t product = 1;
  for (const uint64_t factor : factors)
    product = CheckedMultiply(product, factor).value_or(UINT64_MAX);
  return product;
}

uint64_t Sum(std::initializer_list<uint64_t> terms) {
  uint64_t sum = 0;
  for (const uint64_t term : terms) sum = SaturatingAdd(sum, term);
  return sum;
}

struct Shape {
  uint64_t in, out, groups;
};

uint64_t WeightBytes(const Shape& s) { return Product({4, s.in, s.out}); }

// Codes, one a byte, and grids.
uint64_t SolvedBytes(const Shape& s) {
  return Sum({Product({s.in, s.out}),
              Product({sizeof(QuantizationGrid), s.groups, s.out})});
}

uint64_t PackedBytes(const Shape& s, int bits) {
  return Sum({Product({4, PackedWords(s.in, bits), s.out}),
              Product({4, s.groups, PackedWords(s.out, bits)}),
              Product({2, s.groups, s.out})});
}

}  // namespace

Bytes LayerMemory(const ModelConfig& config, const QuantizeOptions& options,
                  int threads) {
  const bool calibrated = options.method == QuantizeMethod::kGptq;
  const std::array<uint64_t, kLinearInputs> inputs = InputSizes(config);
  // Sums of the inputs from `first` on.
  const auto sums = [&](size_t first) {
    uint64_t total = 0;
    for (size_t i = first; i < inputs.size() && calibrated; ++i)
      total = SaturatingAdd(
          total, Product({kHessianBytesPerElement, inputs[i], inputs[i]}));
    return total;
  };
  uint64_t peak = 0;
  if (calibrated) {
    const uint64_t widest = *std::max_element(inputs.begin(), inputs.end());
    peak = Sum({sums(0), HessianScratchBytes(widest)});
  }
  uint64_t packed = 0;
  for (const LayerLinear& entry : LayerLinears()) {
    const auto input = static_cast<size_t>(entry.input);
    const uint64_t in = inputs[input];
    const uint64_t group =
        options.group_size < 0
            ? in
            : std::min<uint64_t>(static_cast<uint64_t>(options.group_size), in);
    const Shape shape = {in, entry.out_features(config),
                         (in + group - 1) / group};
    const uint64_t kept = Sum({packed, sums(input + 1)});
    uint64_t factor = 0;
    if (calibrated) {
      peak = std::max(
          peak, Sum({kept, Product({kFactoringBytesPerElement, in, in})}));
      factor = Product({kFactorBytesPerElement, in, in});
    }
    const uint64_t solving = Sum(
        {WeightBytes(shape), SolvedBytes(shape),
         Product({static_cast<uint64_t>(threads), SolverBytesPerThread(in)})});
    const uint64_t packing =
        Sum({SolvedBytes(shape), PackedBytes(shape, options.bits)});
    peak = std::max(peak, Sum({kept, factor, std::max(solving, packing)}));
    packed = SaturatingAdd(packed, PackedBytes(shape, options.bits));
  }
  return Bytes(peak);
}

}  // namespace quire
