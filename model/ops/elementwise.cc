// Operations that touch every element once: biases, norms, activation
// functions, rotary embedding, storing KV rows.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "quire/loader/dtype.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/elementwise.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

// Calls visit(elements) with `data` as elements of its type.
// REQUIRES: dtype is kF32, kF16 or kBF16.
template <class Visit>
HWY_INLINE void WithElements(const void* data, DType dtype,
                             const Visit& visit) {
  switch (dtype) {
    case DType::kF16:
      return visit(static_cast<const F16*>(data));
    case DType::kBF16:
      return visit(static_cast<const BF16*>(data));
    default:
      return visit(static_cast<const float*>(data));
  }
}

// to[i] = combine(a[i], b[i]); `to` may be either.
template <typename A, typename B, class Combine>
HWY_INLINE void ForEachPair(const A* a, const B* b, size_t count, float* to,
                            const Combine& combine) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(combine(LoadF32(d, a + i), LoadF32(d, b + i)), d, to + i);
  if (i == count) return;
  const size_t rest = count - i;
  StorePartial(
      d,
      combine(LoadPartialF32(d, a + i, rest), LoadPartialF32(d, b + i, rest)),
      to + i, rest);
}

template <typename T>
void NormRow(const float* input, const T* weight, float epsilon,
             size_t features, float* output) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  // Two chains: features are few, the latency of one would show.
  VF even = hn::Zero(d);
  VF odd = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= features; i += 2 * lanes) {
    const VF a = hn::LoadU(d, input + i);
    const VF b = hn::LoadU(d, input + i + lanes);
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  for (; i < features; i += lanes) {
    const VF a = LoadPartialF32(d, input + i, std::min(lanes, features - i));
    even = hn::MulAdd(a, a, even);
  }
  const float mean =
      SumLanes(d, hn::Add(even, odd)) / static_cast<float>(features);
  const VF factor = hn::Set(d, 1.0f / std::sqrt(mean + epsilon));
  ForEachPair(input, weight, features, output, [&](VF x, VF w) HWY_ATTR {
    return hn::Mul(hn::Mul(x, factor), w);
  });
}

VF Silu(VF x) {
  const DF d;
  // exp of what is not positive: no overflow on either side.
  const VF e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const VF one = hn::Set(d, 1.0f);
  const VF numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Mul(x, hn::Div(numerator, hn::Add(one, e)));
}

// Rotates one head. cosines and sines: rotary_dim / 2, padded to a vector.
void RotateHalf(const float* cosines, const float* sines, size_t half,
                float* values) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  float* const upper = values + half;
  const auto rotate = [&](size_t i, VF a, VF b, auto&& store) HWY_ATTR {
    const VF c = hn::LoadU(d, cosines + i);
    const VF s = hn::LoadU(d, sines + i);
    store(hn::NegMulAdd(b, s, hn::Mul(a, c)), values + i);
    store(hn::MulAdd(a, s, hn::Mul(b, c)), upper + i);
  };
  size_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    rotate(i, hn::LoadU(d, values + i), hn::LoadU(d, upper + i),
           [&](VF v, float* to) HWY_ATTR { hn::StoreU(v, d, to); });
  }
  if (i == half) return;
  const size_t rest = half - i;
  rotate(i, LoadPartialF32(d, values + i, rest),
         LoadPartialF32(d, upper + i, rest),
         [&](VF v, float* to) HWY_ATTR { StorePartial(d, v, to, rest); });
}

void RotateInterleaved(const float* cosines, const float* sines, size_t half,
                       float* values) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    VF a, b;
    hn::LoadInterleaved2(d, values + 2 * i, a, b);
    const VF c = hn::LoadU(d, cosines + i);
    const VF s = hn::LoadU(d, sines + i);
    hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)),
                          hn::MulAdd(a, s, hn::Mul(b, c)), d, values + 2 * i);
  }
  for (; i < half; ++i) {
    const float a = values[2 * i];
    const float b = values[2 * i + 1];
    values[2 * i] = a * cosines[i] - b * sines[i];
    values[2 * i + 1] = a * sines[i] + b * cosines[i];
  }
}

}  // namespace

void AddBiasEntry(const void* bias, DType dtype, size_t tokens, size_t features,
                  float* values) {
  WithElements(bias, dtype, [&](const auto* b) HWY_ATTR {
    for (size_t t = 0; t < tokens; ++t) {
      float* const row = values + t * features;
      ForEachPair(row, b, features, row,
                  [](VF x, VF y) HWY_ATTR { return hn::Add(x, y); });
    }
  });
}

void RmsNormEntry(const float* input, const void* weight, DType dtype,
                  float epsilon, size_t tokens, size_t features,
                  float* output) {
  WithElements(weight, dtype, [&](const auto* w) HWY_ATTR {
    for (size_t t = 0; t < tokens; ++t) {
      NormRow(input + t * features, w, epsilon, features,
              output + t * features);
    }
  });
}

