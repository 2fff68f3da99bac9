// The decoder's operations on the host: SIMD through Highway, chosen at run
// time.
//
// Sums have the accuracy of float32 or better: GPTQ products are exact integer
// sums over runs of 128 rows at most, with activations rounded to 2^-22 of
// their run's largest (docs/host_ops.md). Packed weights are read as packed: no
// dequantised copy exists outside a thread's registers and a tile in its cache.
//
// Batch invariance: the result for a token is bit for bit the same whatever
// tokens are beside it in the call and however many threads run. So a batch
// decodes exactly what each sequence decodes alone.
//
// Shapes are in elements; activations are row-major float32 [tokens, features].
// Pointers need the alignment of their element only. No call allocates device
// memory; all are thread-safe and return when the result is written.

#ifndef QUIRE_MODEL_OPS_H_
#define QUIRE_MODEL_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/loader/dtype.h"
#include "quire/loader/scaled_modules.h"
#include "quire/model/thread_pool.h"
#include "quire/paging/kv_layout.h"

namespace quire {

// A linear layer as torch stores it: [out_features, in_features], row-major.
// dtype: kF32, kF16, kBF16, or one of GGUF's blocks (IsBlockQuantized).
struct DenseMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  size_t out_features = 0;
  size_t in_features = 0;
};

// A GPTQ linear as packed in the checkpoint (see <quire/loader/gptq.h>), with
// its rows in the order of their groups: row i of qweight stands for input
// input_order[i], and belongs to the group g with
// group_begin[g] <= i < group_begin[g + 1].
struct GptqMatrix {
  int bits = 4;                       // 2 to 8
  size_t in_features = 0;             // K
  size_t out_features = 0;            // N
  size_t groups = 0;                  // G
  const uint32_t* qweight = nullptr;  // [ceil(K*bits/32), N]
  const uint32_t* qzeros = nullptr;   // [G, ceil(N*bits/32)]
  const void* scales = nullptr;       // [G, N]
  DType scales_dtype = DType::kF16;   // kF16, kBF16 or kF32
  // Added to every stored zero, modulo 2^bits: 1 for v1, 0 for v2.
  uint32_t zero_offset = 1;
  const uint32_t* group_begin = nullptr;  // [G + 1]
  const uint32_t* input_order = nullptr;  // [K]; null: the identity
};

// A linear of codes with scales (see <quire/loader/scaled_modules.h>):
// [out_features, in_features], row-major.
struct ScaledMatrix {
  CodeKind kind = CodeKind::kInt8;
  size_t in_features = 0;   // K
  size_t out_features = 0;  // N
  const uint8_t* codes = nullptr;
  size_t row_bytes = 0;  // from the codes of a row to those of the next
  // [ceil(N / block_rows), ceil(K / block_columns)] of kF32, kF16, kBF16 or
  // kF8E8M0 (a power of two).
  const void* scales = nullptr;
  DType scales_dtype = DType::kF32;
  size_t block_rows = 0;
  size_t block_columns = 0;
  // Null: 0. kI8, as the scales; or kI32: the value plus 2^(bits-1), packed
  // down the rows of the grid.
  const void* zeros = nullptr;
  DType zeros_dtype = DType::kI8;
  // [K], the scale column of each input; null: k / block_columns.
  const uint32_t* scale_column = nullptr;
};

// What its codes and its scales take.
Bytes CodeBytes(const ScaledMatrix& matrix);
Bytes ScaleBytes(const ScaledMatrix& matrix);

// output[t, n] = sum over k of input[t, k] * weight[n, k].
void MatMul(const DenseMatrix& weight, const float* input, size_t tokens,
            float* output, ThreadPool* pool);
void MatMul(const GptqMatrix& weight, const float* input, size_t tokens,
            float* output, ThreadPool* pool);
// Decodes rows to float32 in a thread's cache, and multiplies these.
void MatMul(const ScaledMatrix& weight, const float* input, size_t tokens,
            float* output, ThreadPool* pool);

// Moves the rows of a packed qweight so that row i is what row order[i] was, in
// place, column tile by column tile: workspace of a few hundred KiB per thread.
void PermutePackedRows(uint32_t* qweight, int bits, size_t in_features,
                       size_t out_features, const uint32_t* order,
                       ThreadPool* pool);

// AWQ's packing (see <quire/loader/gptq.h>) to that of GptqMatrix, in place:
// eight rows of words along the outputs take the room of one row of words along
// the inputs. Workspace of one such row per thread.
// REQUIRES: in_features and out_features are multiples of 8.
void RepackAwqCodes(uint32_t* qweight, size_t in_features, size_t out_features,
                    ThreadPool* pool);
// The same for zero points, whose words only have another order inside.
void RepackAwqZeros(uint32_t* qzeros, size_t words);

// Rounds a row to codes with scales in float32, for a ScaledMatrix: kInt8 with
// one scale, the largest magnitude being 127; kNf4 with one for each
// kNf4BlockColumns, the largest being 1. False where a value is not finite: the
// codes are then of no use.
inline constexpr size_t kNf4BlockColumns = 64;
bool QuantizeRow(CodeKind kind, const float* row, size_t count, uint8_t* codes,
                 float* scales);

// Element (row, column) of a packed matrix; for tests and tools.
uint32_t UnpackCode(const uint32_t* qweight, int bits, size_t out_features,
                    size_t row, size_t column);

