// Sharing and swap from several threads, while another one takes the memory
// away: every sequence reads its own rows, whoever they come from.

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "paging/kv_cache_share_testing.h"

namespace quire {
namespace {

TEST(KvCacheShareThreadsTest, PromptsForksAndReleasesKeepTheirRows) {
  TestDevice device(160);
  KvCacheOptions options = CacheOptions(120);
  options.max_sequences = 16;
  options.prefix_block_tokens = 4;
  options.swap_space = KiB(4 * 40);
  options.page_ahead.max_steps = 2;
  options.page_ahead.thread = true;
  const auto cache = MakeCache(&device, 2, options);
  AddressRange* const other =
      *device.memory()->ReserveRange(PageCount(120), kUnnamedOwner);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<int> hits{0};
  std::atomic<int> swaps{0};

  const auto serve = [&](uint32_t seed) {
    std::mt19937_64 random(seed);
    // Rows are copied and read on one stream: others may not see them sooner.
    const StreamId stream = *device.driver()->CreateStream(DeviceId(0));
    const auto check = [&](SequenceId id, const Tokens& tokens) {
      if (!device.driver()->SynchronizeStream(stream).ok() ||
          TokenRows(*cache, id).FirstWrong(tokens) != tokens.size())
        ++wrong;
    };
    for (int i = 0; i < 120; ++i) {
      const Tokens document =
          TokensFrom(1000 * static_cast<int32_t>(random() % 3), 40);
      const Tokens tokens = Concat(
          document, TokensFrom(static_cast<int32_t>(random() % 5) * 100, 20));
      const auto admission = cache->AdmitPrompt(tokens, {.stream = stream});
      if (!admission.ok()) continue;
      const SequenceId id = admission->sequence;
      if (admission->cached_tokens > 0) ++hits;
      check(id, Tokens(tokens.begin(),
                       tokens.begin() + static_cast<std::ptrdiff_t>(
                                            admission->cached_tokens)));
      TokenRows(*cache, id).Write(tokens, admission->cached_tokens);
      if (!cache->Publish(id, tokens).ok()) ++wrong;
      const auto child = cache->Fork(id, stream);
      const SequenceStep step{id, 64};
      (void)cache->Step(std::span(&step, 1));
      if (child.ok()) {
        check(*child, tokens);
        if (!cache->Release(*child, Fence()).ok()) ++wrong;
      }
      check(id, tokens);
      if (cache->SwapOut(id, Fence()).ok() && random() % 4 != 0 &&
          cache->SwapIn(id).ok()) {
        check(id, tokens);
        ++swaps;
      }
      if (!cache->Release(id, Fence()).ok()) ++wrong;
    }
    if (!device.driver()->DestroyStream(stream).ok()) ++wrong;
  };
  std::thread taker([&] {
    std::mt19937_64 random(9);
    while (!stop) {
      (void)device.memory()->Commit(other, PageCount(0),
                                    PageCount(random() % 120));
      std::this_thread::yield();
      if (!device.memory()
               ->Decommit(other, PageCount(0), PageCount(120), Fence())
               .ok())
        ++wrong;
      (void)cache->GetStatistics();
    }
  });
  std::vector<std::thread> servers;
  for (uint32_t seed = 1; seed <= 3; ++seed) servers.emplace_back(serve, seed);
  for (std::thread& server : servers) server.join();
  stop = true;
  taker.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 10);
  EXPECT_GT(swaps, 10);
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  device.memory()->ReleaseRange(other, Fence());
}

}  // namespace
}  // namespace quire
