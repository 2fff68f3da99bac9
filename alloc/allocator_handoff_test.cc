// Memory that one thread, stream or class hands on to another, round after
// round, costs what is live, not what whoever frees it could keep.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/internal_checks.h"
#include "quire/alloc/mutex.h"

namespace quire {
namespace {

// Pages as a GPU has them, without memory.
class AllocatorHandoffTest : public AllocatorFixture {
 protected:
  static constexpr uint64_t kMiB = 1 << 20;
  // What may be held beside the live bytes, and a 25th of these.
  static constexpr uint64_t kBeside = 8 * kMiB;
  static constexpr uint64_t kPart = 25;
  // Checking builds walk all blocks again and again.
  static constexpr uint64_t kFewer = kInternalChecks ? 10 : 1;

  AllocatorHandoffTest() {
    allocator_.reset();
    memory_.reset();
    HostDriverOptions driver;
    driver.memory_per_device = GiB(4);
    driver.granularity = MiB(2);
    driver.backing = HostDriverOptions::Backing::kNone;
    MakeDriver(driver);
    DeviceMemoryOptions options;
    options.page_size = MiB(2);
    MakeMemory(options);
    MakeAllocator();
  }

  void Fill(std::vector<DeviceAddress>* blocks, uint64_t size,
            StreamId stream) {
    for (DeviceAddress& block : *blocks) block = Allocate(size, stream);
  }
  void FreeAll(const std::vector<DeviceAddress>& blocks, StreamId stream) {
    for (const DeviceAddress block : blocks) Free(block, stream);
  }
  void ExpectPeak(uint64_t live, uint64_t beside = kBeside) {
    EXPECT_LE(memory_->GetStatistics().peak_in_use.value(),
              live + live / kPart + beside);
  }
};

TEST_F(AllocatorHandoffTest, FromOneStreamToAnother) {
  const StreamId from = MakeStream();
  const StreamId to = MakeStream();
  std::vector<DeviceAddress> blocks(100);
  for (const uint64_t size : {uint64_t{4} << 10, uint64_t{64} << 10, kMiB}) {
    for (int round = 0; round < 200; ++round) {
      Fill(&blocks, size, from);
      FreeAll(blocks, to);
      ASSERT_EQ(driver_->SynchronizeStream(to), absl::OkStatus());
    }
    ExpectPeak(blocks.size() * size);
  }
}

// Each stream has what the one before it had.
TEST_F(AllocatorHandoffTest, AroundStreams) {
  const std::vector<StreamId> streams = {MakeStream(), MakeStream(),
                                         MakeStream(), MakeStream()};
  std::vector<DeviceAddress> blocks(2000 / kFewer);
  constexpr uint64_t kSize = 64 << 10;
  for (size_t round = 0; round < 40; ++round) {
    const StreamId stream = streams[round % streams.size()];
    Fill(&blocks, kSize, stream);
    FreeAll(blocks, stream);
    ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  }
  ExpectPeak(blocks.size() * kSize);
}

TEST_F(AllocatorHandoffTest, FromOneThreadToAnother) {
  const StreamId stream = MakeStream();
  std::vector<DeviceAddress> blocks(100);
  for (const uint64_t size : {uint64_t{4} << 10, uint64_t{64} << 10, kMiB}) {
    Mutex mutex;
    CondVar turned;
    bool full = false;
    const auto take_turns = [&](bool mine, const std::function<void()>& work) {
      for (int round = 0; round < 200; ++round) {
        MutexLock lock(&mutex);
        while (full != mine) turned.Wait(&mutex);
        work();
        full = !mine;
        turned.NotifyAll();
      }
    };
    std::thread other(
        [&] { take_turns(true, [&] { FreeAll(blocks, stream); }); });
    take_turns(false, [&] { Fill(&blocks, size, stream); });
    other.join();
    ExpectPeak(blocks.size() * size);
  }
}

// Rounds of other sizes each, so that no class has what the last round had.
// More stays in caches, since all of them have to be emptied to share; but not
// for the sake of large allocations, which none of them serves.
TEST_F(AllocatorHandoffTest, FromOneClassToAnother) {
  const StreamId from = MakeStream();
  const StreamId to = MakeStream();
  constexpr uint64_t kLive = 100 * kMiB;
  constexpr uint64_t kWeights = 1024 * kMiB;
  const DeviceAddress weights = Allocate(kWeights, from);
  for (uint64_t round = 0; round < 60; ++round) {
    const uint64_t size = 4096 * (2 + round % 8) * kFewer;
    std::vector<DeviceAddress> blocks(kLive / size);
    Fill(&blocks, size, from);
    FreeAll(blocks, to);
    ASSERT_EQ(driver_->SynchronizeStream(to), absl::OkStatus());
  }
  ExpectPeak(kLive, kWeights + 32 * kMiB);
  Free(weights, from);
}

}  // namespace
}  // namespace quire
