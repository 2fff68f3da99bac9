// Quantised linears whose codes have a fixed meaning, with one scale for each
// block of them: FP8, compressed-tensors and MXFP4.
//
//   W[n, k] = scale * (value of code[n, k] - zero)
//
// Codes are row-major [N, K] as torch stores a linear, in bytes or in nibbles,
// where element 2i is the low nibble of byte i. A scale serves block_rows by
// block_columns elements; the blocks at the edges may be cut.
//
// Sources: transformers' integrations/finegrained_fp8.py (fp8), vLLM's
// model_executor/layers/quantization/fp8.py (static fp8),
// compressed_tensors/compressors/ (pack-quantized, int-quantized,
// float-quantized), transformers' integrations/mxfp4.py.

#ifndef QUIRE_LOADER_SCALED_MODULES_H_
#define QUIRE_LOADER_SCALED_MODULES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"

namespace quire {

// What a code means.
enum class CodeKind : uint8_t {
  kF8E4M3,  // a byte: the float8 without infinities; 0x7F and 0xFF are NaN
  kInt8,    // a byte: two's complement
  kUint8,   // a byte: the value plus 128
  kUint4,   // a nibble: the value plus 8
  kNf4,     // a nibble: NormalFloat (Dettmers et al. 2023, QLoRA, appendix E)
  kF4E2M1,  // a nibble: the float4 of the OCP microscaling formats
};
const char* CodeKindName(CodeKind kind);  // "F8_E4M3", "INT8", ...
// 4 or 8.
int CodeBits(CodeKind kind);

// One linear; the tensors belong to the checkpoint.
struct ScaledModule {
  std::string name;  // without ".weight" or ".weight_packed"
  CodeKind kind = CodeKind::kInt8;
  // Linears of this shape in the tensors, one after the other: 1, but for
  // MXFP4's experts.
  uint64_t count = 1;
  uint64_t in_features = 0;   // K
  uint64_t out_features = 0;  // N
  uint64_t row_bytes = 0;     // of the codes of one output
  uint64_t block_rows = 0;
  uint64_t block_columns = 0;
  const TensorInfo* codes = nullptr;
  const TensorInfo* scales = nullptr;
  // What the scales mean: MXFP4 stores F8_E8M0 as U8.
  DType scales_dtype = DType::kF32;
  // Null: zero points are 0. I8 [as scales]; or I32, packed down the rows as
  // GPTQ's qweight is, the value plus 2^(bits-1).
  const TensorInfo* zeros = nullptr;
  const TensorInfo* g_idx = nullptr;  // null: column k has k / block_columns
  const TensorInfo* bias = nullptr;   // null: absent

  uint64_t scale_rows() const;
  uint64_t scale_columns() const;
};

// The scale column of every input, from g_idx; empty where inputs are in order:
// there is no g_idx, or it was never filled in (-1 everywhere). Errors name the
// tensor, the row and the value where one is outside [0, scale_columns).
absl::StatusOr<std::vector<uint32_t>> ReadScaleColumns(
    const Checkpoint& checkpoint, const ScaledModule& module);

}  // namespace quire

#endif  // QUIRE_LOADER_SCALED_MODULES_H_
