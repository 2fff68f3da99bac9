// GPTQ: rounds the weights of a linear layer one input at a time, and after
// each spreads the error over the inputs not yet rounded so that the layer's
// output changes least (Frantar et al. 2022, https://arxiv.org/abs/2210.17323,
// algorithm 1).

#ifndef QUIRE_MODEL_QUANTIZER_GPTQ_SOLVER_H_
#define QUIRE_MODEL_QUANTIZER_GPTQ_SOLVER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/quantizer/hessian.h"
#include "model/quantizer/quantization_grid.h"
#include "quire/model/thread_pool.h"

namespace quire {

struct SolverOptions {
  GridOptions grid;
  size_t group_size = 128;  // inputs that share a grid; 1 to in_features
  // Grids are fitted to consecutive inputs before anything is rounded, so that
  // act-order leaves the groups sequential.
  bool static_groups = false;
};

// A linear layer as codes.
struct QuantizedLinear {
  size_t in_features = 0;
  size_t out_features = 0;
  size_t groups = 0;
  std::vector<uint8_t> codes;            // [in_features, out_features]
  std::vector<QuantizationGrid> grids;   // [groups, out_features]
  std::vector<uint32_t> group_of_input;  // [in_features]

  float Value(size_t input, size_t output) const {
    return grids[group_of_input[input] * out_features + output].Value(
        codes[input * out_features + output]);
  }
};

// `weight` is [out_features, in_features], as torch stores it.
QuantizedLinear SolveGptq(const std::vector<float>& weight, size_t out_features,
                          size_t in_features, const HessianFactor& factor,
                          const SolverOptions& options, ThreadPool* pool);

// Host memory that each thread takes while it solves.
uint64_t SolverBytesPerThread(uint64_t in_features);

// Rounds every weight to the nearest value of its group's grid.
QuantizedLinear RoundToNearest(const std::vector<float>& weight,
                               size_t out_features, size_t in_features,
                               const SolverOptions& options, ThreadPool* pool);

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_GPTQ_SOLVER_H_
