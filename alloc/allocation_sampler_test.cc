#include "quire/alloc/allocation_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace quire {
namespace {

using ::testing::HasSubstr;

AllocationSamplerOptions Every() {
  AllocationSamplerOptions options;
  options.interval = Bytes(0);
  return options;
}

TEST(AllocationSamplerTest, AnIntervalOfZeroSamplesEach) {
  AllocationSampler sampler(Every());
  for (uint64_t i = 1; i <= 100; ++i) {
    sampler.OnAllocate(DeviceAddress(i << 8), Bytes(i % 3));
  }
  EXPECT_EQ(sampler.Live().size(), 100u);
  for (uint64_t i = 1; i <= 100; i += 2) sampler.OnFree(DeviceAddress(i << 8));
  const auto live = sampler.Live();
  ASSERT_EQ(live.size(), 50u);
  for (size_t i = 0; i < live.size(); ++i) {
    EXPECT_EQ(live[i].address, DeviceAddress((2 * i + 2) << 8));
    EXPECT_EQ(live[i].weight, static_cast<double>(live[i].size.value()));
  }
  EXPECT_TRUE(sampler.Find(DeviceAddress(2 << 8)).has_value());
  EXPECT_FALSE(sampler.Find(DeviceAddress(1 << 8)).has_value());
}

// What comes at an address that was freed is another allocation, sampled or
// not; what was never sampled may be freed.
TEST(AllocationSamplerTest, FollowsAModelOfLiveAddresses) {
  AllocationSampler sampler(Every());
  std::mt19937_64 random(1);
  std::map<uint64_t, uint64_t> model;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t address = (1 + random() % 3000) << 9;
    if (model.contains(address)) {
      sampler.OnFree(DeviceAddress(address));
      model.erase(address);
    } else if (random() % 8 == 0) {
      sampler.OnFree(DeviceAddress(address));
    } else {
      model[address] = 1 + random() % 100000;
      sampler.OnAllocate(DeviceAddress(address), Bytes(model[address]));
    }
  }
  const auto live = sampler.Live();
  ASSERT_EQ(live.size(), model.size());
  auto expected = model.begin();
  for (const auto& sample : live) {
    EXPECT_EQ(sample.address.value(), expected->first);
    EXPECT_EQ(sample.size.value(), expected->second);
    ++expected;
  }
}

// The weights of the samples add up to the bytes of all allocations, of each
// size, within what chance allows: six standard deviations.
TEST(AllocationSamplerTest, SamplesStandForAll) {
  AllocationSamplerOptions options;
  options.interval = KiB(64);
  options.most_samples = 1 << 20;
  AllocationSampler sampler(options);
  const std::vector<uint64_t> sizes = {256, 4096, 65536, 1 << 20};
  constexpr uint64_t kOfEach = 60000;
  uint64_t next = 1;
  for (uint64_t i = 0; i < kOfEach; ++i) {
    for (const uint64_t size : sizes) {
      sampler.OnAllocate(DeviceAddress(next++ << 8), Bytes(size));
    }
  }
  std::map<uint64_t, double> weights;
  for (const auto& sample : sampler.Live()) {
    weights[sample.size.value()] += sample.weight;
  }
  for (const uint64_t size : sizes) {
    const double p = -std::expm1(-static_cast<double>(size) / 65536);
    const double deviation =
        std::sqrt(static_cast<double>(kOfEach) * (1 - p) / p) *
        static_cast<double>(size);
    EXPECT_NEAR(weights[size], static_cast<double>(kOfEach * size),
                6 * deviation + 1)
        << size;
  }
}

