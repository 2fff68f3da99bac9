// How fast the host operations are, and how fast this machine reads memory.
//
//   ops_bench [--benchmark_filter=...]
//
// Products with one token are bound by reading the weights, so they report
// packed bytes per second next to ReadMemory, the rate at which the same
// threads read memory and do nothing else. Weights are taken in turn from
// copies that are together far larger than any cache, as in a decode step.
// Products with many tokens are bound by arithmetic and report 2 * tokens * K *
// N operations.
//
// Argument "threads": the size of the pool.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/benchmark_program.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"

namespace quire {
namespace {

// Several times the caches of common servers, and more than the largest layer.
constexpr size_t kWorkingSet = size_t{640} << 20;

// kWorkingSet of random words, made once and used as weights of every dtype:
// the bits that are cleared make every 16-bit float in them finite and
// moderate. Not zeros, whose pages would all be one page of memory.
const std::vector<uint32_t>& Words() {
  static const auto* const words = [] {
    auto* made = new std::vector<uint32_t>(kWorkingSet / sizeof(uint32_t));
    uint64_t state = 1;
    for (uint32_t& word : *made) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      word = static_cast<uint32_t>(state >> 32) & 0x3C7F3C7F;
    }
    return made;
  }();
  return *words;
}

std::vector<float> RandomInput(size_t count) {
  std::mt19937 random(static_cast<uint32_t>(count));
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

void SetByteRate(benchmark::State& state, double bytes_per_iteration) {
  state.counters["bytes"] = benchmark::Counter(
      bytes_per_iteration * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

void SetOperationRate(benchmark::State& state, double per_iteration) {
  state.counters["flops"] = benchmark::Counter(
      per_iteration * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

// Sums eight streams per range: what reads fastest on the machines tried.
void ReadMemory(benchmark::State& state) {
  constexpr size_t kStreams = 8;
  constexpr size_t kGrain = size_t{1} << 17;  // words: 1 MiB
  const auto* const words = reinterpret_cast<const uint64_t*>(Words().data());
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(kWorkingSet / sizeof(uint64_t), kGrain,
                     [&](size_t begin, size_t end) {
                       const size_t length = (end - begin) / kStreams;
                       const uint64_t* const base = words + begin;
                       uint64_t sums[kStreams] = {};
                       for (size_t i = 0; i < length; i += 8) {
                         for (size_t s = 0; s < kStreams; ++s)
                           for (size_t j = 0; j < 8; ++j)
                             sums[s] += base[s * length + i + j];
                       }
                       for (uint64_t& sum : sums) benchmark::DoNotOptimize(sum);
                     });
  }
  SetByteRate(state, static_cast<double>(kWorkingSet));
}
BENCHMARK(ReadMemory)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

// Copies of one GPTQ layer with groups of 128.
class GptqCopies {
 public:
  GptqCopies(int bits, size_t n, size_t k)
      : groups_((k + 127) / 128),
        word_count_((k * static_cast<size_t>(bits) + 31) / 32 * n),
        zero_count_(groups_ * ((n * static_cast<size_t>(bits) + 31) / 32)),
        scale_count_(groups_ * n),
        copies_(Words().size() / word_count_),
        zeros_(Words().begin(),
               Words().begin() + static_cast<ptrdiff_t>(zero_count_)),
        scales_(scale_count_, 0x1E00) {
    for (size_t row = 0; row < k; row += 128)
      group_begin_.push_back(static_cast<uint32_t>(row));
    group_begin_.push_back(static_cast<uint32_t>(k));
    matrix_.bits = bits;
    matrix_.in_features = k;
    matrix_.out_features = n;
    matrix_.groups = groups_;
    matrix_.qzeros = zeros_.data();
    matrix_.scales = scales_.data();
    matrix_.group_begin = group_begin_.data();
  }

  const GptqMatrix& Next() {
    next_ = (next_ + 1) % copies_;
    matrix_.qweight = Words().data() + next_ * word_count_;
    return matrix_;
  }
  double bytes() const {
    return 4.0 * static_cast<double>(word_count_ + zero_count_) +
           2.0 * static_cast<double>(scale_count_);
  }

 private:
  size_t groups_, word_count_, zero_count_, scale_count_, copies_;
  std::vector<uint32_t> zeros_;
  std::vector<uint16_t> scales_;
  std::vector<uint32_t> group_begin_;
  GptqMatrix matrix_;
  size_t next_ = 0;
};

void MultiplyGptq(benchmark::State& state, int bits) {
  const auto n = static_cast<size_t>(state.range(0));
  const auto k = static_cast<size_t>(state.range(1));
  const auto tokens = static_cast<size_t>(state.range(2));
  ThreadPool pool(static_cast<int>(state.range(3)));
  GptqCopies weights(bits, n, k);
  const std::vector<float> input = RandomInput(tokens * k);
  std::vector<float> output(tokens * n);
  for (auto _ : state)
    MatMul(weights.Next(), input.data(), tokens, output.data(), &pool);
  if (tokens == 1) SetByteRate(state, weights.bytes());
  SetOperationRate(state, 2.0 * static_cast<double>(tokens * n * k));
}

void OneTokenShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "K", "tokens", "threads"})->UseRealTime();
  for (const int64_t threads : {1, 2}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{4096, 4096},
                               {12288, 4096},
                               {576, 576},
                               {1536, 576},
                               {1024, 3072}})
      b->Args({n, k, 1, threads});
  }
}

