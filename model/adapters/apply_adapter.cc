#include "model/adapters/apply_adapter.h"

#include <algorithm>

#include "quire/model/ops.h"

namespace quire {
namespace {

// output[t] += scale * (b low_rank[t] + bias), a slice of b at a time, so that
// the scratch does not grow with the outputs.
void AddProduct(const LowRankProduct& product, const ProductScratch& scratch,
                size_t tokens, float* output, ThreadPool* pool) {
  const size_t outputs = product.b.out_features;
  const size_t row_bytes =
      BytesOf(product.b.dtype, product.b.in_features)->value();
  const size_t element_bytes = BytesOf(product.bias.dtype, 1)->value();
  for (size_t first = 0; first < outputs; first += ProductScratch::kColumns) {
    const size_t count = std::min(ProductScratch::kColumns, outputs - first);
    DenseMatrix slice = product.b;
    slice.data =
        static_cast<const std::byte*>(product.b.data) + first * row_bytes;
    slice.out_features = count;
    MatMul(slice, scratch.low_rank, tokens, scratch.part, pool);
    if (product.bias.data != nullptr)
      AddBias(static_cast<const std::byte*>(product.bias.data) +
                  first * element_bytes,
              product.bias.dtype, tokens, count, scratch.part);
    for (size_t t = 0; t < tokens; ++t) {
      float* const target = output + t * outputs + first;
      const float* const part = scratch.part + t * count;
      for (size_t i = 0; i < count; ++i) target[i] += product.scale * part[i];
    }
  }
}

// Element (row, column) of a plain matrix is needed for few columns at a time:
// an embedding's, one for each token.
float ElementAt(const DenseMatrix& matrix, size_t row, size_t column) {
  const size_t element_bytes = BytesOf(matrix.dtype, 1)->value();
  const DenseMatrix element = {
      .data = static_cast<const std::byte*>(matrix.data) +
              (row * matrix.in_features + column) * element_bytes,
      .dtype = matrix.dtype,
      .out_features = 1,
      .in_features = 1};
  float value = 0;
  DequantizeRow(element, 0, &value);
  return value;
}

}  // namespace

void ApplyAdaptedLinear(
    const Linear& base, std::span<const AdapterRun> runs,
    absl::FunctionRef<const LinearAdapter&(const AdapterWeights&)> select,
    const float* input, size_t tokens, float* output, ThreadPool* pool) {
  if (runs.empty()) return ApplyLinear(base, input, tokens, output, pool);
  const size_t inputs = base.in_features();
  const size_t outputs = base.out_features();
  size_t begin = 0;  // of rows that wait for the base's matrix
  const auto catch_up = [&](size_t end) {
    if (begin < end)
      ApplyMatrix(base, input + begin * inputs, end - begin,
                  output + begin * outputs, pool);
  };
  for (const AdapterRun& run : runs) {
    if (run.adapter == nullptr) continue;
    const DenseMatrix& own = select(run.adapter->weights()).weight;
    if (own.data == nullptr) continue;
    catch_up(run.first);
    MatMul(own, input + run.first * inputs, run.count,
           output + run.first * outputs, pool);
    begin = run.first + run.count;
  }
  catch_up(tokens);

  for (const AdapterRun& run : runs) {
    float* const target = output + run.first * outputs;
    const LinearAdapter* const linear =
        run.adapter == nullptr ? nullptr : &select(run.adapter->weights());
    const bool own_bias = linear != nullptr && linear->bias.data != nullptr;
    const ParameterVector& bias = own_bias ? linear->bias : base.bias;
    if (bias.data != nullptr)
      AddBias(bias.data, bias.dtype, run.count, outputs, target);
    if (linear == nullptr || linear->product.a.data == nullptr) continue;
    const ProductScratch& scratch = run.adapter->scratch();
    MatMul(linear->product.a, input + run.first * inputs, run.count,
           scratch.low_rank, pool);
    AddProduct(linear->product, scratch, run.count, target, pool);
  }
}

void ApplyAdaptedNorm(
    const ParameterVector& base, std::span<const AdapterRun> runs,
    absl::FunctionRef<const ParameterVector&(const AdapterWeights&)> select,
    const NormShape& shape, const float* input, size_t tokens, float* output,
    ThreadPool* pool) {
  const auto apply = [&](const ParameterVector& norm, size_t first,
                         size_t count) {
    const size_t offset = first * shape.rows_per_token * shape.features;
    RmsNorm(input + offset, norm.data, norm.dtype, shape.epsilon,
            count * shape.rows_per_token, shape.features, output + offset,
            pool);
  };
  if (runs.empty()) return apply(base, 0, tokens);
  for (const AdapterRun& run : runs) {
    const ParameterVector* norm = &base;
    if (run.adapter != nullptr) {
      const ParameterVector& own = select(run.adapter->weights());
      if (own.data != nullptr) norm = &own;
    }
    apply(*norm, run.first, run.count);
  }
}

void EmbedToken(const DenseMatrix& base, size_t row, const Adapter* adapter,
                size_t token, float* output, ThreadPool* pool) {
  if (adapter == nullptr) return DequantizeRow(base, row, output);
  const LinearAdapter& embedding = adapter->weights().embedding;
  if (embedding.weight.data != nullptr)
    DequantizeRow(embedding.weight, token, output);
  else
    DequantizeRow(base, row, output);
  const LowRankProduct& product = embedding.product;
  if (product.a.data == nullptr) return;
  for (size_t r = 0; r < product.a.out_features; ++r)
    adapter->scratch().low_rank[r] = ElementAt(product.a, r, token);
  AddProduct(product, adapter->scratch(), 1, output, pool);
}

}  // namespace quire
