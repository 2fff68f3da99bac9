// The curvature of a linear layer's output error, from the inputs it sees.
//
// For y = W x the squared error of a changed W is quadratic with the matrix
// H = 2 E[x x^T], the same for every output row (Frantar et al. 2022, GPTQ,
// https://arxiv.org/abs/2210.17323). The factor 2 cancels in everything that is
// computed from it and is left out.

#ifndef QUIRE_MODEL_QUANTIZER_HESSIAN_H_
#define QUIRE_MODEL_QUANTIZER_HESSIAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/model/thread_pool.h"

namespace quire {

// Host memory, by element of a Hessian: of a sum, while it is factored (its own
// among them), and of the factor.
inline constexpr uint64_t kHessianBytesPerElement = 8;
inline constexpr uint64_t kFactoringBytesPerElement = 16;
inline constexpr uint64_t kFactorBytesPerElement = 4;

// What accumulators need while they add: one does for all that add in turn.
struct HessianScratch {
  std::vector<float> transposed;
  std::vector<float> product;
};
uint64_t HessianScratchBytes(uint64_t features);

// Sums x x^T. Thread-compatible.
class HessianAccumulator {
 public:
  explicit HessianAccumulator(size_t features);

  // `input` is [tokens, features].
  void Add(const float* input, size_t tokens, HessianScratch* scratch,
           ThreadPool* pool);

  size_t features() const { return features_; }
  uint64_t tokens() const { return tokens_; }
  // [features, features]: the sum divided by the number of tokens. Gives up the
  // sum, which is most of what a layer takes.
  std::vector<double> TakeMean() &&;

 private:
  const size_t features_;
  uint64_t tokens_ = 0;
  std::vector<double> sum_;
};

// What the solver needs of a Hessian.
struct HessianFactor {
  // Inputs in the order of treatment: the i-th to be treated is order[i].
  std::vector<uint32_t> order;
  // Upper triangular U with U^T U = H^-1, in that order, row-major.
  std::vector<float> upper;
  // Inputs that were always zero: their weights do not matter.
  std::vector<bool> dead;
  double damping = 0;  // the part of the mean diagonal that was added
};

// Factors `hessian` [features, features] after adding `damping` times the mean
// of its diagonal to the diagonal; where rounding leaves it indefinite the
// damping is raised tenfold, three times. `act_order` treats the inputs with
// the largest diagonal first. The error names `module`.
absl::StatusOr<HessianFactor> FactorHessian(std::vector<double> hessian,
                                            size_t features, double damping,
                                            bool act_order,
                                            const std::string& module);

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_HESSIAN_H_
