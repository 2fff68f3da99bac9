#include "quire/paging/kv_layout_choice.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace quire {
namespace {

constexpr KvShape kQwen3_8B = {36, 8, 128, KvDType::kF16};

KvModelShape WithWindow(uint64_t window, uint64_t sinks) {
  KvModelShape shape;
  shape.layers.assign(6, {2, 8, 8, KvDType::kF16});
  for (size_t layer = 0; layer < 6; layer += 2) {
    shape.layers[layer].window = window;
    shape.layers[layer].sinks = sinks;
  }
  return shape;
}

// Every length by itself, with the pages and bytes of KvLayout, which its own
// test counts one by one.
double BruteForceWaste(const KvLayout& layout, uint64_t mean, Bytes page) {
  double pages = 0;
  double bytes = 0;
  for (uint64_t tokens = 1; tokens <= 2 * mean - 1; ++tokens) {
    pages += static_cast<double>(layout.PagesKept(tokens, page)->value());
    bytes += static_cast<double>(layout.KeptBytes(tokens)->value());
  }
  return pages * static_cast<double>(page.value()) / bytes - 1;
}

TEST(ChooseLayoutTest, WasteIsTheMeanOverAllLengths) {
  for (const uint64_t window : {0u, 1u, 20u, 64u, 500u}) {
    for (const uint64_t sinks : {0u, 4u, 33u}) {
      const KvModelShape shape = WithWindow(window, sinks);
      for (const uint64_t mean : {1u, 7u, 100u, 401u}) {
        for (const Bytes page : {Bytes(48), Bytes(1024), KiB(16)}) {
          for (const bool apart : {false, true}) {
            const auto choice = ChooseLayout(shape, {mean, 0.1}, page, apart);
            ASSERT_TRUE(choice.ok()) << choice.status();
            for (const auto& candidate : choice->candidates) {
              const KvLayout layout =
                  *KvLayout::Create(shape, {candidate.layers_per_row, apart});
              EXPECT_EQ(candidate.groups, layout.groups());
              const double waste = BruteForceWaste(layout, mean, page);
              EXPECT_NEAR(candidate.tail_waste, waste, 1e-9 * (1 + waste));
            }
          }
        }
      }
    }
  }
}

TEST(ChooseLayoutTest, PicksTheSmallestRowWithinTheLimit) {
  for (const double limit : {0.0, 0.005, 0.02, 0.1, 0.3, 5.0}) {
    for (const uint64_t mean : {200u, 1366u, 20'000u}) {
      const auto choice = ChooseLayout(kQwen3_8B, {mean, limit}, MiB(2));
      ASSERT_TRUE(choice.ok()) << choice.status();
      // Of all 36, not of the candidates alone.
      uint32_t expected = 0;
      uint32_t least = 1;
      double least_waste = std::numeric_limits<double>::infinity();
      for (uint32_t per_row = 1; per_row <= 36; ++per_row) {
        const double waste = BruteForceWaste(
            *KvLayout::Create(kQwen3_8B, per_row), mean, MiB(2));
        if (waste <= limit && expected == 0) expected = per_row;
        if (waste < least_waste) {
          least = per_row;
          least_waste = waste;
        }
      }
      EXPECT_EQ(choice->options.layers_per_row,
                expected == 0 ? least : expected)
          << limit << " " << mean << "\n"
          << FormatLayoutChoice(*choice);
    }
  }
}

// A tail is half a page in the mean: a group's share of 1 MiB, of 1366 tokens
// of 144 KiB, 192.1 MiB.
TEST(ChooseLayoutTest, Qwen3AtTheLengthsOfAzureConversations) {
  const auto choice = ChooseLayout(kQwen3_8B, {1366}, MiB(2));
  ASSERT_TRUE(choice.ok()) << choice.status();
  ASSERT_EQ(choice->candidates.size(), 11u);
  EXPECT_NEAR(choice->candidates.front().tail_waste, 36 / 192.1, 0.01);
  EXPECT_NEAR(choice->candidates.back().tail_waste, 1 / 192.1, 0.0005);
  EXPECT_EQ(choice->options.layers_per_row, 12u);  // 3 / 192.1 = 1.56 %
  EXPECT_EQ(choice->reason.find("12 layers per row: the fewest"), 0u)
      << choice->reason;
  EXPECT_NE(
      FormatLayoutChoice(*choice).find("*         12       3   48.00 KiB"),
      std::string::npos)
      << FormatLayoutChoice(*choice);
}

// What waits leaves less for tails: 20 tokens of 1366 are 1.46 %.
TEST(ChooseLayoutTest, IdleTokensCountAgainstTheLimit) {
  const auto choice =
      ChooseLayout(kQwen3_8B, {.mean_tokens = 1366, .idle_tokens = 20}, MiB(2));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->options.layers_per_row, 36u);
  for (const auto& candidate : choice->candidates)
    EXPECT_NEAR(candidate.waste, candidate.tail_waste + 20.0 / 1366, 1e-9);
}

TEST(ChooseLayoutTest, SaysWhereNoLayoutIsWithinTheLimit) {
  const auto choice = ChooseLayout(kQwen3_8B, {10}, MiB(2));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->options.layers_per_row, 36u);
  EXPECT_FALSE(choice->candidates.back().within_limit);
  EXPECT_NE(choice->reason.find("no layout is within the limit"),
            std::string::npos)
      << choice->reason;
}

TEST(ChooseLayoutTest, RejectsWhatMakesNoSense) {
  for (const KvWorkload& workload :
       {KvWorkload{0, 0.02}, KvWorkload{10, -0.1}, KvWorkload{UINT64_MAX, 0.02},
        KvWorkload{10, std::numeric_limits<double>::quiet_NaN()},
        KvWorkload{uint64_t{1} << 50, 0.02}, KvWorkload{10, 0.02, -1.0},
        KvWorkload{10, 0.02, std::numeric_limits<double>::quiet_NaN()}})
    EXPECT_EQ(ChooseLayout(kQwen3_8B, workload, MiB(2)).status().code(),
              absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ChooseLayout(KvModelShape(), {10}, MiB(2)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire
