#include "quire/paging/kv_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

KvLayout Layout(const KvShape& shape, uint32_t layers_per_row) {
  auto layout = KvLayout::Create(shape, layers_per_row);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

// Published configurations; the sizes are worked out by hand.
constexpr KvShape kQwen3_8B = {36, 8, 128, KvDType::kF16};
constexpr KvShape kLlama3_8B = {32, 8, 128, KvDType::kBF16};
constexpr KvShape kSmolLm2_135M = {30, 3, 64, KvDType::kF32};

TEST(KvLayoutTest, PerLayerRowsOfQwen3) {
  const KvLayout layout = Layout(kQwen3_8B, 1);
  EXPECT_EQ(layout.groups(), 36u);
  EXPECT_EQ(layout.RowBytes(0), KiB(4));
  EXPECT_EQ(layout.RowBytes(35), KiB(4));
  EXPECT_EQ(layout.TokenBytes(), KiB(144));
  // 512 tokens fill a page of 2 MiB in each of 36 layers.
  EXPECT_EQ(layout.PagesForTokens(0, MiB(2)), PageCount(0));
  EXPECT_EQ(layout.PagesForTokens(1, MiB(2)), PageCount(36));
  EXPECT_EQ(layout.PagesForTokens(512, MiB(2)), PageCount(36));
  EXPECT_EQ(layout.PagesForTokens(513, MiB(2)), PageCount(72));
}

TEST(KvLayoutTest, CompoundRowsOfQwen3) {
  const KvLayout layout = Layout(kQwen3_8B, 36);
  EXPECT_EQ(layout.groups(), 1u);
  EXPECT_EQ(layout.RowBytes(0), KiB(144));
  // 14 whole tokens in a page, and one partly used page per sequence.
  EXPECT_EQ(layout.PagesForTokens(14, MiB(2)), PageCount(1));
  EXPECT_EQ(layout.PagesForTokens(15, MiB(2)), PageCount(2));
  // 128 tokens are 18 MiB: nine pages, no tail.
  EXPECT_EQ(layout.PagesForTokens(128, MiB(2)), PageCount(9));
}

TEST(KvLayoutTest, SmallestStepOfLlama3) {
  // One K or V tensor per layer takes 1024 tokens a page and 128 MiB for all
  // 64; with K and V in one row it is 512 tokens and half as much.
  const KvLayout layout = Layout(kLlama3_8B, 1);
  EXPECT_EQ(layout.PagesForTokens(1, MiB(2)), PageCount(32));
  EXPECT_EQ(layout.PagesForTokens(512, MiB(2)), PageCount(32));
  EXPECT_EQ(Layout(kLlama3_8B, 32).TokenBytes(), KiB(128));
}

TEST(KvLayoutTest, PlacesOfALayerInItsRow) {
  const KvLayout layout = Layout(kQwen3_8B, 36);
  const auto first = layout.PlaceOf(0);
  EXPECT_EQ(first.group, 0u);
  EXPECT_EQ(first.key_offset, Bytes(0));
  EXPECT_EQ(first.value_offset, KiB(2));
  EXPECT_EQ(first.row_stride, KiB(144));
  const auto last = layout.PlaceOf(35);
  EXPECT_EQ(last.group, 0u);
  EXPECT_EQ(last.key_offset, KiB(140));
  EXPECT_EQ(last.value_offset, KiB(142));
}

TEST(KvLayoutTest, TheLastGroupHasTheLayersThatAreLeft) {
  // 30 layers by 4: seven groups of 4 and one of 2. A layer's K is
  // 3 * 64 * 4 = 768 bytes.
  const KvLayout layout = Layout(kSmolLm2_135M, 4);
  EXPECT_EQ(layout.groups(), 8u);
  EXPECT_EQ(layout.RowBytes(0), Bytes(4 * 2 * 768));
  EXPECT_EQ(layout.RowBytes(6), Bytes(4 * 2 * 768));
  EXPECT_EQ(layout.RowBytes(7), Bytes(2 * 2 * 768));
  EXPECT_EQ(layout.TokenBytes(), Bytes(30 * 2 * 768));
  const auto place = layout.PlaceOf(29);
  EXPECT_EQ(place.group, 7u);
  EXPECT_EQ(place.key_offset, Bytes(2 * 768));
  EXPECT_EQ(place.value_offset, Bytes(3 * 768));
  EXPECT_EQ(place.row_stride, Bytes(4 * 768));
  // 1000 tokens: 6,144,000 bytes (94 pages of 64 KiB) in seven groups, and
  // 3,072,000 (47 pages) in the last.
  EXPECT_EQ(layout.PagesForTokens(1000, KiB(64)), PageCount(7 * 94 + 47));
}

// Every element of every token, layer and side has bytes of its own, within the
// pages that PagesForTokens counts.
TEST(KvLayoutTest, NoTwoElementsOverlap) {
  constexpr uint64_t kTokens = 7;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16}) {
    for (uint32_t layers = 1; layers <= 7; ++layers) {
      for (uint32_t per_row = 1; per_row <= layers; ++per_row) {
        const KvShape shape = {layers, 3, 5, dtype};
        const KvLayout layout = Layout(shape, per_row);
        const uint64_t side = 3 * 5 * KvElementSize(dtype).value();
        std::vector<std::vector<int>> touched(layout.groups());
        for (uint32_t group = 0; group < layout.groups(); ++group)
          touched[group].resize(layout.RowBytes(group).value() * kTokens);
        for (uint32_t layer = 0; layer < layers; ++layer) {
          const auto place = layout.PlaceOf(layer);
          ASSERT_LT(place.group, layout.groups());
          ASSERT_EQ(place.row_stride, layout.RowBytes(place.group));
          for (uint64_t token = 0; token < kTokens; ++token) {
            for (const Bytes offset : {place.key_offset, place.value_offset}) {
              for (uint64_t byte = 0; byte < side; ++byte)
                ++touched[place.group].at(token * place.row_stride.value() +
                                          offset.value() + byte);
            }
          }
        }
        uint64_t pages = 0;
        for (const auto& group : touched) {
          for (const int count : group) ASSERT_EQ(count, 1);
          pages += (group.size() + 63) / 64;
        }
        EXPECT_EQ(layout.PagesForTokens(kTokens, Bytes(64)), PageCount(pages));
        EXPECT_EQ(layout.TokenBytes(), Bytes(layers * 2 * side));
      }
    }
  }
}

