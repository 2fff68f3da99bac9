// Swap to the host and back: rows come back where they were, pages are free
// when they have been copied and no sooner, and what is shared is kept, or
// copied once.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "paging/kv_cache_share_testing.h"
#include "paging/swap_space.h"

namespace quire {
namespace {

// Rows of 5 layers at 5 layers a row: 640 bytes, 6.4 tokens a page of 4 KiB.
constexpr uint64_t kSwapPages = 64;

KvCacheOptions SwapOptions() {
  KvCacheOptions options = CacheOptions(320);
  options.prefix_block_tokens = 4;
  options.swap_space = Bytes(kSwapPages * KiB(4).value());
  return options;
}

SequenceId AdmitWritten(KvCache* cache, const Tokens& tokens) {
  const SequenceId sequence = Admit(cache, tokens.size());
  TokenRows(*cache, sequence).Write(tokens, 0);
  return sequence;
}

void SwapOut(KvCache* cache, SequenceId sequence,
             const Fence& fence = Fence()) {
  const absl::Status status = cache->SwapOut(sequence, fence);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
}

void SwapIn(KvCache* cache, SequenceId sequence) {
  const absl::Status status = cache->SwapIn(sequence);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
}

uint64_t SwapTaken(const KvCache& cache) {
  return cache.GetStatistics().swap_taken.value() / KiB(4).value();
}

class KvCacheSwapLayoutTest
    : public ::testing::TestWithParam<std::tuple<uint32_t, bool>> {};

TEST_P(KvCacheSwapLayoutTest, RowsComeBackToTheSameAddresses) {
  const auto [layers_per_row, values_apart] = GetParam();
  TestDevice device(80);
  const auto cache = MakeCache(
      &device, TestLayout(layers_per_row, values_apart), SwapOptions());
  const Tokens tokens = TokensFrom(0, 150);
  const SequenceId sequence = AdmitWritten(cache.get(), tokens);
  const TokenRows rows(*cache, sequence);
  const uint64_t pages = device.live_pages();
  SwapOut(cache.get(), sequence);
  EXPECT_EQ(cache->GetStatistics().committed, Bytes(0));
  EXPECT_EQ(cache->GetStatistics().tokens, 0u);
  EXPECT_EQ(*cache->Length(sequence), 150u);
  // Others write what they like on the pages.
  Taker taker(&device, 80);
  ASSERT_TRUE(taker.Take(80).ok());
  taker.GiveBack();
  SwapIn(cache.get(), sequence);
  EXPECT_EQ(device.live_pages(), pages);
  EXPECT_EQ(rows.FirstWrong(tokens), tokens.size());
  EXPECT_EQ(SwapTaken(*cache), 0u);
  // And grows on.
  ASSERT_TRUE(Step(cache.get(), sequence, 200).ok());
  const Tokens longer = TokensFrom(0, 200);
  rows.Write(longer, 150);
  EXPECT_EQ(rows.FirstWrong(longer), longer.size());
}

INSTANTIATE_TEST_SUITE_P(Layouts, KvCacheSwapLayoutTest,
                         ::testing::Combine(::testing::Values(1, 2, 5),
                                            ::testing::Bool()));

TEST(KvCacheSwapTest, PagesAreFreeWhenTheyHaveBeenCopiedAndNoSooner) {
  TestDevice device(40);
  const auto cache = MakeCache(&device, 5, SwapOptions());
  const Tokens tokens = TokensFrom(7, 100);
  const SequenceId sequence = AdmitWritten(cache.get(), tokens);
  const TokenRows rows(*cache, sequence);
  {
    BlockedStream kernels(device.driver());
    SwapOut(cache.get(), sequence, kernels.Record());
    EXPECT_EQ(device.live_pages(), 0u);
    EXPECT_EQ(device.cooling_pages(), 16u);
    Taker taker(&device, 40);
    EXPECT_FALSE(device.memory()->Harvest() > PageCount(0));
    // The copies come after the kernels, so these may still write.
    rows.Write(TokensFrom(8, 100), 0);
    rows.Write(tokens, 0);
  }
  Taker taker(&device, 40);
  ASSERT_TRUE(taker.Take(40).ok());
  taker.GiveBack();
  SwapIn(cache.get(), sequence);
  EXPECT_EQ(rows.FirstWrong(tokens), tokens.size());
}

TEST(KvCacheSwapTest, ASequenceThatComesBackAtOnceFindsItsPages) {
  TestDevice device(40);
  const auto cache = MakeCache(&device, 5, SwapOptions());
  const Tokens tokens = TokensFrom(7, 100);
  const SequenceId sequence = AdmitWritten(cache.get(), tokens);
  BlockedStream kernels(device.driver());
  SwapOut(cache.get(), sequence, kernels.Record());
  const uint64_t calls = device.mapping_calls();
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    kernels.Unblock();
  });
  SwapIn(cache.get(), sequence);
  late.join();
  // They still cooled, and are live again.
  EXPECT_EQ(device.mapping_calls(), calls);
  EXPECT_EQ(TokenRows(*cache, sequence).FirstWrong(tokens), tokens.size());
}

