// GPTQ linear layers on the packed codes: MatMul(GptqMatrix).
//
// For every segment (see gptq_segments.h) an output element gets
//   scale * (2^e * sum over its rows of (q - zero) * n),
// where n * 2^e are the activations (see gptq_input-inl.h). The sum is exact in
// integers; it is rounded when it becomes a float32, when it is multiplied with
// the scale and when it is added to the output, in the order of the rows. None
// of that depends on the other tokens, on the threads or on the SIMD target, so
// neither does a bit of the result.
//
// The loop nest: ranges of columns go to threads; within one, segment by
// segment, 64 columns at a time, all tokens. So the rows of a segment are read
// as up to 32 streams of consecutive words, the activations of a segment stay
// in L1 (one token) or L2, and the outputs serve as accumulators.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "quire/loader/dtype.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/gptq_matmul.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.h:
#include <hwy/highway.h>

#include "model/ops/gptq_codes-inl.h"
#include "model/ops/gptq_input-inl.h"
#include "model/ops/gptq_segments.h"
#include "model/ops/gptq_zeros-inl.h"
#include "model/ops/simd_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

// Columns that are worked on together: whole words of zeros at any width.
constexpr size_t kTileColumns = 64;
// Columns of one range at most: zeros and scales of a group stay in L1.
constexpr size_t kRangeColumns = 512;
// Tokens per reading of the weights; bounds the workspace for activations.
constexpr size_t kTokenBlock = 64;

// Zeros and scales of one group for the columns of a range.
struct GroupParameters {
  alignas(64) uint8_t zeros[kRangeColumns];
  alignas(64) float scales[kRangeColumns];
};

// The activations of a block of tokens. Digits of token t from
// digits[t * digit_stride], segments of token t from
// segments[t * segment_stride].
struct PreparedInput {
  std::vector<uint32_t> digits;
  std::vector<SegmentInput> segments;
  size_t digit_stride;
  size_t segment_stride;
};

// Asks for the words of the next segment while this one is worked on.
//
// The kernel's own order, a few lines of one row and then of the next, is one
// that hardware does not foresee. Here the rows of the range are asked for one
// after the other, in the order of memory.
class Prefetcher {
 public:
  // Rows of `columns` words from `words` on, `stride` apart.
  Prefetcher(const uint32_t* words, size_t columns, size_t stride)
      : next_(words), row_(words), columns_(columns), stride_(stride) {}

  // The next `count` words.
  HWY_INLINE void Advance(size_t count) {
    for (size_t i = 0; i < count; i += kLineWords)
      __builtin_prefetch(next_ + i, 0, kSecondLevel);
    next_ += count;
    if (next_ >= row_ + columns_) {
      row_ += stride_;
      next_ = row_;
    }
  }

 private:
  static constexpr size_t kLineWords = 16;
  static constexpr int kSecondLevel = 2;

  const uint32_t* next_;
  const uint32_t* row_;
  size_t columns_;
  size_t stride_;
};

// What the columns of a tile need in one segment.
struct TileWork {
  const uint32_t* words;  // word 0 of the segment's first unit, column 0
  size_t word_stride;     // from a word to the next of the same column
  size_t units;
  Prefetcher* prefetcher;
  const uint32_t* digits;  // of the first token
  size_t digit_stride;
  const SegmentInput* inputs;  // of the first token
  size_t input_stride;
  const uint8_t* zeros;
  const float* scales;
  float* output;  // added to
  size_t output_stride;
};

template <class Unpack, size_t kDot, int kT, int kV>
HWY_INLINE void AddDot(const VU (&words)[kV][Unpack::kStepWords],
                       const uint32_t* digits, size_t digit_stride,
                       DotSums (&sums)[kT][kV][kDigits]) {
  VU codes[kV];
  for (int v = 0; v < kV; ++v) codes[v] = Unpack::template Dot<kDot>(words[v]);
  for (int t = 0; t < kT; ++t) {
    for (size_t digit = 0; digit < kDigits; ++digit) {
      const VU x =
          hn::Set(DU(), digits[t * digit_stride + digit * kUnitDots + kDot]);
      for (int v = 0; v < kV; ++v) sums[t][v][digit].Add(codes[v], x);
    }
  }
}

