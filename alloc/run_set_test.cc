// Against a plain set of bytes, in units.

#include "alloc/run_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace quire {
namespace {

constexpr uint64_t kBase = 0x7000;

TEST(RunSetTest, BytesThatTouchAreOneRunOfTheLaterBatch) {
  RunSet runs;
  runs.Insert({kBase, 10, 4});
  runs.Insert({kBase + 20, 10, 2});
  std::vector<uint64_t> joined;
  const ByteRun run =
      runs.Insert({kBase + 10, 10, 3},
                  [&](const ByteRun& part) { joined.push_back(part.begin); });
  EXPECT_EQ(run.begin, kBase);
  EXPECT_EQ(run.length, 30u);
  EXPECT_EQ(run.batch, 4u);
  EXPECT_EQ(joined, (std::vector<uint64_t>{kBase, kBase + 20}));
  EXPECT_EQ(runs.size(), 1u);
}

TEST(RunSetTest, TheSmallestRunThatHasRoomFits) {
  RunSet runs;
  runs.Insert({kBase, 100, 0});
  runs.Insert({kBase + 200, 40, 0});
  runs.Insert({kBase + 300, 40, 0});
  EXPECT_EQ(runs.FindFit(30, Bytes(1)), kBase + 200);
  EXPECT_EQ(runs.FindFit(41, Bytes(1)), kBase);
  EXPECT_EQ(runs.FindFit(101, Bytes(1)), std::nullopt);
}

TEST(RunSetTest, AlignedBytesMayBeginWithinARun) {
  RunSet runs;
  runs.Insert({kBase + 8, 40, 0});
  EXPECT_EQ(runs.FindFit(32, Bytes(16)), kBase + 16);
  EXPECT_EQ(runs.FindFit(33, Bytes(16)), std::nullopt);
}

TEST(RunSetTest, HoldsWhatAPlainSetOfBytesHolds) {
  constexpr uint64_t kSize = 400;
  std::mt19937_64 random(3);
  RunSet runs;
  std::vector<bool> here(kSize);
  for (int step = 0; step < 20000; ++step) {
    const uint64_t begin = random() % kSize;
    const uint64_t length =
        1 + random() % std::min<uint64_t>(30, kSize - begin);
    const auto first = here.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = first + static_cast<std::ptrdiff_t>(length);
    const bool all = std::all_of(first, last, [](bool bit) { return bit; });
    const bool any = std::any_of(first, last, [](bool bit) { return bit; });
    EXPECT_EQ(runs.FindAround(kBase + begin, length).has_value(), all);
    if (all) {
      runs.Take(kBase + begin, length);
      std::fill(first, last, false);
    } else if (!any) {
      runs.Insert({kBase + begin, length, 0});
      std::fill(first, last, true);
    }
    if (step % 50 > 0) continue;
    ASSERT_EQ(runs.CheckInvariants(), absl::OkStatus());
    uint64_t longest = 0;
    uint64_t current = 0;
    for (uint64_t i = 0; i < kSize; ++i) {
      current = here[i] ? current + 1 : 0;
      longest = std::max(longest, current);
    }
    EXPECT_EQ(runs.largest(), longest);
    EXPECT_EQ(runs.bytes(), static_cast<uint64_t>(
                                std::count(here.begin(), here.end(), true)));
  }
}

}  // namespace
}  // namespace quire