void Batches(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "K", "tokens", "threads"})->UseRealTime();
  for (const int64_t threads : {1, 2})
    for (const int64_t tokens : {2, 4, 16, 256})
      b->Args({1024, 3072, tokens, threads});
}

void OneShape(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "K", "tokens", "threads"})->UseRealTime();
  for (const int64_t threads : {1, 2}) b->Args({4096, 4096, 1, threads});
}

BENCHMARK_CAPTURE(MultiplyGptq, 4bit, 4)->Apply(OneTokenShapes);
BENCHMARK_CAPTURE(MultiplyGptq, 4bit_batch, 4)->Apply(Batches);
BENCHMARK_CAPTURE(MultiplyGptq, 2bit, 2)->Apply(OneShape);
BENCHMARK_CAPTURE(MultiplyGptq, 3bit, 3)->Apply(OneShape);
BENCHMARK_CAPTURE(MultiplyGptq, 8bit, 8)->Apply(OneShape);

void MultiplyDense(benchmark::State& state, DType dtype) {
  const auto n = static_cast<size_t>(state.range(0));
  const auto k = static_cast<size_t>(state.range(1));
  const auto tokens = static_cast<size_t>(state.range(2));
  ThreadPool pool(static_cast<int>(state.range(3)));
  const size_t bytes = n * BytesOf(dtype, k)->value();
  const size_t copies = kWorkingSet / bytes;
  const std::vector<float> input = RandomInput(tokens * k);
  std::vector<float> output(tokens * n);
  size_t next = 0;
  for (auto _ : state) {
    next = (next + 1) % copies;
    const DenseMatrix matrix = {Words().data() + next * (bytes / 4), dtype, n,
                                k};
    MatMul(matrix, input.data(), tokens, output.data(), &pool);
  }
  if (tokens == 1) SetByteRate(state, static_cast<double>(bytes));
  SetOperationRate(state, 2.0 * static_cast<double>(tokens * n * k));
}

void HeadShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "K", "tokens", "threads"})->UseRealTime();
  for (const int64_t threads : {1, 2}) {
    b->Args({49152, 576, 1, threads});
    b->Args({151936, 1024, 1, threads});
    b->Args({1024, 4096, 1, threads});
    b->Args({1024, 3072, 4, threads});
    b->Args({1024, 3072, 256, threads});
  }
}

// Rows of whole blocks of 256.
void SuperBlockShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "K", "tokens", "threads"})->UseRealTime();
  for (const int64_t threads : {1, 2}) {
    b->Args({151936, 1024, 1, threads});
    b->Args({1024, 3072, 256, threads});
  }
}