TEST(KvLayoutTest, RejectsZeros) {
  for (const KvShape& shape :
       {KvShape{0, 8, 128, KvDType::kF16}, KvShape{36, 0, 128, KvDType::kF16},
        KvShape{36, 8, 0, KvDType::kF16}}) {
    const auto layout = KvLayout::Create(shape, 1);
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(KvLayoutTest, RejectsRowsOfMoreLayersThanThereAre) {
  EXPECT_EQ(KvLayout::Create(kQwen3_8B, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvLayout::Create(kQwen3_8B, 37).status().message(),
            "KV layout: layers_per_row is 37, which is not from 1 to the 36 "
            "layers");
}

TEST(KvLayoutTest, RejectsTokensThatDoNotFit) {
  constexpr uint32_t kMax = UINT32_MAX;
  // 2 * 4 * (2^32-1)^2 exceeds 2^64 with one layer already.
  EXPECT_EQ(KvLayout::Create({1, kMax, kMax, KvDType::kF32}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvLayout::Create({kMax, 1, kMax, KvDType::kF16}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  // 4 * (2^31)(2^30) = 2^63 fits, with one token and no more.
  const KvLayout layout = Layout({1, 1u << 31, 1u << 30, KvDType::kF16}, 1);
  EXPECT_EQ(layout.TokenBytes(), Bytes(uint64_t{1} << 63));
  EXPECT_EQ(layout.PagesForTokens(1, MiB(2)), PageCount(uint64_t{1} << 42));
  EXPECT_EQ(layout.PagesForTokens(2, MiB(2)), std::nullopt);
}

TEST(KvLayoutTest, PagesForTokensThatDoNotFitHaveNoValue) {
  const KvLayout layout = Layout(kQwen3_8B, 1);
  EXPECT_EQ(layout.PagesForTokens(UINT64_MAX, MiB(2)), std::nullopt);
  // 2^51 tokens of 4 KiB fit in a group, and with pages of one byte the sum
  // over the groups does not.
  const uint64_t tokens = uint64_t{1} << 51;
  EXPECT_EQ(layout.PagesForTokens(tokens, MiB(2)),
            PageCount(36 * (uint64_t{1} << 42)));
  EXPECT_EQ(layout.PagesForTokens(tokens, Bytes(1)), std::nullopt);
}

TEST(KvLayoutTest, NamesOfDTypes) {
  EXPECT_STREQ(KvDTypeName(KvDType::kF32), "f32");
  EXPECT_STREQ(KvDTypeName(KvDType::kF16), "f16");
  EXPECT_STREQ(KvDTypeName(KvDType::kBF16), "bf16");
}

}  // namespace
}  // namespace quire
