// An allocator that samples, against a model of what lives.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/enclosing_function.h"
#include "quire/alloc/allocation_sampler.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

class AllocatorSampleTest : public AllocatorFixture {
 protected:
  AllocatorSampleTest() { Remake(Bytes(1)); }

  // An interval of a byte is one that nothing escapes.
  void Remake(Bytes interval) {
    DeviceAllocatorOptions options;
    options.sample_interval = interval;
    MakeAllocator(options);
  }
  std::set<DeviceAddress> Sampled() const {
    std::set<DeviceAddress> sampled;
    for (const auto& sample : allocator_->sampler()->Live()) {
      sampled.insert(sample.address);
    }
    return sampled;
  }
  std::set<DeviceAddress> Live() const {
    std::set<DeviceAddress> live;
    for (const auto& info : allocator_->CalculateLiveAllocations()) {
      live.insert(info.address);
    }
    return live;
  }
};

TEST_F(AllocatorSampleTest, WithoutAnIntervalThereIsNone) {
  Remake(Bytes(0));
  const DeviceAddress address = Allocate(1000);
  EXPECT_EQ(allocator_->sampler(), nullptr);
  Free(address);
}

// Small and large, on and off the fast path, on streams that others record.
TEST_F(AllocatorSampleTest, KnowsEveryLiveAllocationAndNoOther) {
  const std::vector<StreamId> streams = {StreamId(), MakeStream(),
                                         MakeStream()};
  std::mt19937_64 random(3);
  std::map<DeviceAddress, uint64_t> live;
  for (int i = 0; i < 4000; ++i) {
    const StreamId stream = streams[random() % streams.size()];
    if (live.size() < 40 && random() % 2 == 0) {
      const uint64_t size = 1 + random() % (random() % 8 == 0 ? 70000 : 3000);
      live[Allocate(size, stream)] = size;
    } else if (!live.empty()) {
      const auto freed = std::next(
          live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      if (random() % 4 == 0) {
        EXPECT_EQ(allocator_->RecordStream(freed->first, streams[1]),
                  absl::OkStatus());
      }
      if (random() % 4 == 0) {
        EXPECT_EQ(allocator_->Pin(freed->first), absl::OkStatus());
        EXPECT_EQ(allocator_->Unpin(freed->first), absl::OkStatus());
      }
      Free(freed->first, stream);
      live.erase(freed);
    }
    if (i % 100 != 0) continue;
    const auto samples = allocator_->sampler()->Live();
    ASSERT_EQ(samples.size(), live.size());
    for (const auto& sample : samples) {
      ASSERT_TRUE(live.contains(sample.address));
      EXPECT_EQ(sample.size.value(), live[sample.address]);
      EXPECT_FALSE(sample.callers.empty());
    }
    EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  }
  for (const auto& [address, size] : live) Free(address);
  EXPECT_TRUE(Sampled().empty());
}

[[gnu::noinline]] DeviceAddress AllocateHere(DeviceAllocator* allocator,
                                             uint64_t size,
                                             const AllocateOptions& options) {
  const auto address = allocator->Allocate(Bytes(size), options);
  return address.value_or(DeviceAddress());
}

[[gnu::noinline]] DeviceAddress AllocateForMyCaller(DeviceAllocator* allocator,
                                                    uint64_t size,
                                                    AllocateOptions options) {
  options.caller = __builtin_return_address(0);
  return AllocateHere(allocator, size, options);
}

// Neither the library's own frames come first nor those of what wraps it: on
// the fast path, on the others, for movable and large ones.
TEST_F(AllocatorSampleTest, CallersBeginWithWhoeverCalledAllocate) {
  std::vector<DeviceAddress> live;
  std::set<uintptr_t> functions;
  const auto note = [&](DeviceAddress address) {
    live.push_back(address);
    const auto sample = allocator_->sampler()->Find(address);
    ASSERT_TRUE(sample.has_value());
    ASSERT_FALSE(sample->callers.empty());
    EXPECT_LE(sample->callers.size(), 16u);
    functions.insert(EnclosingFunction(
        reinterpret_cast<uintptr_t>(sample->callers.front())));
  };
  for (const bool movable : {false, true}) {
    for (const uint64_t size : {uint64_t{1000}, 3 * kPageBytes}) {
      for (int i = 0; i < 3; ++i) {
        note(AllocateHere(allocator_.get(), size, {.movable = movable}));
      }
    }
  }
  EXPECT_EQ(functions, std::set{reinterpret_cast<uintptr_t>(&AllocateHere)});
  functions.clear();
  note(AllocateForMyCaller(allocator_.get(), 1000, {}));
  note(AllocateForMyCaller(allocator_.get(), 3 * kPageBytes, {}));
  EXPECT_EQ(functions.size(), 1u);
  EXPECT_FALSE(functions.contains(reinterpret_cast<uintptr_t>(&AllocateHere)));
  EXPECT_FALSE(
      functions.contains(reinterpret_cast<uintptr_t>(&AllocateForMyCaller)));
  for (const DeviceAddress address : live) Free(address);
}

// A free that fails leaves the sample, as it leaves the allocation.
TEST_F(AllocatorSampleTest, AFreeThatFailsForgetsNothing) {
  const DeviceAddress address = Allocate(1000);
  EXPECT_EQ(allocator_->Pin(address), absl::OkStatus());
  EXPECT_FALSE(allocator_->Free(address).ok());
  EXPECT_FALSE(allocator_->Free(address, StreamId(12345)).ok());
  EXPECT_EQ(Sampled(), Live());
  EXPECT_EQ(allocator_->Unpin(address), absl::OkStatus());
  Free(address);
  EXPECT_FALSE(allocator_->Free(address).ok());
  EXPECT_TRUE(Sampled().empty());
}

TEST_F(AllocatorSampleTest, SamplesMoveWithTheirAllocations) {
  AllocateOptions options;
  options.movable = true;
  std::vector<DeviceAddress> all;
  for (int i = 0; i < 12 * 16; ++i) {
    all.push_back(*allocator_->Allocate(Bytes(kPageBytes / 16), options));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 9 != 0) Free(all[i]);
  }
  allocator_->Trim();
  const auto section = QuiescentSection::Begin(memory_.get(), {});
  auto pass = allocator_->BeginRelocation(*section);
  ASSERT_TRUE(pass.ok()) << pass.status();
  ASSERT_GE(pass->moves().size(), 3u);
  pass->SetAction(0, MoveAction::kIgnore);
  pass->SetAction(1, MoveAction::kDestroy);
  ASSERT_EQ(pass->Copy(), absl::OkStatus());
  pass->End();
  EXPECT_EQ(Sampled(), Live());
  for (const DeviceAddress address : Live()) Free(address);
  EXPECT_TRUE(Sampled().empty());
}