template <class Unpack, int kT, int kV, size_t... kDot>
HWY_INLINE void AddDots(std::index_sequence<kDot...>,
                        const VU (&words)[kV][Unpack::kStepWords],
                        const uint32_t* digits, size_t digit_stride,
                        DotSums (&sums)[kT][kV][kDigits]) {
  (AddDot<Unpack, kDot, kT, kV>(words, digits, digit_stride, sums), ...);
}

// kV vectors of columns from `column` on, kT tokens from `token` on.
template <int kBits, int kT, int kV>
HWY_NOINLINE void AddSegment(const TileWork& work, size_t token,
                             size_t column) {
  using Unpack = Unpacker<kBits>;
  const DF d;
  const DI di;
  const DU du;
  const size_t lanes = hn::Lanes(d);
  DotSums sums[kT][kV][kDigits];

  const uint32_t* words = work.words + column;
  Prefetcher prefetcher = *work.prefetcher;
  const uint32_t* digits = work.digits + token * work.digit_stride;
  for (size_t unit = 0; unit < work.units; ++unit) {
    for (size_t step = 0; step < kBits / Unpack::kStepWords; ++step) {
      VU step_words[kV][Unpack::kStepWords];
      for (size_t w = 0; w < Unpack::kStepWords; ++w) {
        for (int v = 0; v < kV; ++v)
          step_words[v][w] = hn::LoadU(du, words + v * lanes);
        words += work.word_stride;
        if (token == 0) prefetcher.Advance(kV * lanes);
      }
      AddDots<Unpack, kT, kV>(std::make_index_sequence<Unpack::kStepDots>(),
                              step_words, digits + step * Unpack::kStepDots,
                              work.digit_stride, sums);
    }
    digits += kUnitWords;
  }

  *work.prefetcher = prefetcher;

  const hn::Rebind<uint8_t, DF> d8;
  for (int v = 0; v < kV; ++v) {
    const size_t c = column + v * lanes;
    const VI zero = hn::PromoteTo(di, hn::LoadU(d8, work.zeros + c));
    const VF scale = hn::LoadU(d, work.scales + c);
    for (int t = 0; t < kT; ++t) {
      const SegmentInput& input = work.inputs[(token + t) * work.input_stride];
      const VI high = hn::Sub(sums[t][v][0].Total(),
                              hn::Mul(zero, hn::Set(di, input.high_sum)));
      VI low = sums[t][v][1].Total();
      if constexpr (kDigits == 3)
        low = hn::Add(hn::ShiftLeft<8>(low), sums[t][v][2].Total());
      low = hn::Sub(low, hn::Mul(zero, hn::Set(di, input.low_sum)));
      // `high` is below 2^24 and so exact as float32: one rounding.
      const VF sum =
          hn::Add(hn::Mul(hn::ConvertTo(d, high), hn::Set(d, 32768.0f)),
                  hn::ConvertTo(d, low));
      float* const out = work.output + (token + t) * work.output_stride + c;
      // Not fused: targets without the instruction must round the same.
      const VF term = hn::Mul(scale, hn::Mul(sum, hn::Set(d, input.scale)));
      hn::StoreU(hn::Add(hn::LoadU(d, out), term), d, out);
    }
  }
}

// `columns` columns, a multiple of the vector, kV vectors at a time.
template <int kBits, int kT, int kV>
HWY_INLINE void AddTile(const TileWork& work, size_t token, size_t columns) {
  const size_t lanes = hn::Lanes(DF());
  size_t c = 0;
  for (; c + kV * lanes <= columns; c += kV * lanes)
    AddSegment<kBits, kT, kV>(work, token, c);
  for (; c < columns; c += lanes) AddSegment<kBits, kT, 1>(work, token, c);
}

