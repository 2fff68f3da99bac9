// Inputs of a dense product, with zeros behind each token up to a whole block:
// vectors may then run past a row's end.

#ifndef QUIRE_MODEL_OPS_PADDED_INPUT_H_
#define QUIRE_MODEL_OPS_PADDED_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace quire {

inline constexpr size_t kInputBlock = 32;

// A view of `input` where its tokens are whole blocks already, a copy else.
class PaddedInput {
 public:
  // `input` [tokens, columns] outlives this.
  PaddedInput(const float* input, size_t tokens, size_t columns)
      : values_(input),
        stride_((columns + kInputBlock - 1) / kInputBlock * kInputBlock) {
    if (stride_ == columns) return;
    copy_.resize(stride_ * tokens);
    for (size_t t = 0; t < tokens; ++t)
      std::copy_n(input + t * columns, columns, copy_.data() + t * stride_);
    values_ = copy_.data();
  }
  PaddedInput(const PaddedInput&) = delete;
  PaddedInput& operator=(const PaddedInput&) = delete;

  const float* values() const { return values_; }
  size_t stride() const { return stride_; }  // elements from token to token

 private:
  const float* values_;
  size_t stride_;
  std::vector<float> copy_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_PADDED_INPUT_H_
