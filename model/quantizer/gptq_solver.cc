#include "model/quantizer/gptq_solver.h"

#include <algorithm>

#include "quire/alloc/units.h"

namespace quire {
namespace {

// Output rows are independent of each other, so a thread takes some and goes
// through all inputs with them: its share of the weights stays in cache.
constexpr size_t kRowsPerTask = 32;
// Inputs whose errors are gathered before they are spread over the rest.
constexpr size_t kBlock = 128;

QuantizedLinear Prepare(size_t out_features, size_t in_features,
                        size_t group_size) {
  QuantizedLinear result;
  result.in_features = in_features;
  result.out_features = out_features;
  result.groups = (in_features + group_size - 1) / group_size;
  result.codes.resize(in_features * out_features);
  result.grids.resize(result.groups * out_features);
  result.group_of_input.resize(in_features);
  return result;
}

// GPTQ over the output rows [begin, end).
class RowSolver {
 public:
  RowSolver(const std::vector<float>& weight, const HessianFactor& factor,
            const SolverOptions& options, size_t begin, size_t end,
            QuantizedLinear* result)
      : factor_(factor),
        options_(options),
        begin_(begin),
        rows_(end - begin),
        columns_(result->in_features),
        result_(*result),
        work_(rows_ * columns_),
        errors_(rows_ * kBlock),
        group_(options.group_size) {
    // Transposed and in the order of treatment: the inner loops run over rows.
    for (size_t i = 0; i < columns_; ++i) {
      const uint32_t column = factor_.order[i];
      if (factor_.dead[column]) continue;  // stays zero
      for (size_t r = 0; r < rows_; ++r)
        work_[i * rows_ + r] = weight[(begin_ + r) * columns_ + column];
    }
  }

  void Solve() {
    if (options_.static_groups) FitStaticGroups();
    for (size_t block = 0; block < columns_; block += kBlock) {
      const size_t end = std::min(block + kBlock, columns_);
      for (size_t i = block; i < end; ++i) RoundColumn(i, block, end);
      for (size_t j = end; j < columns_; ++j) {
        for (size_t i = block; i < end; ++i)
          Spread(upper(i, j), &errors_[(i - block) * rows_], j);
      }
    }
  }

 private:
  float upper(size_t i, size_t j) const {
    return factor_.upper[i * columns_ + j];
  }

  void Spread(float weight, const float* error, size_t column) {
    float* target = &work_[column * rows_];
    for (size_t r = 0; r < rows_; ++r) target[r] -= weight * error[r];
  }

  QuantizationGrid& grid(size_t group, size_t row) {
    return result_.grids[group * result_.out_features + begin_ + row];
  }

  // Of consecutive inputs, before any error was spread.
  void FitStaticGroups() {
    std::vector<uint32_t> place(columns_);
    for (size_t i = 0; i < columns_; ++i)
      place[factor_.order[i]] = static_cast<uint32_t>(i);
    for (size_t g = 0; g < result_.groups; ++g) {
      const size_t from = g * options_.group_size;
      const size_t to = std::min(from + options_.group_size, columns_);
      for (size_t r = 0; r < rows_; ++r) {
        for (size_t k = from; k < to; ++k)
          group_[k - from] = work_[place[k] * rows_ + r];
        grid(g, r) = FitGrid({group_.data(), to - from}, options_.grid);
      }
    }
  }

  // Of the inputs treated from `first` on, as they are by now.
  void FitGroup(size_t group, size_t first) {
    const size_t to = std::min(first + options_.group_size, columns_);
    for (size_t r = 0; r < rows_; ++r) {
      for (size_t i = first; i < to; ++i)
        group_[i - first] = work_[i * rows_ + r];
      grid(group, r) = FitGrid({group_.data(), to - first}, options_.grid);
    }
  }

  void RoundColumn(size_t i, size_t block, size_t block_end) {
    const uint32_t column = factor_.order[i];
    const size_t group =
        (options_.static_groups ? column : i) / options_.group_size;
    if (!options_.static_groups && i % options_.group_size == 0)
      FitGroup(group, i);
    const uint32_t max_code = (1u << options_.grid.bits) - 1;
    float* error = &errors_[(i - block) * rows_];
    for (size_t r = 0; r < rows_; ++r) {
      const float weight = work_[i * rows_ + r];
      const QuantizationGrid& g = grid(group, r);
      const uint32_t code = g.Code(weight, max_code);
      result_.codes[column * result_.out_features + begin_ + r] =
          static_cast<uint8_t>(code);
      error[r] = (weight - g.Value(code)) / upper(i, i);
    }
    for (size_t j = i + 1; j < block_end; ++j) Spread(upper(i, j), error, j);
  }

  const HessianFactor& factor_;
  const SolverOptions& options_;
  const size_t begin_;
  const size_t rows_;
  const size_t columns_;
  QuantizedLinear& result_;
  std::vector<float> work_;    // [columns in order of treatment, rows]
  std::vector<float> errors_;  // [kBlock, rows]
  std::vector<float> group_;   // scratch
};

}  // namespace

QuantizedLinear SolveGptq(const std::vector<float>& weight, size_t out_features,
                          size_t in_features, const HessianFactor& factor,
                          const SolverOptions& options, ThreadPool* pool) {
  QuantizedLinear result =
      Prepare(out_features, in_features, options.group_size);
  for (size_t i = 0; i < in_features; ++i) {
    const size_t place = options.static_groups ? factor.order[i] : i;
    result.group_of_input[factor.order[i]] =
        static_cast<uint32_t>(place / options.group_size);
  }
  pool->ParallelFor(out_features, kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += kRowsPerTask)
      RowSolver(weight, factor, options, at, std::min(at + kRowsPerTask, end),
                &result)
          .Solve();
  });
  return result;
}

uint64_t SolverBytesPerThread(uint64_t in_features) {
  return CheckedMultiply(SaturatingAdd(in_features, uint64_t{kBlock}),
                         uint64_t{kRowsPerTask * sizeof(float)})
      .value_or(UINT64_MAX);
}

QuantizedLinear RoundToNearest(const std::vector<float>& weight,
                               size_t out_features, size_t in_features,
                               const SolverOptions& options, ThreadPool* pool) {
  QuantizedLinear result =
      Prepare(out_features, in_features, options.group_size);
  for (size_t k = 0; k < in_features; ++k)
    result.group_of_input[k] = static_cast<uint32_t>(k / options.group_size);
  const uint32_t max_code = (1u << options.grid.bits) - 1;
  pool->ParallelFor(out_features, kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t n = begin; n < end; ++n) {
      const float* row = &weight[n * in_features];
      for (size_t g = 0; g < result.groups; ++g) {
        const size_t from = g * options.group_size;
        const size_t to = std::min(from + options.group_size, in_features);
        const QuantizationGrid grid =
            FitGrid({row + from, to - from}, options.grid);
        result.grids[g * out_features + n] = grid;
        for (size_t k = from; k < to; ++k)
          result.codes[k * out_features + n] =
              static_cast<uint8_t>(grid.Code(row[k], max_code));
      }
    }
  });
  return result;
}

}  // namespace quire