void SiluMultiplyEntry(const float* up, size_t count, float* gate) {
  ForEachPair(gate, up, count, gate,
              [](VF g, VF u) HWY_ATTR { return hn::Mul(Silu(g), u); });
}

void RotateEntry(const float* cosines, const float* sines, size_t rotary_dim,
                 RopePairing pairing, size_t heads, size_t head_dim,
                 float* values) {
  const auto rotate =
      pairing == RopePairing::kHalf ? RotateHalf : RotateInterleaved;
  for (size_t h = 0; h < heads; ++h)
    rotate(cosines, sines, rotary_dim / 2, values + h * head_dim);
}

void StoreF16Entry(const float* values, size_t count, void* row) {
  auto* out = static_cast<uint16_t*>(row);
  size_t i = 0;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // F16C
  const DF d;
  const hn::Rebind<hwy::float16_t, DF> dh;
  const hn::Rebind<uint16_t, DF> d16;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(hn::BitCast(d16, hn::DemoteTo(dh, hn::LoadU(d, values + i))),
               d16, out + i);
  }
#endif
  for (; i < count; ++i) out[i] = F16FromF32(values[i]);
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(AddBiasEntry);
HWY_EXPORT(RmsNormEntry);
HWY_EXPORT(SiluMultiplyEntry);
HWY_EXPORT(RotateEntry);
HWY_EXPORT(StoreF16Entry);

// A vector of the widest target: tables of angles are padded to it.
constexpr size_t kWidestVector = 16;
// Work below which waking a thread costs more than it saves.
constexpr size_t kElementsPerRange = 16384;

size_t TokensPerRange(size_t features) {
  return kElementsPerRange / std::max<size_t>(features, 1) + 1;
}

}  // namespace

void AddBias(const void* bias, DType dtype, size_t tokens, size_t features,
             float* values) {
  HWY_DYNAMIC_DISPATCH(AddBiasEntry)(bias, dtype, tokens, features, values);
}

void AddInPlace(const float* other, size_t count, float* values) {
  HWY_DYNAMIC_DISPATCH(AddBiasEntry)(other, DType::kF32, 1, count, values);
}

void RmsNorm(const float* input, const void* weight, DType weight_dtype,
             float epsilon, size_t tokens, size_t features, float* output,
             ThreadPool* pool) {
  pool->ParallelFor(tokens, TokensPerRange(features),
                    [&](size_t begin, size_t end) {
                      HWY_DYNAMIC_DISPATCH(RmsNormEntry)
                      (input + begin * features, weight, weight_dtype, epsilon,
                       end - begin, features, output + begin * features);
                    });
}

void SiluMultiply(const float* up, size_t count, float* gate,
                  ThreadPool* pool) {
  pool->ParallelFor(count, kElementsPerRange, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(SiluMultiplyEntry)
    (up + begin, end - begin, gate + begin);
  });
}

void Rope(const uint64_t* positions, const float* inverse_frequencies,
          size_t rotary_dim, RopePairing pairing, float magnitude,
          size_t tokens, size_t heads, size_t head_dim, float* values,
          ThreadPool* pool) {
  const size_t half = rotary_dim / 2;
  pool->ParallelFor(tokens, TokensPerRange(heads * head_dim),
                    [&](size_t begin, size_t end) {
                      std::vector<float> cosines(half + kWidestVector);
                      std::vector<float> sines(half + kWidestVector);
                      for (size_t t = begin; t < end; ++t) {
                        // The product in float32, as the models were trained
                        // with.
                        const auto position = static_cast<float>(positions[t]);
                        for (size_t i = 0; i < half; ++i) {
                          const float angle = position * inverse_frequencies[i];
                          cosines[i] = std::cos(angle) * magnitude;
                          sines[i] = std::sin(angle) * magnitude;
                        }
                        HWY_DYNAMIC_DISPATCH(RotateEntry)
                        (cosines.data(), sines.data(), rotary_dim, pairing,
                         heads, head_dim, values + t * heads * head_dim);
                      }
                    });
}

bool HasAttention(const KvLayerKind& kind) {
  return (kind.dtype != KvDType::kInt8 || kind.scale != KvScale::kNone) &&
         (kind.value_dim > 0 || kind.kv_heads == 1);
}

void StoreKvRow(const float* values, size_t count, KvDType dtype, void* row) {
  switch (dtype) {
    case KvDType::kF32:
      std::memcpy(row, values, count * sizeof(float));
      return;
    case KvDType::kF16:
      HWY_DYNAMIC_DISPATCH(StoreF16Entry)(values, count, row);
      return;
    case KvDType::kBF16: {
      auto* const out = static_cast<uint16_t*>(row);
      std::transform(values, values + count, out, BF16FromF32);
      return;
    }
    case KvDType::kF8E4M3:
    case KvDType::kF8E5M2:
    case KvDType::kInt8:
      return;  // StoreScaledKvRow's
  }
}

}  // namespace quire
#endif  // HWY_ONCE