BENCHMARK_CAPTURE(MultiplyDense, F32, DType::kF32)->Apply(HeadShapes);
BENCHMARK_CAPTURE(MultiplyDense, F16, DType::kF16)->Apply(HeadShapes);
BENCHMARK_CAPTURE(MultiplyDense, BF16, DType::kBF16)->Apply(HeadShapes);
BENCHMARK_CAPTURE(MultiplyDense, Q8_0, DType::kQ8_0)->Apply(HeadShapes);
BENCHMARK_CAPTURE(MultiplyDense, Q4_0, DType::kQ4_0)->Apply(HeadShapes);
BENCHMARK_CAPTURE(MultiplyDense, Q4_1, DType::kQ4_1)->Apply(HeadShapes);
BENCHMARK_CAPTURE(MultiplyDense, Q5_0, DType::kQ5_0)->Apply(HeadShapes);
BENCHMARK_CAPTURE(MultiplyDense, IQ4_NL, DType::kIQ4_NL)->Apply(HeadShapes);
BENCHMARK_CAPTURE(MultiplyDense, Q2_K, DType::kQ2_K)->Apply(SuperBlockShapes);
BENCHMARK_CAPTURE(MultiplyDense, Q3_K, DType::kQ3_K)->Apply(SuperBlockShapes);
BENCHMARK_CAPTURE(MultiplyDense, Q4_K, DType::kQ4_K)->Apply(SuperBlockShapes);
BENCHMARK_CAPTURE(MultiplyDense, Q5_K, DType::kQ5_K)->Apply(SuperBlockShapes);
BENCHMARK_CAPTURE(MultiplyDense, Q6_K, DType::kQ6_K)->Apply(SuperBlockShapes);

// Codes with a scale for each `block` inputs of a row.
void MultiplyScaled(benchmark::State& state, CodeKind kind, DType scales_dtype,
                    size_t block) {
  const auto n = static_cast<size_t>(state.range(0));
  const auto k = static_cast<size_t>(state.range(1));
  const auto tokens = static_cast<size_t>(state.range(2));
  ThreadPool pool(static_cast<int>(state.range(3)));
  ScaledMatrix matrix;
  matrix.kind = kind;
  matrix.out_features = n;
  matrix.in_features = k;
  matrix.row_bytes = k * static_cast<size_t>(CodeBits(kind)) / 8;
  matrix.scales_dtype = scales_dtype;
  matrix.block_rows = 1;
  matrix.block_columns = block;
  matrix.scales = Words().data();
  const size_t codes = n * matrix.row_bytes;
  const size_t copies = kWorkingSet / codes;
  const std::vector<float> input = RandomInput(tokens * k);
  std::vector<float> output(tokens * n);
  size_t next = 0;
  for (auto _ : state) {
    next = (next + 1) % copies;
    matrix.codes =
        reinterpret_cast<const uint8_t*>(Words().data()) + next * codes;
    MatMul(matrix, input.data(), tokens, output.data(), &pool);
  }
  const auto bytes = static_cast<double>(CodeBytes(matrix).value() +
                                         ScaleBytes(matrix).value());
  if (tokens == 1) SetByteRate(state, bytes);
  SetOperationRate(state, 2.0 * static_cast<double>(tokens * n * k));
}

void ScaledShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"N", "K", "tokens", "threads"})->UseRealTime();
  for (const int64_t threads : {1, 2})
    for (const int64_t tokens : {1, 2, 4, 256})
      b->Args({4096, 4096, tokens, threads});
}

BENCHMARK_CAPTURE(MultiplyScaled, F8, CodeKind::kF8E4M3, DType::kF32, 128)
    ->Apply(ScaledShapes);
BENCHMARK_CAPTURE(MultiplyScaled, int8, CodeKind::kInt8, DType::kF32, 4096)
    ->Apply(ScaledShapes);
BENCHMARK_CAPTURE(MultiplyScaled, uint4, CodeKind::kUint4, DType::kBF16, 128)
    ->Apply(ScaledShapes);
