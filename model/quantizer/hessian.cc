#include "model/quantizer/hessian.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/units.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

// Tokens that are multiplied in float32 before they are added in double.
constexpr size_t kTokensPerProduct = 256;
constexpr int kDampingAttempts = 4;

using Matrix =
    Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// matrix[i][j] becomes matrix[from[i]][from[j]], in the memory of the matrix
// and two rows.
void Permute(std::vector<double>* matrix, const std::vector<uint32_t>& from) {
  const size_t n = from.size();
  const auto row = [&](size_t i) {
    return matrix->begin() + static_cast<std::ptrdiff_t>(i * n);
  };
  std::vector<double> saved(n);
  std::vector<bool> done(n);
  for (size_t start = 0; start < n; ++start) {
    if (done[start]) continue;
    // Around a cycle, each row takes the place of the one before it.
    std::copy_n(row(start), n, saved.begin());
    size_t i = start;
    for (; from[i] != start; i = from[i]) {
      std::copy_n(row(from[i]), n, row(i));
      done[i] = true;
    }
    std::copy_n(saved.begin(), n, row(i));
    done[i] = true;
  }
  for (size_t i = 0; i < n; ++i) {
    std::copy_n(row(i), n, saved.begin());
    for (size_t j = 0; j < n; ++j)
      row(i)[static_cast<std::ptrdiff_t>(j)] = saved[from[j]];
  }
}

}  // namespace

uint64_t HessianScratchBytes(uint64_t features) {
  const uint64_t rows = SaturatingAdd(features, uint64_t{kTokensPerProduct});
  return CheckedMultiply(CheckedMultiply(features, rows).value_or(UINT64_MAX),
                         uint64_t{sizeof(float)})
      .value_or(UINT64_MAX);
}

HessianAccumulator::HessianAccumulator(size_t features)
    : features_(features), sum_(features * features) {}

void HessianAccumulator::Add(const float* input, size_t tokens,
                             HessianScratch* scratch, ThreadPool* pool) {
  for (size_t at = 0; at < tokens; at += kTokensPerProduct) {
    const size_t count = std::min(kTokensPerProduct, tokens - at);
    // X^T is both the weight and the input of one matrix product: X^T X.
    scratch->transposed.resize(features_ * count);
    scratch->product.resize(features_ * features_);
    for (size_t t = 0; t < count; ++t) {
      const float* row = input + (at + t) * features_;
      for (size_t k = 0; k < features_; ++k)
        scratch->transposed[k * count + t] = row[k];
    }
    MatMul(DenseMatrix{.data = scratch->transposed.data(),
                       .dtype = DType::kF32,
                       .out_features = features_,
                       .in_features = count},
           scratch->transposed.data(), features_, scratch->product.data(),
           pool);
    for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += scratch->product[i];
  }
  tokens_ += tokens;
}

std::vector<double> HessianAccumulator::TakeMean() && {
  const double scale =
      1.0 / static_cast<double>(std::max<uint64_t>(tokens_, 1));
  for (double& value : sum_) value *= scale;
  return std::move(sum_);
}

absl::StatusOr<HessianFactor> FactorHessian(std::vector<double> hessian,
                                            size_t features, double damping,
                                            bool act_order,
                                            const std::string& module) {
  const auto n = static_cast<Eigen::Index>(features);
  Eigen::Map<Matrix> matrix(hessian.data(), n, n);
  if (!matrix.allFinite())
    return absl::InvalidArgumentError(absl::StrCat(
        module, ": its inputs are not all finite during calibration"));
  HessianFactor factor;
  factor.dead.resize(features);
  for (size_t i = 0; i < features; ++i) {
    double& diagonal = hessian[i * features + i];
    factor.dead[i] = diagonal == 0;
    if (factor.dead[i]) diagonal = 1;
  }
  factor.order.resize(features);
  std::iota(factor.order.begin(), factor.order.end(), 0u);
  if (act_order)
    std::stable_sort(
        factor.order.begin(), factor.order.end(), [&](uint32_t a, uint32_t b) {
          return hessian[a * features + a] > hessian[b * features + b];
        });

  // With J the reversal of rows, J H J = L L^T gives H = R R^T for the upper
  // triangular R = J L J, and so H^-1 = R^-T R^-1: U is R^-1 = J L^-1 J. One
  // factorisation and one triangular inverse instead of two and one.
  Permute(&hessian, {factor.order.rbegin(), factor.order.rend()});
  const double mean_diagonal = matrix.trace() / static_cast<double>(n);
  const Eigen::VectorXd diagonal = matrix.diagonal();
  factor.damping = damping;
  for (int attempt = 0; attempt < kDampingAttempts; ++attempt) {
    matrix.diagonal() = diagonal;
    matrix.diagonal().array() += factor.damping * mean_diagonal;
    // In place, into the lower triangle.
    Eigen::LLT<Eigen::Ref<Matrix>> cholesky(matrix);
    if (cholesky.info() == Eigen::Success) {
      Matrix inverse = Matrix::Identity(n, n);
      cholesky.matrixL().solveInPlace(inverse);
      hessian = {};  // in whose place comes the factor
      factor.upper.resize(features * features);
      for (size_t i = 0; i < features; ++i) {
        for (size_t j = i; j < features; ++j)
          factor.upper[i * features + j] =
              static_cast<float>(inverse(n - 1 - static_cast<Eigen::Index>(i),
                                         n - 1 - static_cast<Eigen::Index>(j)));
      }
      return factor;
    }
    // The upper triangle still has what the attempt has overwritten below.
    for (Eigen::Index i = 0; i < n; ++i)
      for (Eigen::Index j = 0; j < i; ++j) matrix(i, j) = matrix(j, i);
    factor.damping = std::max(factor.damping, 1e-3) * 10;
  }
  return absl::InternalError(absl::StrCat(
      module, ": the Hessian of its inputs has no Cholesky factor, even with ",
      factor.damping / 10, " of its mean diagonal added"));
}

}  // namespace quire
