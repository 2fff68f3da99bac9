#include "quire/alloc/memory_growth.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

namespace quire {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSamples = 400;

// Samples of two functions of time, a second apart.
std::optional<MemoryGrowth> Find(
    const std::function<uint64_t(uint64_t)>& held,
    const std::function<uint64_t(uint64_t)>& used,
    const MemoryGrowthOptions& options = {},
    const std::function<uint64_t(uint64_t)>& cooling = nullptr) {
  std::vector<uint64_t> times, held_column, used_column, cooling_column;
  for (uint64_t t = 0; t < kSamples; ++t) {
    times.push_back(t * 1'000'000'000);
    held_column.push_back(held(t));
    used_column.push_back(used(t));
    if (cooling) cooling_column.push_back(cooling(t));
  }
  return FindMemoryGrowth(times, held_column, used_column, cooling_column,
                          options);
}

uint64_t Steady(uint64_t) { return 500 * kMiB; }
// Up and down every 20 s, on top of something.
uint64_t Cycle(uint64_t t) { return t % 20 * 30 * kMiB; }

TEST(MemoryGrowthTest, UseAndHoldingThatRiseTogetherAreALeak) {
  const auto leaking = [](uint64_t t) { return 100 * kMiB + t * kMiB; };
  const auto growth = Find(leaking, leaking);
  ASSERT_TRUE(growth.has_value());
  EXPECT_EQ(growth->kind, GrowthKind::kLeak);
  // From the third of eight windows: 100 s of 399 s.
  EXPECT_NEAR(static_cast<double>(growth->from_nanoseconds), 99.75e9, 1e6);
  EXPECT_EQ(growth->to_nanoseconds, 399'000'000'000u);
  EXPECT_GE(growth->used_from, MiB(198));
  EXPECT_LE(growth->used_from, MiB(201));
  EXPECT_GE(growth->used_to, MiB(448));
  EXPECT_LE(growth->used_to, MiB(451));
}

TEST(MemoryGrowthTest, HoldingThatRisesAloneIsFragmentation) {
  const auto growth = Find([](uint64_t t) { return 100 * kMiB + t * kMiB; },
                           [](uint64_t) { return 90 * kMiB; });
  ASSERT_TRUE(growth.has_value());
  EXPECT_EQ(growth->kind, GrowthKind::kFragmentation);
  EXPECT_EQ(growth->used_from, growth->used_to);
}

// What is held for the same use grows, and yet the allocator is not to blame.
TEST(MemoryGrowthTest, WhatOnlyCoolsIsNoFragmentation) {
  const auto held = [](uint64_t t) { return 100 * kMiB + t * kMiB; };
  const auto growth = Find(
      held, [](uint64_t) { return 90 * kMiB; }, {},
      [](uint64_t t) { return t * kMiB; });
  ASSERT_TRUE(growth.has_value());
  EXPECT_EQ(growth->kind, GrowthKind::kCooling);
  EXPECT_GE(growth->cooling_from, MiB(98));
  EXPECT_GE(growth->cooling_to, MiB(348));
  // A part that cools and does not grow explains nothing.
  const auto steady = Find(
      held, [](uint64_t) { return 50 * kMiB; }, {},
      [](uint64_t) { return 40 * kMiB; });
  ASSERT_TRUE(steady.has_value());
  EXPECT_EQ(steady->kind, GrowthKind::kFragmentation);
  // A leak is one, whatever cools besides.
  const auto leak = Find(
      held, [](uint64_t t) { return 40 * kMiB + t * kMiB * 2 / 3; }, {},
      [](uint64_t t) { return t * kMiB / 3; });
  ASSERT_TRUE(leak.has_value());
  EXPECT_EQ(leak->kind, GrowthKind::kLeak);
}

TEST(MemoryGrowthTest, ALeakShowsUnderCycles) {
  const auto leaking = [](uint64_t t) { return Cycle(t) + t / 20 * 10 * kMiB; };
  const auto growth = Find(leaking, leaking);
  ASSERT_TRUE(growth.has_value());
  EXPECT_EQ(growth->kind, GrowthKind::kLeak);
}

TEST(MemoryGrowthTest, WhatIsNoGrowth) {
  EXPECT_EQ(Find(Steady, Steady), std::nullopt);
  EXPECT_EQ(Find(Cycle, Cycle), std::nullopt);
  // Warming up: a model is loaded in the first quarter, and then runs.
  const auto loaded = [](uint64_t t) {
    return std::min<uint64_t>(t, kSamples / 4) * 10 * kMiB + Cycle(t);
  };
  EXPECT_EQ(Find(loaded, loaded), std::nullopt);
  // One step late in life: something else was started.
  const auto step = [](uint64_t t) { return (t < 350 ? 100 : 900) * kMiB; };
  EXPECT_EQ(Find(step, step), std::nullopt);
  // Growth that has stopped.
  const auto stopped = [](uint64_t t) {
    return std::min<uint64_t>(t, 280) * kMiB;
  };
  EXPECT_EQ(Find(stopped, stopped), std::nullopt);
  // It falls.
  EXPECT_EQ(Find([](uint64_t t) { return (1000 - t) * kMiB; }, Steady),
            std::nullopt);
  // Use that rises within what is held anyway: a cache that fills.
  EXPECT_EQ(Find(Steady, [](uint64_t t) { return t * kMiB; }), std::nullopt);
  // Too little to speak of: in bytes, and as a part.
  const auto small = [](uint64_t t) { return t * 1000; };
  EXPECT_EQ(Find(small, small), std::nullopt);
  const auto part = [](uint64_t t) { return (10000 + t) * kMiB; };
  EXPECT_EQ(Find(part, part), std::nullopt);
  MemoryGrowthOptions options;
  options.least_part = 0.01;
  EXPECT_TRUE(Find(part, part, options).has_value());
}

TEST(MemoryGrowthTest, NoiseIsNotGrowth) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> noise;
    for (uint64_t t = 0; t < kSamples; ++t) {
      noise.push_back((400 + random() % 200) * kMiB);
    }
    const auto value = [&](uint64_t t) { return noise[t]; };
    EXPECT_EQ(Find(value, value), std::nullopt);
  }
}

TEST(MemoryGrowthTest, TooFewSamplesTellNothing) {
  EXPECT_EQ(FindMemoryGrowth({}, {}, {}, {}), std::nullopt);
  const std::vector<uint64_t> times(20, 5);  // all at one time
  std::vector<uint64_t> rising;
  for (uint64_t i = 0; i < 20; ++i) rising.push_back(i << 30);
  EXPECT_EQ(FindMemoryGrowth(times, rising, rising, {}), std::nullopt);
  const std::vector<uint64_t> few = {1, GiB(1).value(), GiB(2).value()};
  EXPECT_EQ(FindMemoryGrowth(few, few, few, {}), std::nullopt);
}

// Times need not be evenly spaced: what holds for long counts by its time.
TEST(MemoryGrowthTest, WindowsAreOfTimeAndNotOfSamples) {
  std::vector<uint64_t> times, rising;
  // A burst of growth in the first second, then 100 quiet ones.
  for (uint64_t i = 0; i < 1000; ++i) {
    times.push_back(i * 1'000'000);
    rising.push_back(i * kMiB);
  }
  times.push_back(100'000'000'000);
  rising.push_back(rising.back());
  EXPECT_EQ(FindMemoryGrowth(times, rising, rising, {}), std::nullopt);
}

TEST(MemoryGrowthTest, NumbersAtTheEdgeOfTheirTypeAreNoTrouble) {
  std::vector<uint64_t> times, held, used;
  for (uint64_t i = 0; i < 64; ++i) {
    times.push_back(i * (UINT64_MAX / 64));
    held.push_back(i * (UINT64_MAX / 64));
    used.push_back(UINT64_MAX - held.back());
  }
  const auto growth = FindMemoryGrowth(times, held, used, {});
  ASSERT_TRUE(growth.has_value());
  EXPECT_EQ(growth->kind, GrowthKind::kFragmentation);
}

TEST(MemoryGrowthTest, KindsHaveNames) {
  for (const GrowthKind kind :
       {GrowthKind::kLeak, GrowthKind::kFragmentation, GrowthKind::kCooling}) {
    EXPECT_EQ(GrowthKindFromName(GrowthKindName(kind)), kind);
  }
  EXPECT_EQ(GrowthKindFromName("unknown"), std::nullopt);
}

}  // namespace
}  // namespace quire
