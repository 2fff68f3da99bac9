#include "model/quantizer/hessian.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

// Tokens that are multiplied in float32 before they are added in double.
constexpr size_t kTokensPerProduct = 256;
constexpr int kDampingAttempts = 4;

using Matrix =
    Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

HessianAccumulator::HessianAccumulator(size_t features)
    : features_(features), sum_(features * features) {}

void HessianAccumulator::Add(const float* input, size_t tokens,
                             ThreadPool* pool) {
  for (size_t at = 0; at < tokens; at += kTokensPerProduct) {
    const size_t count = std::min(kTokensPerProduct, tokens - at);
    // X^T is both the weight and the input of one matrix product: X^T X.
    transposed_.resize(features_ * count);
    product_.resize(features_ * features_);
    for (size_t t = 0; t < count; ++t) {
      const float* row = input + (at + t) * features_;
      for (size_t k = 0; k < features_; ++k)
        transposed_[k * count + t] = row[k];
    }
    MatMul(DenseMatrix{.data = transposed_.data(),
                       .dtype = DType::kF32,
                       .out_features = features_,
                       .in_features = count},
           transposed_.data(), features_, product_.data(), pool);
    for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += product_[i];
  }
  tokens_ += tokens;
}

std::vector<double> HessianAccumulator::Mean() const {
  std::vector<double> mean = sum_;
  const double scale =
      1.0 / static_cast<double>(std::max<uint64_t>(tokens_, 1));
  for (double& value : mean) value *= scale;
  return mean;
}

absl::StatusOr<HessianFactor> FactorHessian(std::vector<double> hessian,
                                            size_t features, double damping,
                                            bool act_order,
                                            const std::string& module) {
  const auto n = static_cast<Eigen::Index>(features);
  const Eigen::Map<Matrix> given(hessian.data(), n, n);
  if (!given.allFinite())
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
  Matrix reversed(n, n);
  for (Eigen::Index i = 0; i < n; ++i) {
    const uint32_t row = factor.order[static_cast<size_t>(n - 1 - i)];
    for (Eigen::Index j = 0; j < n; ++j)
      reversed(i, j) = given(row, factor.order[static_cast<size_t>(n - 1 - j)]);
  }
  const double mean_diagonal = reversed.trace() / static_cast<double>(n);
  factor.damping = damping;
  for (int attempt = 0; attempt < kDampingAttempts; ++attempt) {
    Matrix damped = reversed;
    damped.diagonal().array() += factor.damping * mean_diagonal;
    const Eigen::LLT<Matrix> cholesky(damped);
    if (cholesky.info() == Eigen::Success) {
      const Matrix inverse = cholesky.matrixL().solve(Matrix::Identity(n, n));
      factor.upper.resize(features * features);
      for (size_t i = 0; i < features; ++i) {
        for (size_t j = i; j < features; ++j)
          factor.upper[i * features + j] =
              static_cast<float>(inverse(n - 1 - static_cast<Eigen::Index>(i),
                                         n - 1 - static_cast<Eigen::Index>(j)));
      }
      return factor;
    }
    factor.damping = std::max(factor.damping, 1e-3) * 10;
  }
  return absl::InternalError(absl::StrCat(
      module, ": the Hessian of its inputs has no Cholesky factor, even with ",
      factor.damping / 10, " of its mean diagonal added"));
}

}  // namespace quire