// Row `row` of a [rows, columns] matrix of any DenseMatrix dtype, as float32:
// embedding look-up and dequantisation.
void DequantizeRow(const DenseMatrix& matrix, size_t row, float* output);
void DequantizeRow(const ScaledMatrix& matrix, size_t row, float* output);
// What of a matrix is no number: scales that are NaN or infinite, and codes
// that are NaN.
struct NonFiniteCounts {
  uint64_t scales = 0;
  uint64_t codes = 0;
};
NonFiniteCounts CountNonFinite(const ScaledMatrix& matrix, ThreadPool* pool);
// Of `count` elements of kF32, kF16, kBF16, kF8E8M0 or kF8E4M3, or of GGUF's
// blocks, of which the float16 scales are counted.
uint64_t CountNonFinite(const void* values, DType dtype, size_t count);

// values[t, i] += bias[i].
void AddBias(const void* bias, DType dtype, size_t tokens, size_t features,
             float* values);
// values[i] += other[i].
void AddInPlace(const float* other, size_t count, float* values);

// output[t, i] = input[t, i] / sqrt(mean(input[t]^2) + epsilon) * weight[i].
// (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.) In place is
// fine.
void RmsNorm(const float* input, const void* weight, DType weight_dtype,
             float epsilon, size_t tokens, size_t features, float* output,
             ThreadPool* pool);

// gate[i] = silu(gate[i]) * up[i].
void SiluMultiply(const float* up, size_t count, float* gate, ThreadPool* pool);

// Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864)
// on [tokens, heads, head_dim]; angle i of token t is positions[t] *
// inverse_frequencies[i], i < rotary_dim / 2. kHalf pairs element i with
// i + rotary_dim/2 (Hugging Face), kInterleaved pairs 2i with 2i+1 (GGUF
// llama). Values are scaled by `magnitude` (1 for most).
enum class RopePairing : uint8_t { kHalf, kInterleaved };
void Rope(const uint64_t* positions, const float* inverse_frequencies,
          size_t rotary_dim, RopePairing pairing, float magnitude,
          size_t tokens, size_t heads, size_t head_dim, float* values,
          ThreadPool* pool);

// Elements of KV rows, and the factors that go with them.
struct KvElements {
  // NOLINTNEXTLINE: elements without factors are a type.
  KvElements(KvDType d, KvScale s = KvScale::kNone) : dtype(d), scale(s) {}
  KvDType dtype;
  KvScale scale;
};

// Whether the operations below have code for the rows of such a layer: int8
// elements need scales, and of layers without values there is one head, of
// whose vector the values are the beginning.
bool HasAttention(const KvLayerKind& kind);

// Writes [heads * head_dim] float32 values as one half (K or V) of a KV row of
// elements of 16 or 32 bits. REQUIRES: HasAttention of the layer.
void StoreKvRow(const float* values, size_t count, KvDType dtype, void* row);
// The same with elements of 8 bits, and the scale of each head at `scales`: the
// largest magnitude of the head becomes the largest element. Without scales
// what is larger than that becomes the largest element.
void StoreScaledKvRow(const float* values, size_t heads, size_t head_dim,
                      KvElements elements, void* row, void* scales);

// One query token against the rows [0, length) of its sequence.
struct AttentionQuery {
  const float* query;  // [heads, key_dim]
  const void* keys;    // row 0 of the layer; rows are `row_stride` bytes apart
  const void* values;
  size_t row_stride;
  size_t length;  // rows up to the query, its own included: at least 1
  float* output;  // [heads, value_dim]
  // Rows in blocks (PagedAttention; Kwon et al. 2023,
  // https://arxiv.org/abs/2309.06180): row r is row r % 2^block_shift of block
  // blocks[r >> block_shift], blocks are `block_stride` bytes apart, and keys
  // and values are those of block 0. Null: one run of rows.
  const uint32_t* blocks = nullptr;
  uint32_t block_shift = 0;
  size_t block_stride = 0;
  // Of row 0, where elements have scales: those of the other rows are as far
  // apart as the rows.
  const void* key_scales = nullptr;
  const void* value_scales = nullptr;
  // Of values, where they are not as far apart as keys; 0: they are.
  size_t value_stride = 0;
  size_t value_block_stride = 0;
  // Of the rows the query sees the last `window`, its own included, and of
  // those before them the first `sinks`; 0: all. No others are read.
  size_t window = 0;
  size_t sinks = 0;
};
// What the queries of a call have in common.
struct AttentionHeads {
  size_t heads;
  size_t kv_heads;
  size_t key_dim;
  size_t value_dim;  // may be another one
};
// Softmax attention with grouped queries: head h reads kv head
// h / (heads / kv_heads). Online softmax (Milakov and Gimelshein 2018) over
// tiles of rows of fixed size, so the result is independent of the batch, and
// of how the rows are stored.
//
// Of a latent layer (MLA) a row has one vector, of which all query heads see
// all elements as key, and the first value_dim as value: kv_heads is 1, and
// values are where keys are. REQUIRES: HasAttention of the layer.
void Attention(std::span<const AttentionQuery> queries, KvElements elements,
               const AttentionHeads& heads, float scale, ThreadPool* pool);
// With keys and values of one size.
inline void Attention(std::span<const AttentionQuery> queries,
                      KvElements elements, size_t heads, size_t kv_heads,
                      size_t head_dim, float scale, ThreadPool* pool) {
  Attention(queries, elements, {heads, kv_heads, head_dim, head_dim}, scale,
            pool);
}

// The SIMD target that was chosen at run time: "AVX3", "AVX2", ...
const char* SimdTargetName();

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_H_
