// Element types of checkpoint tensors, plain and block-quantised.

#ifndef QUIRE_LOADER_DTYPE_H_
#define QUIRE_LOADER_DTYPE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/alloc/units.h"

namespace quire {

// The plain types are those of safetensors; the blocks are those of GGUF.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kF4,
  kF6E2M3,
  kF6E3M2,
  // GGUF blocks of 32 elements along a row.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kIQ4_NL,
  kMxfp4,
  // GGUF blocks of 256.
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_XS,
};

// safetensors' spelling for the plain types, GGUF's for the blocks.
const char* DTypeName(DType dtype);
// safetensors' spelling, exact case; nullopt for GGUF's and everything else.
std::optional<DType> DTypeFromSafetensors(std::string_view name);

// Elements that are stored together: 1 for plain types of whole bytes.
uint64_t BlockElements(DType dtype);
// Bits of one block: 32 for F32, 4 for F4, 144 for Q4_0.
uint64_t BlockBits(DType dtype);
// Whether it is one of GGUF's blocks.
bool IsBlockQuantized(DType dtype);
// Bytes of `elements` elements in one run; nullopt where they are no whole
// number of blocks or bytes, or do not fit.
std::optional<Bytes> BytesOf(DType dtype, uint64_t elements);
// The same for a tensor. Multiplies in the order of the shape and fails on the
// first product that does not fit, even where a later zero would make it small,
// as safetensors' own reader does.
std::optional<Bytes> BytesOf(DType dtype, std::span<const uint64_t> shape);

}  // namespace quire

#endif  // QUIRE_LOADER_DTYPE_H_