BENCHMARK_CAPTURE(MultiplyScaled, nf4, CodeKind::kNf4, DType::kF32, 64)
    ->Apply(ScaledShapes);
BENCHMARK_CAPTURE(MultiplyScaled, mxfp4, CodeKind::kF4E2M1, DType::kF8E8M0, 32)
    ->Apply(ScaledShapes);

// `queries` sequences of `rows` rows each, 16 heads on 8 kv heads of 128, with
// the rows of one layer side by side.
void Attend(benchmark::State& state, KvDType dtype) {
  constexpr size_t kHeads = 16, kKvHeads = 8, kHeadDim = 128;
  const auto queries = static_cast<size_t>(state.range(0));
  const auto rows = static_cast<size_t>(state.range(1));
  ThreadPool pool(static_cast<int>(state.range(2)));
  const size_t half = kKvHeads * kHeadDim * KvElementSize(dtype).value();
  const size_t sequence_bytes = rows * 2 * half;
  const std::vector<float> query = RandomInput(queries * kHeads * kHeadDim);
  std::vector<float> output(query.size());
  std::vector<AttentionQuery> all(queries);
  for (size_t i = 0; i < queries; ++i) {
    const auto* const base =
        reinterpret_cast<const uint8_t*>(Words().data()) + i * sequence_bytes;
    all[i] = {
        query.data() + i * kHeads * kHeadDim, base, base + half, 2 * half, rows,
        output.data() + i * kHeads * kHeadDim};
  }
  for (auto _ : state)
    Attention(all, dtype, kHeads, kKvHeads, kHeadDim, 0.088f, &pool);
  SetByteRate(state, static_cast<double>(queries * sequence_bytes));
  SetOperationRate(
      state, 4.0 * static_cast<double>(queries * rows * kHeads * kHeadDim));
}

void AttentionShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"queries", "rows", "threads"})->UseRealTime();
  for (const int64_t threads : {1, 2}) {
    b->Args({1, 1024, threads});
    b->Args({1, 32768, threads});
    b->Args({16, 1024, threads});
  }
}

BENCHMARK_CAPTURE(Attend, F16, KvDType::kF16)->Apply(AttentionShapes);
BENCHMARK_CAPTURE(Attend, F32, KvDType::kF32)->Apply(AttentionShapes);

// One decode step of 36 layers, a layer an iteration, over all that the
// sequences have cached: 16 heads on 8 kv heads of 128, float16. Of a token, g
// layers lie side by side. With blocks of tokens, those of a sequence lie
// anywhere in a pool, the same for every group of layers.
class CachedLayers {
 public:
  static constexpr size_t kLayers = 36;
  static constexpr size_t kHeads = 16, kKvHeads = 8, kHeadDim = 128;
  static constexpr size_t kSide = kKvHeads * kHeadDim * 2;

  // block_rows 0: contiguous.
  CachedLayers(size_t sequences, size_t rows, size_t layers_per_row,
               size_t block_rows)
      : sequences_(sequences),
        rows_(rows),
        layers_per_row_(layers_per_row),
        block_rows_(block_rows),
        query_(RandomInput(sequences * kHeads * kHeadDim)),
        output_(query_.size()) {
    if (block_rows == 0) return;
    table_.resize(sequences * rows / block_rows);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(1));
  }

  size_t bytes_per_layer() const { return sequences_ * rows_ * 2 * kSide; }

  std::vector<AttentionQuery> Queries(size_t layer) {
    const size_t row = layers_per_row_ * 2 * kSide;
    const auto* const group =
        reinterpret_cast<const uint8_t*>(Words().data()) +
        layer / layers_per_row_ * sequences_ * rows_ * row +
        layer % layers_per_row_ * 2 * kSide;
    std::vector<AttentionQuery> queries(sequences_);
    for (size_t s = 0; s < sequences_; ++s) {
      AttentionQuery& query = queries[s];
      query.query = query_.data() + s * kHeads * kHeadDim;
      query.keys = group;
      query.row_stride = row;
      query.length = rows_;
      query.output = output_.data() + s * kHeads * kHeadDim;
      if (block_rows_ == 0) {
        query.keys = group + s * rows_ * row;
      } else {
        query.blocks = table_.data() + s * rows_ / block_rows_;
        query.block_shift =
            static_cast<uint32_t>(std::countr_zero(block_rows_));
        query.block_stride = block_rows_ * row;
      }
      query.values = static_cast<const uint8_t*>(query.keys) + kSide;
    }
    return queries;
  }

 private:
  const size_t sequences_, rows_, layers_per_row_, block_rows_;
  const std::vector<float> query_;
  std::vector<float> output_;
  std::vector<uint32_t> table_;
};