// Vectors per kernel are such that the sums fit in the registers.
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kVectors1 = 4, kVectors2 = 4, kVectors4 = 2;
#elif HWY_TARGET == HWY_AVX3
constexpr int kVectors1 = 4, kVectors2 = 4, kVectors4 = 2;
#else
constexpr int kVectors1 = 4, kVectors2 = 2, kVectors4 = 1;
#endif

template <int kBits>
void AddTokens(const TileWork& work, size_t tokens, size_t columns) {
  size_t t = 0;
  for (; t + 4 <= tokens; t += 4)
    AddTile<kBits, 4, kVectors4>(work, t, columns);
  if (t + 2 <= tokens) {
    AddTile<kBits, 2, kVectors2>(work, t, columns);
    t += 2;
  }
  if (t < tokens) AddTile<kBits, 1, kVectors1>(work, t, columns);
}

// AddTokens for a tile that is no whole number of vectors, or whose last unit
// is not whole: on a copy that is.
template <int kBits>
void AddPaddedTokens(TileWork work, size_t words, size_t tokens,
                     size_t columns) {
  constexpr size_t kMostWords = kSegmentRows / kUnitRows * kBits;
  const size_t lanes = hn::Lanes(DF());
  const size_t padded_columns = (columns + lanes - 1) / lanes * lanes;
  HWY_ALIGN uint32_t copy[kMostWords * kTileColumns];
  std::fill_n(copy, work.units * kBits * kTileColumns, 0u);
  for (size_t w = 0; w < words; ++w) {
    std::copy_n(work.words + w * work.word_stride, columns,
                copy + w * kTileColumns);
  }
  work.words = copy;
  work.word_stride = kTileColumns;

  float* const output = work.output;
  const size_t output_stride = work.output_stride;
  HWY_ALIGN float sums[kTokenBlock * kTileColumns];
  for (size_t t = 0; t < tokens; ++t) {
    std::copy_n(output + t * output_stride, columns, sums + t * kTileColumns);
    std::fill_n(sums + t * kTileColumns + columns, padded_columns - columns,
                0.0f);
  }
  work.output = sums;
  work.output_stride = kTileColumns;
  AddTokens<kBits>(work, tokens, padded_columns);
  for (size_t t = 0; t < tokens; ++t)
    std::copy_n(sums + t * kTileColumns, columns, output + t * output_stride);
}

template <typename T>
HWY_INLINE void LoadScales(const T* from, size_t count, float* to) {
  const DF d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
    hn::StoreU(LoadF32(d, from + i), d, to + i);
  if (i < count)
    StorePartial(d, LoadPartialF32(d, from + i, count - i), to + i, count - i);
}

template <int kBits>
void LoadParameters(const GptqMatrix& weight, size_t group, size_t begin,
                    size_t count, GroupParameters* parameters) {
  const size_t zero_words = (weight.out_features * kBits + 31) / 32;
  const uint32_t* const row = weight.qzeros + group * zero_words;
  LoadZeros<kBits>(row + begin * kBits / 32, count, weight.zero_offset,
                   parameters->zeros);
  const size_t first = group * weight.out_features + begin;
  switch (weight.scales_dtype) {
    case DType::kF16:
      return LoadScales(static_cast<const F16*>(weight.scales) + first, count,
                        parameters->scales);
    case DType::kBF16:
      return LoadScales(static_cast<const BF16*>(weight.scales) + first, count,
                        parameters->scales);
    default:
      return LoadScales(static_cast<const float*>(weight.scales) + first, count,
                        parameters->scales);
  }
}

