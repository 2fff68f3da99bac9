#include "quire/loader/dtype.h"

#include <array>

namespace quire {
namespace {

struct DTypeTraits {
  DType dtype;
  const char* name;
  bool safetensors;
  uint64_t block_elements;
  uint64_t block_bits;
};

// In the order of the enum. Block layouts: ggml's ggml-common.h.
constexpr std::array<DTypeTraits, 35> kTraits = {{
    {DType::kBool, "BOOL", true, 1, 8},
    {DType::kU8, "U8", true, 1, 8},
    {DType::kI8, "I8", true, 1, 8},
    {DType::kU16, "U16", true, 1, 16},
    {DType::kI16, "I16", true, 1, 16},
    {DType::kU32, "U32", true, 1, 32},
    {DType::kI32, "I32", true, 1, 32},
    {DType::kU64, "U64", true, 1, 64},
    {DType::kI64, "I64", true, 1, 64},
    {DType::kF16, "F16", true, 1, 16},
    {DType::kBF16, "BF16", true, 1, 16},
    {DType::kF32, "F32", true, 1, 32},
    {DType::kF64, "F64", true, 1, 64},
    {DType::kC64, "C64", true, 1, 64},
    {DType::kF8E5M2, "F8_E5M2", true, 1, 8},
    {DType::kF8E4M3, "F8_E4M3", true, 1, 8},
    {DType::kF8E8M0, "F8_E8M0", true, 1, 8},
    {DType::kF8E4M3FNUZ, "F8_E4M3FNUZ", true, 1, 8},
    {DType::kF8E5M2FNUZ, "F8_E5M2FNUZ", true, 1, 8},
    {DType::kF4, "F4", true, 1, 4},
    {DType::kF6E2M3, "F6_E2M3", true, 1, 6},
    {DType::kF6E3M2, "F6_E3M2", true, 1, 6},
    {DType::kQ4_0, "Q4_0", false, 32, 18 * 8},
    {DType::kQ4_1, "Q4_1", false, 32, 20 * 8},
    {DType::kQ5_0, "Q5_0", false, 32, 22 * 8},
    {DType::kQ5_1, "Q5_1", false, 32, 24 * 8},
    {DType::kQ8_0, "Q8_0", false, 32, 34 * 8},
    {DType::kIQ4_NL, "IQ4_NL", false, 32, 18 * 8},
    {DType::kMxfp4, "MXFP4", false, 32, 17 * 8},
    {DType::kQ2_K, "Q2_K", false, 256, 84 * 8},
    {DType::kQ3_K, "Q3_K", false, 256, 110 * 8},
    {DType::kQ4_K, "Q4_K", false, 256, 144 * 8},
    {DType::kQ5_K, "Q5_K", false, 256, 176 * 8},
    {DType::kQ6_K, "Q6_K", false, 256, 210 * 8},
    {DType::kIQ4_XS, "IQ4_XS", false, 256, 136 * 8},
}};

const DTypeTraits& TraitsOf(DType dtype) {
  return kTraits[static_cast<size_t>(dtype)];
}

}  // namespace

const char* DTypeName(DType dtype) { return TraitsOf(dtype).name; }

std::optional<DType> DTypeFromSafetensors(std::string_view name) {
  for (const DTypeTraits& traits : kTraits)
    if (traits.safetensors && name == traits.name) return traits.dtype;
  return std::nullopt;
}

uint64_t BlockElements(DType dtype) { return TraitsOf(dtype).block_elements; }

uint64_t BlockBits(DType dtype) { return TraitsOf(dtype).block_bits; }

bool IsBlockQuantized(DType dtype) { return BlockElements(dtype) > 1; }

std::optional<Bytes> BytesOf(DType dtype, uint64_t elements) {
  const DTypeTraits& traits = TraitsOf(dtype);
  if (elements % traits.block_elements != 0) return std::nullopt;
  const auto bits =
      CheckedMultiply(elements / traits.block_elements, traits.block_bits);
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return Bytes(*bits / 8);
}

std::optional<Bytes> BytesOf(DType dtype, std::span<const uint64_t> shape) {
  uint64_t elements = 1;
  for (const uint64_t dimension : shape) {
    const auto product = CheckedMultiply(elements, dimension);
    if (!product) return std::nullopt;
    elements = *product;
  }
  return BytesOf(dtype, elements);
}

}  // namespace quire
