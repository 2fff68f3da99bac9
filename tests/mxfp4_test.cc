// MXFP4 experts against transformers' own decoding of them.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "quire/loader/checkpoint.h"
#include "quire/loader/quantization.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

std::vector<std::byte> Read(const Checkpoint& checkpoint,
                            const TensorInfo& tensor) {
  std::vector<std::byte> bytes;
  const absl::Status status = checkpoint.ReadSmallTensor(tensor, &bytes);
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

TEST(Mxfp4Test, ExpertsAreThoseOfTransformers) {
  const auto checkpoint = Checkpoint::Open(
      std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden/mxfp4");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto quantized = FindQuantizedModules(**checkpoint);
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  ASSERT_EQ(quantized->scaled.size(), 1u);
  const ScaledModule& module = quantized->scaled.front();
  const TensorInfo* const reference = (*checkpoint)->Find("reference");
  ASSERT_NE(reference, nullptr);
  ASSERT_EQ(reference->shape,
            (std::vector<uint64_t>{module.count, module.out_features,
                                   module.in_features}));

  const std::vector<std::byte> codes = Read(**checkpoint, *module.codes);
  const std::vector<std::byte> scales = Read(**checkpoint, *module.scales);
  const std::vector<std::byte> expected = Read(**checkpoint, *reference);
  std::vector<float> row(module.in_features);
  for (uint64_t expert = 0; expert < module.count; ++expert) {
    const uint64_t first_row = expert * module.out_features;
    const ScaledMatrix matrix = {
        .kind = module.kind,
        .in_features = module.in_features,
        .out_features = module.out_features,
        .codes = reinterpret_cast<const uint8_t*>(codes.data()) +
                 first_row * module.row_bytes,
        .row_bytes = module.row_bytes,
        .scales = scales.data() + first_row * module.scale_columns(),
        .scales_dtype = module.scales_dtype,
        .block_rows = module.block_rows,
        .block_columns = module.block_columns};
    for (uint64_t r = 0; r < module.out_features; ++r) {
      DequantizeRow(matrix, r, row.data());
      EXPECT_EQ(
          std::memcmp(row.data(),
                      expected.data() +
                          (first_row + r) * module.in_features * sizeof(float),
                      row.size() * sizeof(float)),
          0)
          << "expert " << expert << ", row " << r;
    }
  }
}

}  // namespace
}  // namespace quire
