#include "quire/loader/dtype.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

std::optional<Bytes> Size(DType dtype, std::vector<uint64_t> shape) {
  return BytesOf(dtype, shape);
}

TEST(DTypeTest, SizesAreThoseOfTheFormats) {
  EXPECT_EQ(Size(DType::kF32, {}), Bytes(4));
  EXPECT_EQ(Size(DType::kBF16, {2, 3}), Bytes(12));
  EXPECT_EQ(Size(DType::kF4, {3, 2}), Bytes(3));
  EXPECT_EQ(Size(DType::kF6E2M3, {4}), Bytes(3));
  EXPECT_EQ(Size(DType::kQ4_0, {64}), Bytes(36));
  EXPECT_EQ(Size(DType::kQ4_1, {2, 32}), Bytes(40));
  EXPECT_EQ(Size(DType::kQ8_0, {32}), Bytes(34));
  EXPECT_EQ(Size(DType::kQ6_K, {256}), Bytes(210));
  EXPECT_EQ(Size(DType::kMxfp4, {64}), Bytes(34));
}

TEST(DTypeTest, PartsOfBytesAndBlocksHaveNoSize) {
  EXPECT_EQ(Size(DType::kF4, {3}), std::nullopt);
  EXPECT_EQ(Size(DType::kF6E3M2, {2}), std::nullopt);
  EXPECT_EQ(Size(DType::kQ4_0, {33}), std::nullopt);
  EXPECT_EQ(Size(DType::kQ6_K, {32}), std::nullopt);
}

TEST(DTypeTest, OverflowCountsInTheOrderOfTheShape) {
  const uint64_t half = uint64_t{1} << 32;
  EXPECT_EQ(Size(DType::kU8, {half, half}), std::nullopt);
  EXPECT_EQ(Size(DType::kU8, {half, half, 0}), std::nullopt);
  EXPECT_EQ(Size(DType::kU8, {0, half, half}), Bytes(0));
  // The bits must fit, not only the bytes.
  EXPECT_EQ(Size(DType::kU8, {UINT64_MAX / 8}), Bytes(UINT64_MAX / 8));
  EXPECT_EQ(Size(DType::kU8, {UINT64_MAX / 8 + 1}), std::nullopt);
}

TEST(DTypeTest, OnlySafetensorsNamesAreKnownInTheirExactCase) {
  EXPECT_EQ(DTypeFromSafetensors("F8_E4M3"), DType::kF8E4M3);
  for (const char* name : {"", "f32", "F32 ", "Q4_0", "Q8_0"})
    EXPECT_EQ(DTypeFromSafetensors(name), std::nullopt) << name;
}

}  // namespace
}  // namespace quire
