#include "bench/policies/stream_maxima.h"

#include <map>
#include <optional>
#include <random>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(StreamMaximaTest, HasNothingAtFirst) {
  StreamMaxima maxima;
  EXPECT_FALSE(maxima.FindFirst(0, 1));
  maxima.Set(7, 0);
  EXPECT_FALSE(maxima.FindFirst(0, 1));
  maxima.Set(0, 5);
  EXPECT_EQ(maxima.FindFirst(0, 5), 0u);
  EXPECT_FALSE(maxima.FindFirst(1, 5));
  EXPECT_FALSE(maxima.FindFirst(0, 6));
}

// Against a walk over all streams in order.
TEST(StreamMaximaTest, FindsTheFirstThatIsLargeEnough) {
  std::mt19937_64 random(1);
  StreamMaxima maxima;
  std::map<uint64_t, uint64_t> model;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t streams = 1 + static_cast<uint64_t>(i) / 10;
    const uint64_t stream = random() % streams;
    const uint64_t largest = random() % 3 == 0 ? 0 : random() % 1000;
    maxima.Set(stream, largest);
    model[stream] = largest;
    const uint64_t from = random() % (streams + 2);
    const uint64_t size = 900 + random() % 110;
    std::optional<uint64_t> expected;
    for (auto it = model.lower_bound(from); it != model.end() && !expected;
         ++it) {
      if (it->second >= size) expected = it->first;
    }
    ASSERT_EQ(maxima.FindFirst(from, size), expected) << i;
  }
}

}  // namespace
}  // namespace quire
