#include "quire/paging/kv_layout.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
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
  EXPECT_EQ(first.keys.group, 0u);
  EXPECT_EQ(first.keys.offset, Bytes(0));
  EXPECT_EQ(first.values.offset, KiB(2));
  EXPECT_EQ(first.keys.row_stride, KiB(144));
  const auto last = layout.PlaceOf(35);
  EXPECT_EQ(last.keys.group, 0u);
  EXPECT_EQ(last.keys.offset, KiB(140));
  EXPECT_EQ(last.values.offset, KiB(142));
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
  EXPECT_EQ(place.keys.group, 7u);
  EXPECT_EQ(place.keys.offset, Bytes(2 * 768));
  EXPECT_EQ(place.values.offset, Bytes(3 * 768));
  EXPECT_EQ(place.values.row_stride, Bytes(4 * 768));
  // 1000 tokens: 6,144,000 bytes (94 pages of 64 KiB) in seven groups, and
  // 3,072,000 (47 pages) in the last.
  EXPECT_EQ(layout.PagesForTokens(1000, KiB(64)), PageCount(7 * 94 + 47));
}

// ---- Published sizes ----

// DeepSeek-V3's report on its hardware gives these, in thousands of bytes of
// bf16 a token: 70.272 for itself, 327.680 for Qwen2.5-72B and 516.096 for
// Llama-3.1-405B.
TEST(KvLayoutTest, PublishedBytesOfAToken) {
  KvModelShape deepseek;
  deepseek.layers.assign(61, LatentKvLayer(512, 64, KvDType::kBF16));
  const KvShape qwen = {80, 8, 128, KvDType::kBF16};
  const KvShape llama = {126, 8, 128, KvDType::kBF16};
  for (const bool apart : {false, true}) {
    for (const uint32_t per_row : {1u, 7u, 61u}) {
      const KvLayoutOptions options = {per_row, apart};
      EXPECT_EQ(KvLayout::Create(deepseek, options)->TokenBytes(),
                Bytes(70'272));
      EXPECT_EQ(KvLayout::Create(qwen, options)->TokenBytes(), Bytes(327'680));
      EXPECT_EQ(KvLayout::Create(llama, options)->TokenBytes(), Bytes(516'096));
    }
  }
}

TEST(KvLayoutTest, ALatentVectorIsKeyAndValue) {
  KvModelShape shape;
  shape.layers.assign(3, LatentKvLayer(512, 64, KvDType::kBF16));
  const KvLayout layout = *KvLayout::Create(shape, {2, true});
  EXPECT_EQ(layout.groups(), 2u);  // there is nothing to keep apart
  EXPECT_EQ(layout.RowBytes(0), Bytes(2 * 1152));
  EXPECT_EQ(layout.PlaceOf(1).keys.offset, Bytes(1152));
  EXPECT_EQ(layout.PlaceOf(1).values.offset, Bytes(1152));
  EXPECT_EQ(layout.PlaceOf(2).values.group, 1u);
}

TEST(KvLayoutTest, KeysAndValuesApart) {
  const KvLayout layout = *KvLayout::Create(kLlama3_8B, {32, true});
  EXPECT_EQ(layout.groups(), 2u);
  EXPECT_EQ(layout.RowBytes(0), KiB(64));
  EXPECT_EQ(layout.RowBytes(1), KiB(64));
  const auto place = layout.PlaceOf(31);
  EXPECT_EQ(place.keys.group, 0u);
  EXPECT_EQ(place.values.group, 1u);
  EXPECT_EQ(place.keys.offset, KiB(62));
  EXPECT_EQ(place.values.offset, KiB(62));
  // vAttention's smallest step for this model: 1024 tokens a page of 2 MiB and
  // 128 MiB with a tensor per layer and side, 32 tokens and 4 MiB with two.
  EXPECT_EQ(layout.PagesForTokens(32, MiB(2)), PageCount(2));
  EXPECT_EQ(layout.PagesForTokens(33, MiB(2)), PageCount(4));
  const KvLayout tensors = *KvLayout::Create(kLlama3_8B, {1, true});
  EXPECT_EQ(tensors.PagesForTokens(1024, MiB(2)), PageCount(64));
  EXPECT_EQ(tensors.PagesForTokens(1025, MiB(2)), PageCount(128));
}

// ---- Several kinds ----

// One of every `period` layers is full, the last one or the first.
KvModelShape Alternating(uint32_t layers, uint32_t period, bool full_last,
                         KvLayerKind window, KvLayerKind full) {
  KvModelShape shape;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const bool is_full = layer % period == (full_last ? period - 1 : 0);
    shape.layers.push_back(is_full ? full : window);
  }
  return shape;
}

// gpt-oss-20b: 24 layers, 8 heads of 64, every second one with a window of 128,
// the first one included.
KvModelShape GptOss20B() {
  const KvLayerKind full = {8, 64, 64, KvDType::kBF16};
  KvLayerKind window = full;
  window.window = 128;
  return Alternating(24, 2, true, window, full);
}

TEST(KvLayoutTest, WindowsOfGptOss) {
  const KvLayout layout = *KvLayout::Create(GptOss20B(), 24);
  ASSERT_EQ(layout.groups(), 2u);  // a row has the layers of one kind
  EXPECT_EQ(layout.kinds()[layout.GroupKind(0)].window, 128u);
  EXPECT_EQ(layout.kinds()[layout.GroupKind(1)].window, 0u);
  EXPECT_EQ(layout.RowBytes(0), KiB(24));
  EXPECT_EQ(layout.RowBytes(1), KiB(24));
  EXPECT_EQ(layout.TokenBytes(), KiB(48));
  EXPECT_EQ(layout.PlaceOf(0).keys.group, 0u);
  EXPECT_EQ(layout.PlaceOf(1).keys.group, 1u);
  EXPECT_EQ(layout.PlaceOf(3).keys.group, 1u);
  EXPECT_EQ(layout.PlaceOf(3).keys.offset, KiB(2));
  // 12 * 2 * 8 * 64 * 2 bytes: of 100 tokens all, of 131072 those of half of
  // the layers and 128 of the others.
  EXPECT_EQ(layout.KeptBytes(100), Bytes(100 * 49'152));
  EXPECT_EQ(layout.KeptBytes(131'072), Bytes(24'576u * (131'072 + 128)));
}

TEST(KvLayoutTest, RowsOfTwoSizesOfGemma3) {
  // Gemma-3-27B: 62 layers of 16 heads of 128, every sixth one without the
  // window of 1024. By 4: 52 local layers make 13 groups, 10 global ones 3.
  const KvLayerKind full = {16, 128, 128, KvDType::kBF16};
  KvLayerKind window = full;
  window.window = 1024;
  const KvModelShape shape = Alternating(62, 6, true, window, full);
  const KvLayout layout = *KvLayout::Create(shape, 4);
  ASSERT_EQ(layout.kinds().size(), 2u);
  EXPECT_EQ(layout.groups(), 13u + 3u);
  EXPECT_EQ(layout.RowBytes(12), KiB(32));
  EXPECT_EQ(layout.RowBytes(15), KiB(16));  // two layers are left
  EXPECT_EQ(layout.KeptBytes(1024), Bytes(8192u * 62 * 1024));
  EXPECT_EQ(layout.KeptBytes(10'000), Bytes(8192u * (10'000 * 10 + 1024 * 52)));
}

TEST(KvLayoutTest, SinksAreKeptBesideTheWindow) {
  const KvLayerKind kind = {1, 4, 4, KvDType::kF32, KvScale::kNone, 10, 3};
  EXPECT_EQ(KeptTokens(kind, 10).first, 0u);
  EXPECT_EQ(KeptTokens(kind, 11).first, 1u);
  EXPECT_EQ(KeptTokens(kind, 11).sinks, 1u);  // the only one outside
  EXPECT_EQ(KeptTokens(kind, 12).sinks, 2u);
  EXPECT_EQ(KeptTokens(kind, 100).first, 90u);
  EXPECT_EQ(KeptTokens(kind, 100).sinks, 3u);
  EXPECT_EQ(KeptTokens({1, 4, 4}, 1000).first, 0u);
}

// Against a list of the tokens that are kept, and the pages they touch.
TEST(KvLayoutTest, PagesKeptAreThoseThatHoldAKeptToken) {
  for (const uint64_t window : {0u, 1u, 5u, 40u}) {
    for (const uint64_t sinks : {0u, 1u, 7u}) {
      KvModelShape shape;
      shape.layers = {{1, 3, 5, KvDType::kF16},
                      {1, 3, 5, KvDType::kF16, KvScale::kNone, window, sinks}};
      for (const uint32_t per_row : {1u, 2u}) {
        for (const bool apart : {false, true}) {
          const KvLayout layout = *KvLayout::Create(shape, {per_row, apart});
          for (uint64_t tokens = 0; tokens < 60; ++tokens) {
            std::set<std::pair<uint32_t, uint64_t>> pages;
            uint64_t bytes = 0;
            for (uint32_t group = 0; group < layout.groups(); ++group) {
              const uint64_t row = layout.RowBytes(group).value();
              const bool windowed =
                  window != 0 &&
                  layout.kinds()[layout.GroupKind(group)].window != 0;
              for (uint64_t token = 0; token < tokens; ++token) {
                if (windowed && token >= sinks && token + window < tokens)
                  continue;
                bytes += row;
                for (uint64_t byte = token * row; byte < token * row + row;
                     ++byte)
                  pages.emplace(group, byte / 64);
              }
            }
            ASSERT_EQ(layout.PagesKept(tokens, Bytes(64)),
                      PageCount(pages.size()));
            ASSERT_EQ(layout.KeptBytes(tokens), Bytes(bytes));
          }
        }
      }
    }
  }
}

// ---- Places ----

// Every element and scale of every token, layer and side has bytes of its own,
// aligned to its size, within the pages that PagesForTokens counts, and nothing
// but padding is left over.
void ExpectNothingOverlaps(const KvModelShape& shape,
                           const KvLayoutOptions& options) {
  constexpr uint64_t kTokens = 5;
  const KvLayout layout = *KvLayout::Create(shape, options);
  std::vector<std::vector<int>> touched(layout.groups());
  uint64_t used = 0;
  for (uint32_t group = 0; group < layout.groups(); ++group)
    touched[group].resize(layout.RowBytes(group).value() * kTokens);
  const auto touch = [&](const KvLayout::SidePlace& side, Bytes offset,
                         uint64_t count, uint64_t size) {
    ASSERT_EQ(side.row_stride, layout.RowBytes(side.group));
    used += count * size;
    for (uint64_t token = 0; token < kTokens; ++token) {
      const uint64_t at = token * side.row_stride.value() + offset.value();
      ASSERT_EQ(at % size, 0u);
      for (uint64_t byte = 0; byte < count * size; ++byte)
        ++touched[side.group].at(at + byte);
    }
  };
  for (uint32_t layer = 0; layer < shape.layers.size(); ++layer) {
    const KvLayerKind& kind = shape.layers[layer];
    const auto place = layout.PlaceOf(layer);
    ASSERT_EQ(layout.KindOf(layer), kind);
    ASSERT_EQ(layout.kinds()[layout.GroupKind(place.keys.group)], kind);
    const uint64_t element = KvElementSize(kind.dtype).value();
    const uint64_t scale = KvScaleSize(kind.scale).value();
    touch(place.keys, place.keys.offset, uint64_t{kind.kv_heads} * kind.key_dim,
          element);
    if (scale > 0) touch(place.keys, place.keys.scales, kind.kv_heads, scale);
    if (kind.value_dim == 0) continue;
    ASSERT_EQ(place.values.group == place.keys.group, !options.values_apart);
    touch(place.values, place.values.offset,
          uint64_t{kind.kv_heads} * kind.value_dim, element);
    if (scale > 0)
      touch(place.values, place.values.scales, kind.kv_heads, scale);
  }
  uint64_t pages = 0;
  uint64_t bytes = 0;
  for (const auto& group : touched) {
    for (const int count : group) ASSERT_LE(count, 1);
    pages += (group.size() + 63) / 64;
    bytes += group.size() / kTokens;
  }
  EXPECT_EQ(layout.PagesForTokens(kTokens, Bytes(64)), PageCount(pages));
  EXPECT_EQ(layout.TokenBytes(), Bytes(bytes));
  // Less than a scale of padding a side.
  EXPECT_LE(bytes - used, shape.layers.size() * 2 * 3);
}

TEST(KvLayoutTest, NoTwoElementsOverlap) {
  const KvLayerKind kinds[] = {
      {3, 5, 5, KvDType::kF32},
      {3, 5, 5, KvDType::kBF16},
      {2, 6, 4, KvDType::kF16},
      {1, 7, 0, KvDType::kF8E4M3},
      {3, 5, 3, KvDType::kF8E5M2, KvScale::kF16},
      {3, 5, 5, KvDType::kInt8, KvScale::kF32},
      {1, 9, 0, KvDType::kInt8, KvScale::kF32},
  };
  for (const KvLayerKind& kind : kinds) {
    KvLayerKind windowed = kind;
    windowed.window = 4;
    for (uint32_t layers = 1; layers <= 7; ++layers) {
      // All alike, and a window in every second and in every third.
      for (const uint32_t period : {1u, 2u, 3u}) {
        const KvModelShape shape =
            Alternating(layers, period, false, windowed, kind);
        for (uint32_t per_row = 1; per_row <= layers; ++per_row) {
          for (const bool apart : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << KvDTypeName(kind.dtype) << ", " << layers
                         << " layers by " << per_row << ", apart " << apart);
            ExpectNothingOverlaps(shape, {per_row, apart});
          }
        }
      }
    }
  }
}

TEST(KvLayoutTest, ScalesStandBehindTheirElements) {
  // 8 heads of 128 in 8 bits and their scales: 1024 + 32 bytes a side.
  KvModelShape shape;
  shape.layers.assign(2, {8, 128, 128, KvDType::kF8E4M3, KvScale::kF32});
  const KvLayout layout = *KvLayout::Create(shape, 2);
  EXPECT_EQ(layout.RowBytes(0), Bytes(4 * 1056));
  EXPECT_EQ(layout.PlaceOf(1).keys.offset, Bytes(2 * 1056));
  EXPECT_EQ(layout.PlaceOf(1).keys.scales, Bytes(2 * 1056 + 1024));
  EXPECT_EQ(layout.PlaceOf(1).values.scales, Bytes(3 * 1056 + 1024));
}

TEST(KvLayoutTest, RejectsScalesThatDoNotGoWithTheElements) {
  const auto create = [](KvDType dtype, KvScale scale) {
    KvModelShape shape;
    shape.layers = {{8, 128, 128, dtype, scale}};
    return KvLayout::Create(shape, 1).status();
  };
  EXPECT_EQ(create(KvDType::kF16, KvScale::kF32).message(),
            "KV layout: elements of f16 have no scales");
  EXPECT_EQ(create(KvDType::kInt8, KvScale::kNone).message(),
            "KV layout: elements of int8 need scales");
  EXPECT_TRUE(create(KvDType::kInt8, KvScale::kF16).ok());
  EXPECT_TRUE(create(KvDType::kF8E5M2, KvScale::kNone).ok());
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
  for (const KvShape& shape :
       {KvShape{1, kMax, kMax, KvDType::kF32},
        KvShape{kMax, 1, 1, KvDType::kF16}, KvShape{5, 1u << 31, 1u << 30}})
    EXPECT_EQ(KvLayout::Create(shape, 1).status().code(),
              absl::StatusCode::kInvalidArgument);
  KvModelShape latent;
  latent.layers = {LatentKvLayer(kMax, kMax, KvDType::kF16)};
  EXPECT_EQ(KvLayout::Create(latent, 1).status().code(),
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
  EXPECT_STREQ(KvDTypeName(KvDType::kF8E4M3), "fp8_e4m3");
  EXPECT_STREQ(KvDTypeName(KvDType::kF8E5M2), "fp8_e5m2");
  EXPECT_STREQ(KvDTypeName(KvDType::kInt8), "int8");
}

}  // namespace
}  // namespace quire