TEST(KvCacheSwapTest, KernelsWaitForTheCopiesAndTheCallerDoesNot) {
  TestDevice device(40);
  const StreamId stream = *device.driver()->CreateStream(DeviceId(0));
  KvCacheOptions options = SwapOptions();
  options.stream = stream;
  const auto cache = MakeCache(&device, 5, options);
  const Tokens tokens = TokensFrom(7, 100);
  const SequenceId sequence = AdmitWritten(cache.get(), tokens);
  const TokenRows rows(*cache, sequence);
  SwapOut(cache.get(), sequence);
  Taker taker(&device, 40);
  ASSERT_TRUE(taker.Take(40).ok());
  taker.GiveBack();
  SwapIn(cache.get(), sequence);
  std::atomic<uint64_t> right{0};
  ASSERT_TRUE(
      device.driver()
          ->LaunchHostFunction(stream, [&] { right = rows.FirstWrong(tokens); })
          .ok());
  ASSERT_TRUE(device.driver()->SynchronizeStream(stream).ok());
  EXPECT_EQ(right, tokens.size());
  EXPECT_TRUE(device.driver()->DestroyStream(stream).ok());
}

TEST(KvCacheSwapTest, TheBudgetIsLimitedAndComesBack) {
  TestDevice device(200);
  const auto cache = MakeCache(&device, 5, SwapOptions());
  std::vector<SequenceId> sequences;
  for (int i = 0; i < 5; ++i)  // 16 pages each: four fit
    sequences.push_back(AdmitWritten(cache.get(), TokensFrom(i * 1000, 100)));
  for (int i = 0; i < 4; ++i) SwapOut(cache.get(), sequences[i]);
  EXPECT_EQ(SwapTaken(*cache), 64u);
  EXPECT_EQ(cache->GetStatistics().swap_pinned, SwapOptions().swap_space);
  const absl::Status refused = cache->SwapOut(sequences[4], Fence());
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(refused.message(),
            "swap space: 16 pages of 4.00 KiB, and 0 of its 64 are free");
  EXPECT_EQ(TokenRows(*cache, sequences[4]).FirstWrong(TokensFrom(4000, 100)),
            100u);
  EXPECT_EQ(cache->GetStatistics().swapped_sequences, 4u);
  // Who is released, or back, makes room.
  Release(cache.get(), sequences[0]);
  SwapOut(cache.get(), sequences[4]);
  EXPECT_EQ(SwapTaken(*cache), 64u);
  for (int i = 1; i < 5; ++i) {
    SwapIn(cache.get(), sequences[i]);
    EXPECT_EQ(
        TokenRows(*cache, sequences[i]).FirstWrong(TokensFrom(i * 1000, 100)),
        100u);
  }
  EXPECT_EQ(SwapTaken(*cache), 0u);
  EXPECT_EQ(cache->GetStatistics().swaps_out, 5u);
  EXPECT_EQ(cache->GetStatistics().swaps_in, 4u);
  // To the byte: 100 rows of 640 bytes.
  EXPECT_EQ(cache->GetStatistics().bytes_swapped_out, Bytes(5 * 64000));
  EXPECT_EQ(cache->GetStatistics().bytes_swapped_in, Bytes(4 * 64000));
}

