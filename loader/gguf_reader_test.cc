#include "loader/gguf_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "loader/checkpoint_test_util.h"

namespace quire {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string String(std::string_view text) {
  return LittleEndian<uint64_t>(text.size()) + std::string(text);
}

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A GGUF file, piece by piece.
struct GgufBuilder {
  uint32_t version = 3;
  uint64_t alignment = 32;
  uint64_t pairs = 0;
  uint64_t tensors = 0;
  std::string metadata;
  std::string infos;
  std::string data;

  GgufBuilder& Pair(std::string_view key, uint32_t type,
                    const std::string& value) {
    ++pairs;
    metadata += String(key) + LittleEndian(type) + value;
    return *this;
  }
  // `dimensions` in the file's order, the fastest first.
  GgufBuilder& Tensor(std::string_view name, std::vector<uint64_t> dimensions,
                      uint32_t type, uint64_t offset) {
    ++tensors;
    infos += String(name) + LittleEndian<uint32_t>(dimensions.size());
    for (const uint64_t dimension : dimensions)
      infos += LittleEndian(dimension);
    infos += LittleEndian(type) + LittleEndian(offset);
    return *this;
  }
  GgufBuilder& Data(size_t size) {
    data.append(size, '\x11');
    return *this;
  }
  std::string Build() const {
    std::string file = "GGUF" + LittleEndian(version) + LittleEndian(tensors) +
                       LittleEndian(pairs) + metadata + infos;
    while (tensors > 0 && file.size() % alignment != 0) file += '\0';
    return file + data;
  }
};

absl::StatusOr<GgufFile> Read(const std::string& bytes) {
  return ReadGguf(MemoryFile(bytes, "model.gguf"));
}

void ExpectRefused(const std::string& bytes, const std::string& part) {
  const auto gguf = Read(bytes);
  ASSERT_FALSE(gguf.ok()) << part;
  const std::string message(gguf.status().message());
  EXPECT_THAT(message, HasSubstr("model.gguf"));
  EXPECT_THAT(message, HasSubstr(part));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

TEST(GgufReaderTest, ReadsEveryKindOfValue) {
  const auto gguf =
      Read(GgufBuilder()
               .Pair("u8", 0, "\xff")
               .Pair("i8", 1, "\xff")
               .Pair("u16", 2, LittleEndian<uint16_t>(65535))
               .Pair("i16", 3, LittleEndian<int16_t>(-2))
               .Pair("u32", 4, LittleEndian<uint32_t>(4294967295u))
               .Pair("i32", 5, LittleEndian<int32_t>(-3))
               .Pair("f32", 6, Raw(1.5f))
               .Pair("bool", 7, "\1")
               .Pair("string", 8, String("caf\xc3\xa9"))
               .Pair("array", 9,
                     LittleEndian<uint32_t>(8) + LittleEndian<uint64_t>(2) +
                         String("a") + String(""))
               .Pair("u64", 10, LittleEndian<uint64_t>(UINT64_MAX))
               .Pair("i64", 11, LittleEndian<int64_t>(INT64_MIN))
               .Pair("f64", 12, Raw(-0.1))
               .Build());
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const json expected = {{"u8", 255u},
                         {"i8", -1},
                         {"u16", 65535u},
                         {"i16", -2},
                         {"u32", 4294967295u},
                         {"i32", -3},
                         {"f32", 1.5},
                         {"bool", true},
                         {"string", "caf\xc3\xa9"},
                         {"array", json::array({"a", ""})},
                         {"u64", UINT64_MAX},
                         {"i64", INT64_MIN},
                         {"f64", -0.1}};
  EXPECT_EQ(gguf->metadata, expected);
  EXPECT_THAT(gguf->tensors, IsEmpty());
}

TEST(GgufReaderTest, ReadsNestedAndEmptyArrays) {
  const std::string inner = LittleEndian<uint32_t>(0) +
                            LittleEndian<uint64_t>(2) + std::string("\1\2");
  const std::string empty =
      LittleEndian<uint32_t>(6) + LittleEndian<uint64_t>(0);
  const auto gguf =
      Read(GgufBuilder()
               .Pair("a", 9,
                     LittleEndian<uint32_t>(9) + LittleEndian<uint64_t>(2) +
                         inner + empty)
               .Build());
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->metadata["a"], json::parse("[[1,2],[]]"));
}

TEST(GgufReaderTest, ReadsEverySupportedTypeWithItsSize) {
  struct Type {
    uint32_t number;
    DType dtype;
    uint64_t bytes;  // of 256 elements; from ggml's block structures
  };
  const std::vector<Type> types = {{0, DType::kF32, 1024},
                                   {1, DType::kF16, 512},
                                   {30, DType::kBF16, 512},
                                   {2, DType::kQ4_0, 8 * (2 + 16)},
                                   {3, DType::kQ4_1, 8 * (4 + 16)},
                                   {6, DType::kQ5_0, 8 * (2 + 4 + 16)},
                                   {7, DType::kQ5_1, 8 * (4 + 4 + 16)},
                                   {8, DType::kQ8_0, 8 * (2 + 32)},
                                   {10, DType::kQ2_K, 16 + 64 + 4},
                                   {11, DType::kQ3_K, 32 + 64 + 12 + 2},
                                   {12, DType::kQ4_K, 4 + 12 + 128},
                                   {13, DType::kQ5_K, 4 + 12 + 32 + 128},
                                   {14, DType::kQ6_K, 128 + 64 + 16 + 2},
                                   {20, DType::kIQ4_NL, 8 * (2 + 16)},
                                   {23, DType::kIQ4_XS, 2 + 2 + 4 + 128},
                                   {39, DType::kMxfp4, 8 * (1 + 16)}};
  for (const Type& type : types) {
    const auto gguf = Read(GgufBuilder()
                               .Tensor("w", {256}, type.number, 0)
                               .Data(type.bytes)
                               .Build());
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    EXPECT_EQ(gguf->tensors[0].dtype, type.dtype);
    EXPECT_EQ(gguf->tensors[0].size, Bytes(type.bytes));
    EXPECT_THAT(gguf->warnings, IsEmpty());
  }
}

TEST(GgufReaderTest, ReportsShapesOutermostFirstAndAbsoluteOffsets) {
  const std::string bytes = GgufBuilder()
                                .Tensor("b", {32, 3}, 2, 32)
                                .Tensor("a", {}, 0, 0)
                                .Data(32 + 54)
                                .Build();
  const auto gguf = Read(bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const uint64_t data_begin = bytes.size() - 32 - 54;
  ASSERT_EQ(gguf->tensors.size(), 2u);
  EXPECT_EQ(gguf->tensors[0].name, "a");
  EXPECT_EQ(gguf->tensors[0].offset, data_begin);
  EXPECT_THAT(gguf->tensors[0].shape, IsEmpty());
  EXPECT_EQ(gguf->tensors[1].name, "b");
  EXPECT_EQ(gguf->tensors[1].offset, data_begin + 32);
  EXPECT_THAT(gguf->tensors[1].shape, ElementsAre(3, 32));
}

TEST(GgufReaderTest, HonoursTheAlignmentOfTheFile) {
  GgufBuilder builder;
  builder.alignment = 4096;
  builder.Pair("general.alignment", 4, LittleEndian<uint32_t>(4096))
      .Tensor("a", {1}, 0, 0)
      .Tensor("b", {1}, 0, 4096)
      .Data(4100);
  const auto gguf = Read(builder.Build());
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->tensors[0].offset, 4096u);
  EXPECT_EQ(gguf->tensors[1].offset, 8192u);
}

TEST(GgufReaderTest, RefusesWrongAlignments) {
  for (const uint32_t alignment : {0u, 3u, 48u})
    ExpectRefused(GgufBuilder()
                      .Pair("general.alignment", 4, LittleEndian(alignment))
                      .Build(),
                  "key \"general.alignment\": is");
  ExpectRefused(
      GgufBuilder().Pair("general.alignment", 8, String("32")).Build(),
      "general.alignment");
  ExpectRefused(GgufBuilder()
                    .Pair("general.alignment", 5, LittleEndian<int32_t>(-32))
                    .Build(),
                "general.alignment");
}

TEST(GgufReaderTest, RefusesOtherFilesAndVersions) {
  ExpectRefused("", "does not begin with \"GGUF\"");
  ExpectRefused("GGU", "does not begin with \"GGUF\"");
  ExpectRefused("GGML\3\0\0\0", "does not begin with \"GGUF\"");
  ExpectRefused("version https://git-lfs.github.com/spec/v1\n", "git lfs pull");
  GgufBuilder builder;
  for (const uint32_t version : {0u, 1u, 4u, 77u}) {
    builder.version = version;
    ExpectRefused(builder.Build(), "version " + std::to_string(version));
  }
  builder.version = 0x03000000;
  ExpectRefused(builder.Build(), "big-endian");
  builder.version = 2;
  EXPECT_TRUE(Read(builder.Build()).ok());
}

TEST(GgufReaderTest, RefusesTypesByNameAndSaysWhatWorks) {
  const std::vector<std::pair<uint32_t, const char*>> types = {
      {9, "Q8_1"}, {15, "Q8_K"}, {16, "IQ2_XXS"}, {21, "IQ3_S"}, {29, "IQ1_M"},
      {26, "I32"}, {28, "F64"},  {34, "TQ1_0"},   {40, "NVFP4"}};
  for (const auto& [number, name] : types) {
    const std::string bytes =
        GgufBuilder().Tensor("blk.0.w", {256}, number, 0).Data(4096).Build();
    ExpectRefused(bytes, "tensor \"blk.0.w\": type " + std::string(name) +
                             " is not supported: F32, F16");
  }
  for (const uint32_t number : {4u, 5u, 31u, 99u, 0xffffffffu})
    ExpectRefused(GgufBuilder().Tensor("w", {256}, number, 0).Data(99).Build(),
                  "tensor \"w\": type number " + std::to_string(number));
}

TEST(GgufReaderTest, RefusesWrongMetadata) {
  const std::string u8 = "\1";
  ExpectRefused(GgufBuilder().Pair("k", 13, "").Build(),
                "key \"k\": value type 13 is unknown");
  ExpectRefused(GgufBuilder().Pair("k", 7, "\2").Build(),
                "key \"k\": a boolean is 2");
  ExpectRefused(GgufBuilder().Pair("k", 0, u8).Pair("k", 0, u8).Build(),
                "key \"k\": occurs twice");
  ExpectRefused(GgufBuilder().Pair("", 0, u8).Build(), "the key is empty");
  ExpectRefused(GgufBuilder().Pair("\xff", 0, u8).Build(), "not UTF-8");
  ExpectRefused(GgufBuilder().Pair("k", 8, String("\xc0\x80")).Build(),
                "key \"k\": the string");
  ExpectRefused(GgufBuilder().Pair(std::string(65536, 'k'), 0, u8).Build(),
                "too long");
  ExpectRefused(
      GgufBuilder()
          .Pair("k", 9, LittleEndian<uint32_t>(77) + LittleEndian<uint64_t>(0))
          .Build(),
      "value type 77");
  ExpectRefused(
      GgufBuilder().Pair("split.count", 2, LittleEndian<uint16_t>(3)).Build(),
      "split into 3 files");
  EXPECT_TRUE(Read(GgufBuilder()
                       .Pair("split.count", 2, LittleEndian<uint16_t>(1))
                       .Build())
                  .ok());
}

TEST(GgufReaderTest, RefusesArraysThatAreTooDeepOrTooLarge) {
  const std::string nested =
      LittleEndian<uint32_t>(9) + LittleEndian<uint64_t>(1);
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += nested;
  ExpectRefused(GgufBuilder().Pair("k", 9, deep).Build(),
                "key \"k\": arrays are nested deeper");
  for (const uint64_t count :
       {uint64_t{1} << 20, uint64_t{1} << 61, UINT64_MAX})
    ExpectRefused(
        GgufBuilder()
            .Pair("k", 9, LittleEndian<uint32_t>(10) + LittleEndian(count))
            .Build(),
        "key \"k\": an array of " + std::to_string(count));
}

TEST(GgufReaderTest, MemoryIsBoundedWhateverTheFileClaims) {
  // Counts that the file is long enough for, as it is sparse.
  const std::string array =
      GgufBuilder()
          .Pair("k", 9,
                LittleEndian<uint32_t>(0) + LittleEndian<uint64_t>(1ull << 36))
          .Build();
  EXPECT_THAT(
      ReadGguf(SparseFile(array, "x", GiB(1024))).status().message(),
      HasSubstr("key \"k\": the header describes more than can be kept"));
  // An array of empty arrays takes the file twelve bytes for each.
  const std::string arrays =
      GgufBuilder()
          .Pair("k", 9,
                LittleEndian<uint32_t>(9) + LittleEndian<uint64_t>(4'000'000))
          .Build();
  EXPECT_THAT(ReadGguf(SparseFile(arrays, "x", GiB(1024))).status().message(),
              HasSubstr("more than can be kept"));
  const std::string text =
      GgufBuilder().Pair("k", 8, LittleEndian<uint64_t>(1ull << 36)).Build();
  EXPECT_THAT(ReadGguf(SparseFile(text, "x", GiB(1024))).status().message(),
              HasSubstr("more than can be kept"));
}

TEST(GgufReaderTest, RefusesWrongTensors) {
  ExpectRefused(GgufBuilder().Tensor("", {1}, 0, 0).Data(4).Build(),
                "the name is empty");
  ExpectRefused(
      GgufBuilder().Tensor("w", {1, 1, 1, 1, 1}, 0, 0).Data(4).Build(),
      "tensor \"w\": has 5 dimensions");
  ExpectRefused(GgufBuilder()
                    .Tensor("w", {1}, 0, 0)
                    .Tensor("w", {1}, 0, 32)
                    .Data(36)
                    .Build(),
                "tensor \"w\": occurs twice");
  ExpectRefused(GgufBuilder().Tensor("w", {33}, 2, 0).Data(99).Build(),
                "tensor \"w\": a row of 33 elements");
  ExpectRefused(GgufBuilder().Tensor("w", {32, 8}, 14, 0).Data(999).Build(),
                "tensor \"w\": a row of 32 elements");
  ExpectRefused(GgufBuilder().Tensor("w", {}, 8, 0).Data(99).Build(),
                "tensor \"w\": a row of 1 elements");
  ExpectRefused(
      GgufBuilder().Tensor("w", {1ull << 32, 1ull << 32}, 0, 0).Build(),
      "tensor \"w\": [4294967296, 4294967296] has more bytes");
  ExpectRefused(GgufBuilder().Tensor("w", {1ull << 62}, 0, 0).Build(),
                "tensor \"w\"");
  ExpectRefused(GgufBuilder().Tensor("w", {1}, 0, 16).Data(64).Build(),
                "tensor \"w\": offset 16 is no multiple");
  ExpectRefused(GgufBuilder().Tensor("w", {2}, 0, 0).Data(7).Build(),
                "tensor \"w\": 8 bytes at offset 0");
  ExpectRefused(GgufBuilder().Tensor("w", {1}, 0, 1ull << 40).Data(7).Build(),
                "truncated");
  ExpectRefused(
      GgufBuilder().Tensor("w", {1}, 0, UINT64_MAX - 31).Data(64).Build(),
      "tensor \"w\"");
  ExpectRefused(GgufBuilder()
                    .Tensor("a", {16}, 0, 0)
                    .Tensor("b", {1}, 0, 32)
                    .Data(64)
                    .Build(),
                "tensor \"b\": begins at byte");
  ExpectRefused(GgufBuilder()
                    .Tensor("a", {1}, 0, 0)
                    .Tensor("b", {1}, 0, 0)
                    .Data(64)
                    .Build(),
                "begins at byte");
}

TEST(GgufReaderTest, BytesBehindTheLastTensorAreAWarning) {
  EXPECT_THAT(
      Read(GgufBuilder().Tensor("a", {1}, 0, 0).Data(32).Build())->warnings,
      IsEmpty());
  EXPECT_THAT(
      Read(GgufBuilder().Tensor("a", {1}, 0, 0).Data(36).Build())->warnings,
      ElementsAre(HasSubstr("32 bytes follow")));
}

TEST(GgufReaderTest, EveryTruncationIsRefused) {
  const std::string bytes =
      GgufBuilder()
          .Pair("general.architecture", 8, String("llama"))
          .Pair("a", 9,
                LittleEndian<uint32_t>(8) + LittleEndian<uint64_t>(1) +
                    String("token"))
          .Tensor("a", {32, 2}, 8, 0)
          .Tensor("b", {3}, 0, 96)
          .Data(96 + 12)
          .Build();
  ASSERT_TRUE(Read(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(Read(bytes.substr(0, size)).ok()) << size;
}

TEST(GgufReaderTest, DamagedFilesAreRefusedOrStillSound) {
  const std::string good =
      GgufBuilder()
          .Pair("general.architecture", 8, String("llama"))
          .Pair("n", 4, LittleEndian<uint32_t>(7))
          .Pair("a", 9,
                LittleEndian<uint32_t>(9) + LittleEndian<uint64_t>(1) +
                    LittleEndian<uint32_t>(6) + LittleEndian<uint64_t>(2) +
                    Raw(1.0f) + Raw(2.0f))
          .Tensor("blk.0.attn_q.weight", {32, 2}, 8, 0)
          .Tensor("blk.0.attn_norm.weight", {3}, 0, 96)
          .Data(96 + 12)
          .Build();
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto gguf = Read(bytes);
    if (!gguf.ok()) {
      EXPECT_THAT(gguf.status().message(), Not(HasSubstr("\n")));
      continue;
    }
    uint64_t end = 0;
    for (const TensorInfo& tensor : gguf->tensors) {
      EXPECT_GE(tensor.offset, end);
      end = tensor.offset + tensor.size.value();
    }
    EXPECT_LE(end, bytes.size());
  }
}

}  // namespace
}  // namespace quire