void AttendLayers(benchmark::State& state) {
  CachedLayers cache(
      static_cast<size_t>(state.range(0)), static_cast<size_t>(state.range(1)),
      static_cast<size_t>(state.range(2)), static_cast<size_t>(state.range(3)));
  ThreadPool pool(static_cast<int>(state.range(4)));
  std::vector<std::vector<AttentionQuery>> layers;
  for (size_t layer = 0; layer < CachedLayers::kLayers; ++layer)
    layers.push_back(cache.Queries(layer));
  size_t layer = 0;
  for (auto _ : state) {
    Attention(layers[layer], KvDType::kF16, CachedLayers::kHeads,
              CachedLayers::kKvHeads, CachedLayers::kHeadDim, 0.088f, &pool);
    layer = (layer + 1) % layers.size();
  }
  SetByteRate(state, static_cast<double>(cache.bytes_per_layer()));
}

void Layouts(benchmark::internal::Benchmark* b) {
  b->ArgNames({"sequences", "rows", "g", "block", "threads"})->UseRealTime();
  for (const auto& [sequences, rows] :
       {std::pair<int64_t, int64_t>{1, 4096}, {16, 256}}) {
    for (const auto& [layers_per_row, block_rows] :
         {std::pair<int64_t, int64_t>{1, 0},
          {4, 0},
          {36, 0},
          {1, 16},
          {1, 32},
          {36, 16}}) {
      for (const int64_t threads : {1, 2})
        b->Args({sequences, rows, layers_per_row, block_rows, threads});
    }
  }
}
BENCHMARK(AttendLayers)->Apply(Layouts);

void Normalise(benchmark::State& state) {
  const auto features = static_cast<size_t>(state.range(0));
  ThreadPool pool(1);
  const std::vector<float> input = RandomInput(features);
  std::vector<float> output(features);
  for (auto _ : state) {
    RmsNorm(input.data(), input.data(), DType::kF32, 1e-5f, 1, features,
            output.data(), &pool);
  }
}
BENCHMARK(Normalise)->Arg(1024)->Arg(4096);

void Rotate(benchmark::State& state) {
  ThreadPool pool(1);
  std::vector<float> values = RandomInput(16 * 128);
  const std::vector<float> frequencies(64, 0.01f);
  const uint64_t position = 12345;
  for (auto _ : state) {
    Rope(&position, frequencies.data(), 128, RopePairing::kHalf, 1.0f, 1, 16,
         128, values.data(), &pool);
  }
}
BENCHMARK(Rotate);

void Activate(benchmark::State& state) {
  const auto count = static_cast<size_t>(state.range(0));
  ThreadPool pool(1);
  const std::vector<float> up = RandomInput(count);
  std::vector<float> gate = RandomInput(count);
  for (auto _ : state) SiluMultiply(up.data(), count, gate.data(), &pool);
}
BENCHMARK(Activate)->Arg(12288);

// What a loop costs beside its body.
void OpenLoop(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state)
    pool.ParallelFor(
        8, 1, [](size_t begin, size_t) { benchmark::DoNotOptimize(begin); });
}
BENCHMARK(OpenLoop)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  benchmark::AddCustomContext("simd_target", quire::SimdTargetName());
  return quire::RunBenchmarks("ops_bench", argc, argv);
}
