// Linears, norms and the embedding over a batch whose rows use several
// adapters.

#ifndef QUIRE_MODEL_ADAPTERS_APPLY_ADAPTER_H_
#define QUIRE_MODEL_ADAPTERS_APPLY_ADAPTER_H_

#include <cstddef>
#include <span>

#include "absl/functional/function_ref.h"
#include "model/adapters/adapter.h"
#include "quire/model/model_weights.h"
#include "quire/model/thread_pool.h"

namespace quire {

// Rows [first, first + count) of a batch, computed with one adapter.
struct AdapterRun {
  size_t first;
  size_t count;
  const Adapter* adapter;  // null: the base model
};

// output = linear(input) over `tokens` rows: the base's matrix over all rows
// together, as far as no adapter has its own, and what `select` finds in each
// adapter over the rows of it. `runs` are all rows, in order, or none at all
// where no adapter is used.
void ApplyAdaptedLinear(
    const Linear& base, std::span<const AdapterRun> runs,
    absl::FunctionRef<const LinearAdapter&(const AdapterWeights&)> select,
    const float* input, size_t tokens, float* output, ThreadPool* pool);

struct NormShape {
  float epsilon;
  size_t features;
  size_t rows_per_token = 1;  // that are normalised by themselves
};
// RmsNorm, in place or not, with the base's weights or an adapter's own.
void ApplyAdaptedNorm(
    const ParameterVector& base, std::span<const AdapterRun> runs,
    absl::FunctionRef<const ParameterVector&(const AdapterWeights&)> select,
    const NormShape& shape, const float* input, size_t tokens, float* output,
    ThreadPool* pool);

// The row of one token, which is row `row` of `base`. `adapter` null: the base
// model's.
void EmbedToken(const DenseMatrix& base, size_t row, const Adapter* adapter,
                size_t token, float* output, ThreadPool* pool);

}  // namespace quire

#endif  // QUIRE_MODEL_ADAPTERS_APPLY_ADAPTER_H_