TEST_F(AllocatorSampleTest, WhatSleepsMayBeFreed) {
  AllocateOptions options;
  options.owner = kOwner;
  const DeviceAddress address = *allocator_->Allocate(Bytes(1000), options);
  {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    ASSERT_TRUE(allocator_->Sleep(*section, kOwner, {}).ok());
  }
  EXPECT_EQ(Sampled().size(), 1u);
  Free(address);
  EXPECT_TRUE(Sampled().empty());
  EXPECT_TRUE(allocator_->Wake(kOwner, {}).ok());
}

// Of many, few are sampled, and they stand for all. What is not sampled goes
// the fast way: the caches of the thread serve it.
TEST_F(AllocatorSampleTest, FewStandForMany) {
  Remake(KiB(64));
  constexpr uint64_t kSize = 500;
  constexpr uint64_t kCount = 3000;
  std::vector<DeviceAddress> live;
  for (uint64_t i = 0; i < kCount; ++i) live.push_back(Allocate(kSize));
  double estimated = 0;
  uint64_t samples = 0;
  for (const auto& sample : allocator_->sampler()->Live()) {
    estimated += sample.weight;
    ++samples;
  }
  // 23 on average; six standard deviations.
  EXPECT_LE(samples, 52u);
  EXPECT_NEAR(estimated, kCount * kSize, 6 * 5 * 65536.0);
  for (const DeviceAddress address : live) Free(address);
  EXPECT_GT(Statistics().thread_cached_bytes, kCount * kSize / 8);
  EXPECT_TRUE(Sampled().empty());
}

TEST_F(AllocatorSampleTest, ThreadsFreeWhatOthersMade) {
  Remake(KiB(4));
  constexpr int kThreads = 2;
  constexpr int kRounds = 300;
  std::vector<std::vector<DeviceAddress>> made(kThreads);
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        // Each frees what its neighbour made in the pass before.
        for (const DeviceAddress address : made[(t + pass) % kThreads]) {
          EXPECT_EQ(allocator_->Free(address), absl::OkStatus());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& each : made) each.clear();
    threads.clear();
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kRounds; ++i) made[t].push_back(Allocate(1000));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_FALSE(Sampled().empty());
  for (const auto& each : made) {
    for (const DeviceAddress address : each) Free(address);
  }
  EXPECT_TRUE(Sampled().empty());
}

}  // namespace
}  // namespace quire
