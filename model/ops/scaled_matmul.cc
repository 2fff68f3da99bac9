// Linear layers of codes with scales: MatMul(ScaledMatrix).
//
// Rows are decoded to float32 a panel at a time and multiplied as dense rows
// are, with one token too: the form of an output element is that of
// dense_matmul.cc, whatever the number of tokens.

#include <algorithm>
#include <cstddef>

#include "model/ops/padded_input.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/scaled_matmul.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.h:
#include <hwy/highway.h>

#include "model/ops/dense_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {

void MatMulScaledEntry(const ScaledMatrix& weight, const float* input,
                       size_t stride, size_t tokens, float* output,
                       ThreadPool* pool) {
  pool->ParallelFor(
      weight.out_features, PanelGrain(weight.out_features, pool->threads()),
      [&](size_t begin, size_t end) HWY_ATTR {
        MatMulPanels(end - begin, weight.in_features, {input, stride}, tokens,
                     output + begin, weight.out_features,
                     [&](size_t row, float* out) {
                       DequantizeRow(weight, begin + row, out);
                     });
      });
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {

HWY_EXPORT(MatMulScaledEntry);

void MatMul(const ScaledMatrix& weight, const float* input, size_t tokens,
            float* output, ThreadPool* pool) {
  const PaddedInput padded(input, tokens, weight.in_features);
  HWY_DYNAMIC_DISPATCH(MatMulScaledEntry)
  (weight, padded.values(), padded.stride(), tokens, output, pool);
}

}  // namespace quire
#endif  // HWY_ONCE