TEST(KvCacheSwapTest, WithoutRoomItStaysOnTheHostAndComesLater) {
  TestDevice device(20);
  const auto cache = MakeCache(&device, 5, SwapOptions());
  const Tokens tokens = TokensFrom(7, 100);
  const SequenceId sequence = AdmitWritten(cache.get(), tokens);
  SwapOut(cache.get(), sequence);
  const SequenceId other = Admit(cache.get(), 50);
  const absl::Status refused = cache->SwapIn(sequence);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  EXPECT_EQ(SwapTaken(*cache), 16u);
  Release(cache.get(), other);
  SwapIn(cache.get(), sequence);
  EXPECT_EQ(TokenRows(*cache, sequence).FirstWrong(tokens), tokens.size());
}

TEST(KvCacheSwapTest, MeanwhileItCanBeReleasedAndNothingElse) {
  TestDevice device(60);
  const auto cache = MakeCache(&device, 5, SwapOptions());
  const Tokens tokens = TokensFrom(7, 100);
  const SequenceId sequence = AdmitWritten(cache.get(), tokens);
  const SequenceId other = Admit(cache.get(), 50);
  const auto is_refused = [](const absl::Status& status) {
    return status.code() == absl::StatusCode::kFailedPrecondition;
  };
  EXPECT_TRUE(is_refused(cache->SwapIn(sequence)));
  {
    BlockedStream kernels(device.driver());
    SwapOut(cache.get(), sequence, kernels.Record());
    EXPECT_TRUE(is_refused(cache->SwapOut(sequence, Fence())));
    const SequenceStep both[] = {{other, 60}, {sequence, 101}};
    EXPECT_TRUE(is_refused(cache->Step(both)));
    EXPECT_EQ(*cache->Length(other), 50u);
    EXPECT_TRUE(is_refused(cache->Shrink(sequence, 10, Fence())));
    EXPECT_TRUE(is_refused(cache->Publish(sequence, tokens)));
    EXPECT_TRUE(is_refused(cache->View(sequence, 0).status()));
    EXPECT_TRUE(is_refused(cache->Fork(sequence, kernels.stream()).status()));
    EXPECT_EQ(*cache->FreedByRelease(sequence), Bytes(0));
    kernels.Unblock();
    Release(cache.get(), sequence, kernels.Record());
  }
  EXPECT_EQ(SwapTaken(*cache), 0u);
  EXPECT_TRUE(absl::IsNotFound(cache->SwapIn(sequence)));
  EXPECT_TRUE(absl::IsNotFound(cache->SwapOut(sequence, Fence())));
}

TEST(KvCacheSwapTest, WithoutSwapSpaceThereIsNoSwap) {
  TestDevice device(60);
  const auto cache = MakeCache(&device, 5, CacheOptions(320));
  EXPECT_EQ(cache->swap(), nullptr);
  const SequenceId sequence = Admit(cache.get(), 50);
  EXPECT_EQ(cache->SwapOut(sequence, Fence()).code(),
            absl::StatusCode::kFailedPrecondition);
  KvCacheOptions options = CacheOptions(320);
  options.swap_space = Bytes(4095);
  EXPECT_EQ(KvCache::Create(device.memory(), TestLayout(5), options)
                .status()
                .message(),
            "KV cache: a swap space of 4.00 KiB holds no page of 4.00 KiB");
}

