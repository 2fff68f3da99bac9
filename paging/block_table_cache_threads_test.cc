// Many threads on one block-table cache that is too small for them, with the
// same few beginnings of texts: for ThreadSanitizer, and against deadlock. The
// rows are host memory that each thread writes and reads itself, so each has
// written what it publishes.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "paging/kv_cache_testing.h"
#include "quire/paging/block_table_cache.h"

namespace quire {
namespace {

constexpr uint64_t kMaxTokens = 48;

class Worker {
 public:
  Worker(BlockTableCache* cache, Driver* driver, uint32_t number)
      : cache_(cache),
        driver_(driver),
        number_(number),
        random_(number),
        stream_(*driver->CreateStream(DeviceId(0))) {}
  ~Worker() { EXPECT_TRUE(driver_->DestroyStream(stream_).ok()); }

  // One sequence from its prompt to its end. False where blocks were short.
  bool LiveOnce() {
    // A whole number of blocks that many prompts have in common (tokens 0 and
    // 1), then tokens that nobody else has: all from 1000 on, or the first life
    // of the first worker would begin as the others' do.
    std::vector<int32_t> tokens(4 * (random_() % 4), random_() % 2);
    const auto common = static_cast<uint64_t>(tokens.size());
    const auto own = static_cast<int32_t>(1000 * (number_ + 1) + ++lives_);
    tokens.resize(common + 1 + random_() % 12, own);
    const auto admission = cache_->AdmitPrompt(tokens);
    if (!admission.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(admission.status()))
          << admission.status();
      return false;
    }
    const SequenceId id = admission->sequence;
    EXPECT_LE(admission->cached_tokens, common);
    Write(id, tokens, admission->cached_tokens);
    EXPECT_TRUE(cache_->Publish(id, tokens).ok());
    for (int i = 0; i < 4 && tokens.size() < kMaxTokens - 8; ++i) {
      const uint64_t before = tokens.size();
      const SequenceStep step = {id, before + random_() % 8};
      if (!cache_->Step(std::span(&step, 1)).ok()) break;
      tokens.resize(step.length, own);
      Write(id, tokens, before);
    }
    EXPECT_TRUE(Holds(id, tokens));
    const Fence fence =
        *Fence::Record(driver_, DeviceId(0), std::span(&stream_, 1));
    if (random_() % 2 == 0) {
      tokens.resize(tokens.size() / 2);
      EXPECT_TRUE(cache_->Shrink(id, tokens.size(), fence).ok());
      EXPECT_TRUE(Holds(id, tokens));
    }
    EXPECT_TRUE(cache_->Release(id, fence).ok());
    return true;
  }

 private:
  template <typename Body>
  void ForEachRow(SequenceId id, const std::vector<int32_t>& tokens,
                  uint64_t from, const Body& body) {
    for (const uint32_t layer : {0, 4}) {
      const KvLayerView view = *cache_->View(id, layer);
      for (uint64_t t = from; t < tokens.size(); ++t)
        body(view.KeyRow(t).host_pointer<int32_t>(), tokens[t]);
    }
  }
  void Write(SequenceId id, const std::vector<int32_t>& tokens, uint64_t from) {
    ForEachRow(id, tokens, from,
               [](int32_t* row, int32_t token) { *row = token; });
  }
  bool Holds(SequenceId id, const std::vector<int32_t>& tokens) {
    bool right = true;
    ForEachRow(id, tokens, 0, [&](const int32_t* row, int32_t token) {
      right = right && *row == token;
    });
    return right;
  }

  BlockTableCache* const cache_;
  Driver* const driver_;
  const uint32_t number_;
  std::mt19937 random_;
  const StreamId stream_;
  uint32_t lives_ = 0;
};

TEST(BlockTableCacheThreadsTest, ThreadsKeepTheirSequencesApart) {
  constexpr uint32_t kWorkers = 4;
  TestDevice device(64);
  const StreamId stream = *device.driver()->CreateStream(DeviceId(0));
  const auto cache =
      *BlockTableCache::Create(device.memory(), TestLayout(2),
                               {.max_sequence_length = kMaxTokens,
                                .max_sequences = 3,
                                .block_tokens = 4,
                                .blocks = 24,
                                .stream = stream});
  std::atomic<int> lives{0};
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < kWorkers; ++number) {
    threads.emplace_back([&, number] {
      Worker worker(cache.get(), device.driver(), number);
      for (int round = 0; round < 200; ++round) lives += worker.LiveOnce();
    });
  }
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      EXPECT_LE(cache->AdmissibleTokens(), kMaxTokens);
      EXPECT_LE(cache->Use().needed, cache->Use().capacity);
      EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  reader.join();
  EXPECT_GT(lives, 0);
  EXPECT_GT(cache->GetStatistics().cached_prompt_tokens, 0u);
  EXPECT_EQ(cache->Use().needed, Bytes(0));
  EXPECT_TRUE(device.driver()->DestroyStream(stream).ok());
}

}  // namespace
}  // namespace quire