TEST(AllocationSamplerTest, ASampleMovesWithItsAllocation) {
  AllocationSampler sampler(Every());
  EXPECT_TRUE(sampler.OnAllocate(DeviceAddress(256), Bytes(7)));
  sampler.OnMove(DeviceAddress(256), DeviceAddress(512));
  sampler.OnMove(DeviceAddress(1024), DeviceAddress(2048));  // not sampled
  const auto live = sampler.Live();
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].address, DeviceAddress(512));
  EXPECT_EQ(live[0].size, Bytes(7));
  EXPECT_FALSE(live[0].callers.empty());
  sampler.OnFree(DeviceAddress(256));
  EXPECT_EQ(sampler.Live().size(), 1u);
  sampler.OnFree(DeviceAddress(512));
  EXPECT_TRUE(sampler.Live().empty());
}

TEST(AllocationSamplerTest, SaysWhichItKeeps) {
  AllocationSamplerOptions options;
  options.interval = KiB(64);
  AllocationSampler sampler(options);
  std::set<DeviceAddress> kept;
  for (uint64_t i = 1; i <= 5000; ++i) {
    const DeviceAddress address(i << 8);
    if (sampler.OnAllocate(address, Bytes(1000))) kept.insert(address);
  }
  std::set<DeviceAddress> live;
  for (const auto& sample : sampler.Live()) live.insert(sample.address);
  EXPECT_FALSE(live.empty());
  EXPECT_LT(live.size(), 5000u);
  EXPECT_EQ(live, kept);
}

TEST(AllocationSamplerTest, SamplesOfTwoSamplersDoNotMix) {
  AllocationSampler first(Every());
  AllocationSampler second(Every());
  first.OnAllocate(DeviceAddress(256), Bytes(1));
  second.OnAllocate(DeviceAddress(512), Bytes(1));
  first.OnFree(DeviceAddress(512));
  EXPECT_EQ(first.Live().size(), 1u);
  EXPECT_EQ(second.Live().size(), 1u);
}

TEST(AllocationSamplerTest, TooManySamplesAreCounted) {
  AllocationSamplerOptions options = Every();
  options.most_samples = 3;
  AllocationSampler sampler(options);
  for (uint64_t i = 1; i <= 5; ++i) {
    sampler.OnAllocate(DeviceAddress(i << 8), Bytes(1));
  }
  EXPECT_EQ(sampler.Live().size(), 3u);
  EXPECT_EQ(sampler.dropped(), 2u);
  sampler.OnFree(DeviceAddress(256));
  sampler.OnAllocate(DeviceAddress(256), Bytes(1));
  EXPECT_EQ(sampler.Live().size(), 3u);
}

TEST(AllocationSamplerTest, CallersAreThoseOfTheAllocation) {
  AllocationSamplerOptions options = Every();
  options.frames = 3;
  AllocationSampler sampler(options);
  sampler.OnAllocate(DeviceAddress(256), Bytes(1));
  const auto sample = sampler.Find(DeviceAddress(256));
  ASSERT_TRUE(sample.has_value());
  ASSERT_GT(sample->callers.size(), 0u);
  EXPECT_LE(sample->callers.size(), 3u);
  for (const void* caller : sample->callers) {
    EXPECT_THAT(DescribeCaller(caller), HasSubstr("+0x"));
  }
}

TEST(AllocationSamplerTest, CallersAreNamedWhereTheirNamesAreKnown) {
  // A function of a shared library: its name is exported, with an offset.
  const auto* const inside =
      reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(&std::abort));
  EXPECT_THAT(DescribeCaller(inside + 1), HasSubstr("abort"));
  EXPECT_EQ(DescribeCaller(nullptr), "0x0");
  EXPECT_THAT(DescribeCaller(reinterpret_cast<const void*>(16)),
              HasSubstr("0xf"));
}

TEST(AllocationSamplerTest, ThreadsMayShareIt) {
  AllocationSamplerOptions options;
  options.interval = KiB(4);
  AllocationSampler sampler(options);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&sampler, t] {
      for (uint64_t i = 0; i < 5000; ++i) {
        const DeviceAddress address(((t << 20) + i + 1) << 8);
        sampler.OnAllocate(address, Bytes(1000));
        sampler.OnFree(address);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(sampler.Live().empty());
}

}  // namespace
}  // namespace quire