// ---- Sharing ----

// Two sequences that continue a document of 96 tokens: 15 whole pages, and
// 120 tokens each, in 19 pages.
class KvCacheSwapShareTest : public ::testing::Test {
 protected:
  KvCacheSwapShareTest() {
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
    cache_ = MakeCache(&device_, 5, SwapOptions());
    for (int i = 0; i < 2; ++i) {
      texts_.push_back(Concat(document_, TokensFrom(1000 * (i + 1), 24)));
      ids_.push_back(
          AdmitPrompt(cache_.get(), texts_[i], {.stream = stream_}).sequence);
      EXPECT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
      WriteAndPublish(cache_.get(), ids_[i], texts_[i], i == 0 ? 0 : 96);
    }
    EXPECT_EQ(device_.live_pages(), 23u);
  }
  ~KvCacheSwapShareTest() override {
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }
  void CheckRows(int i) {
    EXPECT_EQ(TokenRows(*cache_, ids_[i]).FirstWrong(texts_[i]),
              texts_[i].size());
  }
  // What only these two have is written out too.
  void SwapBothOutAndTakeAll() {
    SwapOut(cache_.get(), ids_[0]);
    SwapOut(cache_.get(), ids_[1]);
    Taker taker(&device_, 40);
    EXPECT_TRUE(taker.Take(40).ok());
  }
  // The first one, which was shrunk to 40 tokens, goes on with others.
  void RewriteTheFirst(int32_t first) {
    EXPECT_TRUE(Step(cache_.get(), ids_[0], 120).ok());
    texts_[0] = Concat(TokensFrom(0, 40), TokensFrom(first, 80));
    TokenRows(*cache_, ids_[0]).Write(texts_[0], 40);
  }

  const Tokens document_ = TokensFrom(0, 96);
  TestDevice device_{40};
  StreamId stream_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Tokens> texts_;
  std::vector<SequenceId> ids_;
};

TEST_F(KvCacheSwapShareTest, PagesThatOthersNeedAreNotCopied) {
  const Bytes freed = *cache_->FreedByRelease(ids_[1]);
  SwapOut(cache_.get(), ids_[1]);
  EXPECT_EQ(freed, KiB(4 * 4));
  EXPECT_EQ(device_.live_pages(), 19u);
  // 120 rows less 15 pages, and host memory for all 19 pages.
  EXPECT_EQ(cache_->GetStatistics().bytes_swapped_out,
            Bytes(120 * 640 - 15 * 4096));
  EXPECT_EQ(SwapTaken(*cache_), 19u);
  // They cannot be taken away from the one that runs.
  Taker taker(&device_, 40);
  EXPECT_TRUE(taker.Take(21).ok());
  EXPECT_FALSE(taker.Take(22).ok());
  CheckRows(0);
  taker.GiveBack();
  SwapIn(cache_.get(), ids_[1]);
  EXPECT_EQ(device_.live_pages(), 23u);
  CheckRows(0);
  CheckRows(1);
}

