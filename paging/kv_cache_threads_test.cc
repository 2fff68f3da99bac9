// Many threads on two caches of one tight memory, so that every one of them
// takes pages from every other: for ThreadSanitizer, and against deadlock.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

constexpr uint64_t kMaxTokens = 200;

// Fills, or checks, the first element of each token's K and V in each layer.
void Fill(const KvCache& cache, SequenceId sequence, uint64_t from, uint64_t to,
          uint32_t tag) {
  for (uint32_t layer = 0; layer < 5; ++layer) {
    const KvLayerView view = *cache.View(sequence, layer);
    for (uint64_t token = from; token < to; ++token) {
      const uint64_t at = token * view.row_stride.value();
      *DeviceAddress(view.keys.value() + at).host_pointer<uint32_t>() = tag;
      *DeviceAddress(view.values.value() + at).host_pointer<uint32_t>() = ~tag;
    }
  }
}

bool Holds(const KvCache& cache, SequenceId sequence, uint64_t length,
           uint32_t tag) {
  for (uint32_t layer = 0; layer < 5; ++layer) {
    const KvLayerView view = *cache.View(sequence, layer);
    for (uint64_t token = 0; token < length; ++token) {
      const uint64_t at = token * view.row_stride.value();
      if (*DeviceAddress(view.keys.value() + at).host_pointer<uint32_t>() !=
              tag ||
          *DeviceAddress(view.values.value() + at).host_pointer<uint32_t>() !=
              ~tag)
        return false;
    }
  }
  return true;
}

// One sequence from admission to release. False where memory was short.
bool LiveOnce(KvCache* cache, Driver* driver, StreamId stream, uint32_t tag,
              std::mt19937* random) {
  const auto sequence = cache->Admit((*random)() % (kMaxTokens / 2));
  if (!sequence.ok()) {
    EXPECT_EQ(sequence.status().code(), absl::StatusCode::kResourceExhausted)
        << sequence.status();
    return false;
  }
  uint64_t length = *cache->Length(*sequence);
  Fill(*cache, *sequence, 0, length, tag);
  for (int i = 0; i < 5; ++i) {
    const SequenceStep step{*sequence, length + (*random)() % 20};
    if (!cache->Step(std::span(&step, 1)).ok()) break;
    Fill(*cache, *sequence, length, step.length, tag);
    length = step.length;
  }
  EXPECT_TRUE(Holds(*cache, *sequence, length, tag));
  const Fence fence =
      *Fence::Record(driver, DeviceId(0), std::span(&stream, 1));
  if ((*random)() % 2 == 0) {
    length /= 2;
    EXPECT_TRUE(cache->Shrink(*sequence, length, fence).ok());
    EXPECT_TRUE(Holds(*cache, *sequence, length, tag));
  }
  EXPECT_TRUE(cache->Release(*sequence, fence).ok());
  return true;
}

TEST(KvCacheThreadsTest, ThreadsKeepTheirSequencesApart) {
  constexpr int kWorkers = 4;
  constexpr int kRounds = 150;
  TestDevice device(120);
  KvCacheOptions options;
  options.max_sequence_length = kMaxTokens;
  options.max_sequences = 3;
  const std::array<std::unique_ptr<KvCache>, 2> caches = {
      MakeCache(&device, 1, options), MakeCache(&device, 5, options)};

  std::atomic<int> lives{0};
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&, worker] {
      std::mt19937 random(static_cast<uint32_t>(worker));
      const StreamId stream = *device.driver()->CreateStream(DeviceId(0));
      for (int round = 0; round < kRounds; ++round) {
        const auto tag = static_cast<uint32_t>(worker * kRounds + round);
        if (LiveOnce(caches[random() % 2].get(), device.driver(), stream, tag,
                     &random))
          ++lives;
      }
      EXPECT_TRUE(device.driver()->DestroyStream(stream).ok());
    });
  }
  std::atomic<bool> done = false;
  // Somebody else who needs pages now and then, and somebody who looks.
  std::thread other([&] {
    AddressRange* const range =
        *device.memory()->ReserveRange(PageCount(60), kUnnamedOwner);
    while (!done) {
      const absl::Status status =
          device.memory()->Commit(range, PageCount(0), PageCount(60));
      EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
      EXPECT_TRUE(device.memory()
                      ->Decommit(range, PageCount(0), PageCount(60), Fence())
                      .ok());
      std::this_thread::yield();
    }
    device.memory()->ReleaseRange(range, Fence());
  });
  std::thread reader([&] {
    while (!done) {
      for (const auto& cache : caches) {
        EXPECT_LE(cache->GetStatistics().sequences, 3u);
        EXPECT_LE(cache->AdmissibleTokens(), kMaxTokens);
        EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
      }
      std::this_thread::yield();
    }
  });
  for (std::thread& worker : workers) worker.join();
  done = true;
  other.join();
  reader.join();
  EXPECT_GT(lives, 0);
  for (const auto& cache : caches) {
    EXPECT_EQ(cache->GetStatistics().sequences, 0u);
    EXPECT_EQ(cache->GetStatistics().tokens, 0u);
  }
}

}  // namespace
}  // namespace quire