// The output columns [begin, end) of a block of tokens.
// REQUIRES: begin is a multiple of kTileColumns.
template <int kBits>
void MatMulColumns(const GptqMatrix& weight,
                   const std::vector<GptqSegment>& segments,
                   const PreparedInput& input, size_t tokens, size_t begin,
                   size_t end, float* output) {
  const size_t n = weight.out_features;
  const size_t total_words = (weight.in_features * kBits + 31) / 32;
  for (size_t t = 0; t < tokens; ++t)
    std::fill(output + t * n + begin, output + t * n + end, 0.0f);

  GroupParameters parameters = {};
  size_t loaded_group = weight.groups;
  for (size_t s = 0; s < segments.size(); ++s) {
    const GptqSegment& segment = segments[s];
    if (segment.group != loaded_group) {
      LoadParameters<kBits>(weight, segment.group, begin, end - begin,
                            &parameters);
      loaded_group = segment.group;
    }
    const size_t first_word = segment.first_unit * kBits;
    const size_t words =
        std::min(segment.units * kBits, total_words - first_word);
    Prefetcher prefetcher(weight.qweight + (first_word + words) * n + begin,
                          end - begin, n);
    for (size_t column = begin; column < end; column += kTileColumns) {
      TileWork work;
      work.words = weight.qweight + first_word * n + column;
      work.word_stride = n;
      work.prefetcher = &prefetcher;
      work.units = segment.units;
      work.digits = input.digits.data() + segment.input_unit * kUnitWords;
      work.digit_stride = input.digit_stride;
      work.inputs = input.segments.data() + s;
      work.input_stride = input.segment_stride;
      work.zeros = parameters.zeros + (column - begin);
      work.scales = parameters.scales + (column - begin);
      work.output = output + column;
      work.output_stride = n;
      const size_t columns = std::min(kTileColumns, end - column);
      if (words == segment.units * kBits && columns % hn::Lanes(DF()) == 0) {
        AddTokens<kBits>(work, tokens, columns);
      } else {
        AddPaddedTokens<kBits>(work, words, tokens, columns);
      }
    }
  }
}

template <int kBits>
void MatMulBits(const GptqMatrix& weight, const float* input, size_t tokens,
                float* output, ThreadPool* pool) {
  const std::vector<GptqSegment> segments = CutIntoSegments(weight);
  size_t units = 0;
  for (const GptqSegment& segment : segments) units += segment.units;

  const size_t block = std::min(tokens, kTokenBlock);
  PreparedInput prepared;
  prepared.digit_stride = units * kUnitWords;
  prepared.segment_stride = segments.size();
  prepared.digits.resize(block * prepared.digit_stride);
  prepared.segments.resize(block * prepared.segment_stride);

  const size_t tiles = (weight.out_features + kTileColumns - 1) / kTileColumns;
  const size_t tiles_per_range =
      std::clamp<size_t>(tiles / (4 * static_cast<size_t>(pool->threads())), 1,
                         kRangeColumns / kTileColumns);
  for (size_t first = 0; first < tokens; first += block) {
    const size_t count = std::min(block, tokens - first);
    pool->ParallelFor(count, 1, [&](size_t begin, size_t end) HWY_ATTR {
      for (size_t t = begin; t < end; ++t) {
        for (size_t s = 0; s < segments.size(); ++s) {
          prepared.segments[t * prepared.segment_stride + s] =
              PrepareSegment<kBits>(
                  segments[s], input + (first + t) * weight.in_features,
                  weight.input_order,
                  prepared.digits.data() + t * prepared.digit_stride +
                      segments[s].input_unit * kUnitWords);
        }
      }
    });
    pool->ParallelFor(weight.out_features, tiles_per_range * kTileColumns,
                      [&](size_t begin, size_t end) HWY_ATTR {
                        // A pool of one thread hands out everything at once.
                        for (size_t c = begin; c < end; c += kRangeColumns) {
                          MatMulColumns<kBits>(
                              weight, segments, prepared, count, c,
                              std::min(end, c + kRangeColumns),
                              output + first * weight.out_features);
                        }
                      });
  }
}

}  // namespace

void MatMulGptqEntry(const GptqMatrix& weight, const float* input,
                     size_t tokens, float* output, ThreadPool* pool) {
  WithBits(weight.bits, [&]<int kBits>() HWY_ATTR {
    MatMulBits<kBits>(weight, input, tokens, output, pool);
  });
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {

HWY_EXPORT(MatMulGptqEntry);

void MatMul(const GptqMatrix& weight, const float* input, size_t tokens,
            float* output, ThreadPool* pool) {
  HWY_DYNAMIC_DISPATCH(MatMulGptqEntry)(weight, input, tokens, output, pool);
}

}  // namespace quire
#endif  // HWY_ONCE