TEST_F(KvCacheSwapShareTest, WhatOnlySwappedSequencesHaveIsWrittenOutOnce) {
  SwapOut(cache_.get(), ids_[0]);
  SwapOut(cache_.get(), ids_[1]);
  EXPECT_EQ(device_.live_pages(), 15u);
  // Not the 38 pages that they would be apart.
  EXPECT_EQ(SwapTaken(*cache_), 15u + 4u + 4u);
  EXPECT_EQ(cache_->GetStatistics().reclaimable, KiB(15 * 4));
  EXPECT_EQ(cache_->Use().needed, Bytes(0));
  Taker taker(&device_, 40);
  ASSERT_TRUE(taker.Take(40).ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  EXPECT_EQ(cache_->GetStatistics().bytes_swapped_out,
            Bytes(15 * 4096 + 2 * (120 * 640 - 15 * 4096)));
  taker.GiveBack();
  // The first one reads them in, the second has them from it.
  for (int i = 0; i < 2; ++i) {
    SwapIn(cache_.get(), ids_[i]);
    CheckRows(i);
  }
  EXPECT_EQ(device_.live_pages(), 23u);
  const KvCacheStatistics statistics = cache_->GetStatistics();
  EXPECT_EQ(statistics.shared, KiB(15 * 4));
  EXPECT_EQ(statistics.bytes_swapped_in, statistics.bytes_swapped_out);
  EXPECT_EQ(SwapTaken(*cache_), 0u);
  // Out again, in another order.
  for (const int i : {1, 0}) SwapOut(cache_.get(), ids_[i]);
  EXPECT_EQ(device_.live_pages(), 15u);
  ASSERT_TRUE(taker.Take(40).ok());
  taker.GiveBack();
  for (const int i : {1, 0}) SwapIn(cache_.get(), ids_[i]);
  EXPECT_EQ(device_.live_pages(), 23u);
  for (const int i : {0, 1}) CheckRows(i);
}

// Who comes second has what the first still has as it was: it went back to 40
// tokens, which fill six pages, and wrote others.
TEST_F(KvCacheSwapShareTest, WhatWasWrittenMeanwhileIsNotSharedAgain) {
  for (const bool write : {false, true}) {
    SwapBothOutAndTakeAll();
    SwapIn(cache_.get(), ids_[0]);
    ASSERT_TRUE(cache_->Shrink(ids_[0], 40, Fence()).ok());
    if (write) RewriteTheFirst(5000);
    SwapIn(cache_.get(), ids_[1]);
    CheckRows(1);
    if (!write) RewriteTheFirst(3000);
    CheckRows(0);
    CheckRows(1);
  }
}

// Written in place, and then shared with others: the second has its own rows.
TEST_F(KvCacheSwapShareTest, WhatIsSharedAnewIsNotWhatWasSwappedOut) {
  SwapBothOutAndTakeAll();
  SwapIn(cache_.get(), ids_[0]);
  ASSERT_TRUE(cache_->Shrink(ids_[0], 40, Fence()).ok());
  RewriteTheFirst(5000);
  const auto child = cache_->Fork(ids_[0], stream_);
  ASSERT_TRUE(child.ok()) << child.status();
  SwapIn(cache_.get(), ids_[1]);
  CheckRows(0);
  CheckRows(1);
}

// Who came back first is gone again before the second comes.
TEST_F(KvCacheSwapShareTest, WhoIsGoneAgainSharesNothing) {
  SwapBothOutAndTakeAll();
  SwapIn(cache_.get(), ids_[0]);
  Release(cache_.get(), ids_[0]);
  Taker taker(&device_, 40);
  ASSERT_TRUE(taker.Take(40).ok());
  taker.GiveBack();
  SwapIn(cache_.get(), ids_[1]);
  CheckRows(1);
  EXPECT_EQ(device_.live_pages(), 19u);
}

TEST_F(KvCacheSwapShareTest, WhoRemainsGetsAPageOfItsOwnBeforeItWrites) {
  SwapOut(cache_.get(), ids_[1]);
  ASSERT_TRUE(cache_->Shrink(ids_[0], 40, Fence()).ok());
  RewriteTheFirst(5000);
  SwapIn(cache_.get(), ids_[1]);
  CheckRows(0);
  CheckRows(1);
}

TEST_F(KvCacheSwapShareTest, PromptsFindWhatOthersHaveAndNotWhatIsGone) {
  SwapOut(cache_.get(), ids_[1]);
  const Tokens prompt = Concat(texts_[1], TokensFrom(9000, 4));
  const PromptAdmission found =
      AdmitPrompt(cache_.get(), prompt, {.stream = stream_});
  EXPECT_EQ(found.cached_tokens, 96u);
  Release(cache_.get(), found.sequence);
  SwapIn(cache_.get(), ids_[1]);
  // Published again, it is found again.
  ASSERT_TRUE(cache_->Publish(ids_[1], texts_[1]).ok());
  const PromptAdmission again =
      AdmitPrompt(cache_.get(), prompt, {.stream = stream_});
  EXPECT_EQ(again.cached_tokens, 120u);
  ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
  EXPECT_EQ(TokenRows(*cache_, again.sequence).FirstWrong(texts_[1]), 120u);
}

TEST_F(KvCacheSwapShareTest, ACopyThatIsRefusedLeavesThePagesWhereTheyAre) {
  SwapOut(cache_.get(), ids_[0]);
  SwapOut(cache_.get(), ids_[1]);
  device_.driver()->FailCallsFrom(DriverCall::kCopyToHost, 5,
                                  absl::StatusCode::kInternal);
  Taker taker(&device_, 40);
  EXPECT_FALSE(taker.Take(40).ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  device_.driver()->ClearFaults();
  EXPECT_TRUE(taker.Take(40).ok());
  taker.GiveBack();
  for (int i = 0; i < 2; ++i) {
    SwapIn(cache_.get(), ids_[i]);
    CheckRows(i);
  }
}

// Tells when host memory is being pinned.
class PinningDriver final : public FaultyDriver {
 public:
  using FaultyDriver::FaultyDriver;
  absl::StatusOr<void*> AllocatePinned(Bytes size) override {
    if (on_pin) on_pin();
    return FaultyDriver::AllocatePinned(size);
  }
  std::function<void()> on_pin;
};

TEST(KvCacheSwapPinTest, OtherSequencesAreSteppedWhileHostMemoryIsPinned) {
  HostDriverOptions options;
  options.memory_per_device = Bytes(64 * KiB(4).value());
  options.granularity = KiB(4);
  const auto host = *HostDriver::Create(options);
  PinningDriver driver(host.get());
  OwnerRegistry owners;
  DeviceMemoryOptions memory_options;
  memory_options.page_size = KiB(4);
  memory_options.address_space = MiB(64);
  const auto memory = *DeviceMemory::Create(&driver, &owners, memory_options);
  const auto cache =
      *KvCache::Create(memory.get(), TestLayout(5), SwapOptions());
  const SequenceId victim = Admit(cache.get(), 50);
  const SequenceId other = Admit(cache.get(), 10);
  int pinned = 0;
  driver.on_pin = [&] {
    ++pinned;
    auto stepped = std::async(std::launch::async, [&] {
      const SequenceStep step = {other, 40};
      EXPECT_TRUE(cache->Step(std::span(&step, 1)).ok());
      EXPECT_EQ(cache->GetStatistics().swap_pinned, Bytes(0));
    });
    EXPECT_EQ(stepped.wait_for(std::chrono::seconds(20)),
              std::future_status::ready);
  };
  SwapOut(cache.get(), victim);
  EXPECT_EQ(pinned, 1);
  EXPECT_EQ(*cache->Length(other), 40u);
  SwapIn(cache.get(), victim);
}

// Who is pinning does not know what others take meanwhile.
TEST(KvCacheSwapPinTest, AnotherMayTakeWhatWasPinned) {
  const auto host = *HostDriver::Create(HostDriverOptions());
  PinningDriver driver(host.get());
  SwapSpace space(&driver, KiB(4), KiB(8));
  EXPECT_FALSE((*space.Take(1)).has_value());
  ASSERT_TRUE(space.Pin(1).ok());
  // Never more than the limit.
  EXPECT_EQ(space.pinned(), KiB(8));
  const auto both = *space.Take(2);
  ASSERT_TRUE(both.has_value());
  ASSERT_TRUE(space.Pin(1).ok());
  EXPECT_EQ(space.pinned(), KiB(8));
  EXPECT_TRUE(absl::IsResourceExhausted(space.Take(1).status()));
}

}  // namespace
}  // namespace quire
