#include "quire/paging/block_table_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/testing/run_in_child.h"
#include "paging/block_table_testing.h"
#include "paging/kv_cache_testing.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/owner.h"

namespace quire {
namespace {

// Blocks of 4 tokens; a block of the test layout has 4 * 640 bytes.
constexpr uint64_t kBlockBytes = 4 * 640;

using Tokens = std::vector<int32_t>;

Tokens Range(int32_t first, size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class BlockTableCacheTest : public BlockTableFixture {
 protected:
  BlockTableCacheTest() : BlockTableFixture(32, 16, 64) {}

  void Make(uint32_t layers_per_row = 2, bool values_apart = false) {
    BlockTableFixture::Make(TestLayout(layers_per_row, values_apart));
  }
  void Check() {
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  }
  absl::Status Step(const std::vector<SequenceStep>& steps) {
    return BlockTableFixture::Step(steps);
  }
  std::vector<uint32_t> Table(SequenceId sequence, uint64_t tokens) {
    const KvLayerView view = *cache_->View(sequence, 0);
    return {view.block_table, view.block_table + (tokens + 3) / 4};
  }
  uint64_t free_blocks() const { return cache_->GetStatistics().free_blocks; }

  // Every key and value of a token, in all layers.
  void Write(SequenceId sequence, uint64_t token, uint32_t what) {
    for (uint32_t layer = 0; layer < 5; ++layer) {
      const KvLayerView view = *cache_->View(sequence, layer);
      auto* const keys = view.KeyRow(token).host_pointer<uint32_t>();
      auto* const values = view.ValueRow(token).host_pointer<uint32_t>();
      for (uint32_t i = 0; i < kTestElements; ++i) {
        keys[i] = what + layer * 1000 + i;
        values[i] = ~keys[i];
      }
    }
  }
  bool Holds(SequenceId sequence, uint64_t token, uint32_t what) {
    for (uint32_t layer = 0; layer < 5; ++layer) {
      const KvLayerView view = *cache_->View(sequence, layer);
      const auto* keys = view.KeyRow(token).host_pointer<uint32_t>();
      const auto* values = view.ValueRow(token).host_pointer<uint32_t>();
      for (uint32_t i = 0; i < kTestElements; ++i) {
        if (keys[i] != what + layer * 1000 + i || values[i] != ~keys[i])
          return false;
      }
    }
    return true;
  }
};

TEST_F(BlockTableCacheTest, ThePoolIsCommittedAtOnceAndWhole) {
  Make();
  // 16 blocks of 4 rows of 256, 256 and 128 bytes: 4, 4 and 2 pages.
  EXPECT_EQ(device_.live_pages(), 10u);
  EXPECT_EQ(cache_->Use().held, Bytes(10 * 4096));
  EXPECT_EQ(cache_->Use().needed, Bytes(0));
  EXPECT_EQ(cache_->Use().capacity, Bytes(16 * kBlockBytes));
  const uint64_t calls = device_.mapping_calls();
  const SequenceId a = *cache_->Admit(5);
  ASSERT_TRUE(Step({{a, 40}}).ok());
  EXPECT_EQ(cache_->Use().needed, Bytes(10 * kBlockBytes));
  EXPECT_EQ(*cache_->FreedByRelease(a), Bytes(10 * kBlockBytes));
  ASSERT_TRUE(cache_->Release(a, Fence()).ok());
  EXPECT_EQ(device_.mapping_calls(), calls);
  Check();
}

TEST_F(BlockTableCacheTest, WithoutASizeThePoolIsAllThatIsLeft) {
  AddressRange* const other =
      *device_.memory()->ReserveRange(PageCount(7), kUnnamedOwner);
  ASSERT_TRUE(device_.memory()->Commit(other, PageCount(0), PageCount(7)).ok());
  options_.blocks = 0;
  Make();
  // 25 pages are left. 40 blocks take 10, 10 and 5 of them.
  EXPECT_EQ(cache_->GetStatistics().blocks, 40u);
  EXPECT_EQ(device_.live_pages(), 32u);
  const auto second =
      BlockTableCache::Create(device_.memory(), TestLayout(2), options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  device_.memory()->ReleaseRange(other, Fence());
}

TEST_F(BlockTableCacheTest, BadOptionsAreErrorsAndLeaveNothing) {
  const auto code = [&] {
    return BlockTableCache::Create(device_.memory(), TestLayout(1), options_)
        .status()
        .code();
  };
  const BlockTableCacheOptions good = options_;
  options_.block_tokens = 12;
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  options_ = good;
  options_.max_sequence_length = 0;
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  options_ = good;
  options_.max_sequences = 0;
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  options_ = good;
  options_.stream = StreamId();
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  options_ = good;
  options_.blocks = 1000;
  EXPECT_EQ(code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device_.memory()->GetStatistics().reserved, Bytes(0));
}

TEST_F(BlockTableCacheTest, APoolThatTheDriverRefusesLeavesNothing) {
  uint64_t refused = 0;
  while (true) {
    device_.driver()->FailCall(++refused, absl::StatusCode::kInternal);
    auto cache =
        BlockTableCache::Create(device_.memory(), TestLayout(2), options_);
    device_.driver()->ClearFaults();
    if (cache.ok()) break;
    EXPECT_EQ(device_.memory()->GetStatistics().reserved, Bytes(0));
    EXPECT_EQ(device_.live_pages(), 0u);
  }
  EXPECT_GT(refused, 10u);
}

TEST_F(BlockTableCacheTest, AForkedChildCannotUseIt) {
  Make();
  const SequenceId a = *cache_->Admit(4);
  EXPECT_EQ(
      RunInChild([&] {
        const SequenceStep step = {a, 5};
        const absl::Status calls[] = {cache_->Admit(1).status(),
                                      cache_->AdmitPrompt(Range(0, 3)).status(),
                                      cache_->Step(std::span(&step, 1)),
                                      cache_->Publish(a, Range(0, 3)),
                                      cache_->Fork(a).status(),
                                      cache_->Shrink(a, 0, Fence()),
                                      cache_->Release(a, Fence()),
                                      cache_->Length(a).status(),
                                      cache_->View(a, 0).status(),
                                      cache_->FreedByRelease(a).status(),
                                      cache_->CheckInvariants()};
        int call = 0;
        for (const absl::Status& status : calls) {
          ++call;
          if (!absl::IsFailedPrecondition(status)) return call;
        }
        if (cache_->AdmissibleTokens() != 0 || !cache_->Use().held.zero() ||
            cache_->GetStatistics().blocks != 0)
          return ++call;
        cache_.reset();
        return 0;
      }),
      0);
  ASSERT_TRUE(Step({{a, 5}}).ok());
}

TEST_F(BlockTableCacheTest, AdmissibleTokensIsWhatAdmitTakes) {
  options_.headroom_blocks = 3;
  options_.max_sequences = 2;
  Make();
  EXPECT_EQ(cache_->AdmissibleTokens(), 52u);
  EXPECT_EQ(cache_->Admit(53).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache_->Admit(65).status().code(),
            absl::StatusCode::kInvalidArgument);
  const SequenceId a = *cache_->Admit(21);
  EXPECT_EQ(cache_->AdmissibleTokens(), 28u);
  // A step may use the headroom.
  ASSERT_TRUE(Step({{a, 64}}).ok());
  EXPECT_EQ(cache_->AdmissibleTokens(), 0u);
  ASSERT_TRUE(cache_->Shrink(a, 4, Fence()).ok());
  const SequenceId b = *cache_->Admit(0);
  EXPECT_EQ(cache_->AdmissibleTokens(), 0u);
  EXPECT_EQ(cache_->Fork(a).status().code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(cache_->Release(a, Fence()).ok());
  ASSERT_TRUE(cache_->Release(b, Fence()).ok());
}

TEST_F(BlockTableCacheTest, ASequenceMayBeLongerThanAnyPool) {
  options_.max_sequence_length = UINT64_MAX;
  Make();
  EXPECT_EQ(cache_->AdmissibleTokens(), 64u);
  EXPECT_EQ(cache_->Admit(UINT64_MAX).status().code(),
            absl::StatusCode::kResourceExhausted);
  const SequenceId a = *cache_->Admit(64);
  EXPECT_EQ(Step({{a, UINT64_MAX}}).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(BlockTableCacheTest, AStepBacksAllOrNone) {
  Make();
  const SequenceId a = *cache_->Admit(4);
  const SequenceId b = *cache_->Admit(4);
  EXPECT_EQ(Step({{a, 32}, {b, 40}}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Step({{a, 8}, {a, 9}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Step({{a, 8}, {b, 65}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Step({{a, 8}, {SequenceId(99), 9}}).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(*cache_->Length(a), 4u);
  EXPECT_EQ(free_blocks(), 14u);
  ASSERT_TRUE(Step({{a, 32}, {b, 32}}).ok());
  EXPECT_EQ(free_blocks(), 0u);
}

TEST_F(BlockTableCacheTest, AReleasedIdIsDead) {
  Make();
  const SequenceId a = *cache_->Admit(4);
  ASSERT_TRUE(cache_->Release(a, Fence()).ok());
  const SequenceId b = *cache_->Admit(4);
  EXPECT_NE(a, b);
  for (const absl::StatusCode code :
       {cache_->Release(a, Fence()).code(),
        cache_->Shrink(a, 0, Fence()).code(), Step({{a, 5}}).code(),
        cache_->Publish(a, {}).code(), cache_->Fork(a).status().code(),
        cache_->View(a, 0).status().code(), cache_->Length(a).status().code(),
        cache_->FreedByRelease(a).status().code()})
    EXPECT_EQ(code, absl::StatusCode::kNotFound);
  EXPECT_EQ(cache_->View(b, 5).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache_->Shrink(b, 5, Fence()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(BlockTableCacheTest, NoTwoTokensShareARow) {
  for (const auto& [layers_per_row, values_apart] :
       {std::pair(1u, false), {2u, false}, {2u, true}, {5u, true}}) {
    Make(layers_per_row, values_apart);
    const SequenceId a = *cache_->Admit(1);
    const SequenceId b = *cache_->Admit(30);
    ASSERT_TRUE(Step({{a, 32}}).ok());
    for (uint64_t t = 0; t < 32; ++t) Write(a, t, 100 + t);
    for (uint64_t t = 0; t < 30; ++t) Write(b, t, 200 + t);
    for (uint64_t t = 0; t < 32; ++t) EXPECT_TRUE(Holds(a, t, 100 + t)) << t;
    for (uint64_t t = 0; t < 30; ++t) EXPECT_TRUE(Holds(b, t, 200 + t)) << t;
    cache_.reset();
  }
}

// ---- Prefixes ---------------------------------------------------------------

TEST_F(BlockTableCacheTest, APublishedPrefixServesLaterPrompts) {
  Make();
  const Tokens prompt = Range(10, 11);
  const PromptAdmission a = *cache_->AdmitPrompt(prompt);
  EXPECT_EQ(a.cached_tokens, 0u);
  // What is not published is not found.
  const PromptAdmission b = *cache_->AdmitPrompt(prompt);
  EXPECT_EQ(b.cached_tokens, 0u);
  ASSERT_TRUE(cache_->Release(b.sequence, Fence()).ok());
  for (uint64_t t = 0; t < 11; ++t) Write(a.sequence, t, 100 + t);
  ASSERT_TRUE(cache_->Publish(a.sequence, prompt).ok());

  Tokens longer = Range(10, 20);
  const PromptAdmission c = *cache_->AdmitPrompt(longer);
  EXPECT_EQ(c.cached_tokens, 8u);  // two whole blocks
  EXPECT_EQ(Table(c.sequence, 8), Table(a.sequence, 8));
  for (uint64_t t = 0; t < 8; ++t)
    EXPECT_TRUE(Holds(c.sequence, t, 100 + t)) << t;
  EXPECT_EQ(*cache_->FreedByRelease(c.sequence), Bytes(3 * kBlockBytes));
  EXPECT_EQ(*cache_->FreedByRelease(a.sequence), Bytes(kBlockBytes));
  // Another second block ends the prefix.
  Tokens other = longer;
  other[5] = 99;
  EXPECT_EQ(cache_->AdmitPrompt(other)->cached_tokens, 4u);
  // The last token is always left to be computed.
  EXPECT_EQ(cache_->AdmitPrompt(Range(10, 8))->cached_tokens, 4u);
  Check();
  const BlockTableCacheStatistics statistics = cache_->GetStatistics();
  EXPECT_EQ(statistics.prompt_tokens, 11u + 11 + 20 + 20 + 8);
  EXPECT_EQ(statistics.cached_prompt_tokens, 16u);
}

TEST_F(BlockTableCacheTest, PrefixesOutliveTheirSequencesUntilBlocksAreShort) {
  Make();
  const Tokens prompt = Range(0, 16);
  const SequenceId a = cache_->AdmitPrompt(prompt)->sequence;
  for (uint64_t t = 0; t < 16; ++t) Write(a, t, t);
  ASSERT_TRUE(cache_->Publish(a, prompt).ok());
  ASSERT_TRUE(cache_->Release(a, Fence()).ok());
  EXPECT_EQ(free_blocks(), 16u);
  EXPECT_EQ(cache_->GetStatistics().kept_blocks, 4u);

  const PromptAdmission b = *cache_->AdmitPrompt(prompt);
  EXPECT_EQ(b.cached_tokens, 12u);
  for (uint64_t t = 0; t < 12; ++t) EXPECT_TRUE(Holds(b.sequence, t, t)) << t;
  ASSERT_TRUE(cache_->Release(b.sequence, Fence()).ok());
  // 14 blocks: 12 that hold nothing, and the end of the chain.
  const SequenceId c = *cache_->Admit(56);
  EXPECT_EQ(cache_->GetStatistics().evictions, 2u);
  ASSERT_TRUE(cache_->Release(c, Fence()).ok());
  EXPECT_EQ(cache_->AdmitPrompt(prompt)->cached_tokens, 8u);
  Check();
}

TEST_F(BlockTableCacheTest, WithoutPrefixCachingNothingIsKept) {
  options_.prefix_caching = false;
  Make();
  const Tokens prompt = Range(0, 16);
  const SequenceId a = cache_->AdmitPrompt(prompt)->sequence;
  ASSERT_TRUE(cache_->Publish(a, prompt).ok());
  EXPECT_EQ(cache_->AdmitPrompt(prompt)->cached_tokens, 0u);
  ASSERT_TRUE(cache_->Release(a, Fence()).ok());
  EXPECT_EQ(cache_->GetStatistics().kept_blocks, 0u);
}

TEST_F(BlockTableCacheTest, OneCopyOfAPrefixStaysWhereTwoComputedIt) {
  Make();
  const Tokens prompt = Range(0, 9);
  const SequenceId a = cache_->AdmitPrompt(prompt)->sequence;
  const SequenceId b = cache_->AdmitPrompt(prompt)->sequence;
  EXPECT_EQ(free_blocks(), 10u);
  for (uint64_t t = 0; t < 9; ++t) {
    Write(a, t, t);
    Write(b, t, t);
  }
  ASSERT_TRUE(cache_->Publish(a, std::span(prompt).first(4)).ok());
  ASSERT_TRUE(cache_->Publish(b, prompt).ok());
  Check();
  EXPECT_EQ(Table(a, 4), Table(b, 4));
  EXPECT_EQ(free_blocks(), 11u);
  ASSERT_TRUE(cache_->Publish(a, prompt).ok());
  EXPECT_EQ(Table(a, 8), Table(b, 8));
  EXPECT_EQ(free_blocks(), 12u);
  for (uint64_t t = 0; t < 9; ++t) {
    EXPECT_TRUE(Holds(a, t, t)) << t;
    EXPECT_TRUE(Holds(b, t, t)) << t;
  }
  Check();
  EXPECT_EQ(cache_->Publish(a, Range(0, 10)).code(),
            absl::StatusCode::kInvalidArgument);
}

// ---- Forks ------------------------------------------------------------------

TEST_F(BlockTableCacheTest, AForkSharesUntilSomebodyWrites) {
  Make(2, true);
  const SequenceId a = *cache_->Admit(10);
  for (uint64_t t = 0; t < 10; ++t) Write(a, t, t);
  const SequenceId b = *cache_->Fork(a);
  const SequenceId c = *cache_->Fork(a);
  EXPECT_EQ(free_blocks(), 13u);
  EXPECT_EQ(*cache_->Length(b), 10u);
  EXPECT_EQ(Table(a, 10), Table(c, 10));
  EXPECT_EQ(*cache_->FreedByRelease(a), Bytes(0));

  // The third block is copied for two of the three; the last one keeps it.
  ASSERT_TRUE(Step({{a, 11}, {b, 11}, {c, 11}}).ok());
  EXPECT_EQ(cache_->GetStatistics().block_copies, 2u);
  EXPECT_EQ(free_blocks(), 11u);
  Write(a, 10, 1000);
  Write(b, 10, 2000);
  Write(c, 10, 3000);
  for (const SequenceId each : {a, b, c}) {
    for (uint64_t t = 0; t < 10; ++t) EXPECT_TRUE(Holds(each, t, t)) << t;
  }
  EXPECT_TRUE(Holds(a, 10, 1000));
  EXPECT_TRUE(Holds(b, 10, 2000));
  EXPECT_TRUE(Holds(c, 10, 3000));
  // They go on alone.
  ASSERT_TRUE(Step({{a, 12}, {b, 12}, {c, 12}}).ok());
  EXPECT_EQ(cache_->GetStatistics().block_copies, 2u);
  ASSERT_TRUE(cache_->Release(a, Fence()).ok());
  for (uint64_t t = 0; t < 10; ++t) EXPECT_TRUE(Holds(b, t, t)) << t;
  ASSERT_TRUE(cache_->Release(b, Fence()).ok());
  ASSERT_TRUE(cache_->Release(c, Fence()).ok());
  EXPECT_EQ(free_blocks(), 16u);
  Check();
}

TEST_F(BlockTableCacheTest, AForkAtTheEndOfABlockCopiesNothing) {
  Make();
  const SequenceId a = *cache_->Admit(8);
  const SequenceId b = *cache_->Fork(a);
  ASSERT_TRUE(Step({{a, 9}, {b, 9}}).ok());
  EXPECT_EQ(cache_->GetStatistics().block_copies, 0u);
  EXPECT_EQ(free_blocks(), 12u);
}

TEST_F(BlockTableCacheTest, APublishedBlockIsCopiedBeforeItsEndIsRewritten) {
  Make();
  const Tokens prompt = Range(0, 8);
  const SequenceId a = cache_->AdmitPrompt(prompt)->sequence;
  for (uint64_t t = 0; t < 8; ++t) Write(a, t, t);
  ASSERT_TRUE(cache_->Publish(a, prompt).ok());
  ASSERT_TRUE(cache_->Shrink(a, 6, Fence()).ok());
  ASSERT_TRUE(Step({{a, 8}}).ok());
  Write(a, 6, 600);
  Write(a, 7, 700);
  EXPECT_TRUE(Holds(a, 5, 5));
  // The prompt still has its own rows.
  const PromptAdmission b = *cache_->AdmitPrompt(Range(0, 9));
  EXPECT_EQ(b.cached_tokens, 8u);
  for (uint64_t t = 0; t < 8; ++t) EXPECT_TRUE(Holds(b.sequence, t, t)) << t;
  // And the sequence may publish what it has become.
  Tokens changed = prompt;
  changed[6] = changed[7] = 77;
  ASSERT_TRUE(cache_->Publish(a, changed).ok());
  EXPECT_TRUE(Holds(a, 6, 600));
  Check();
}

TEST_F(BlockTableCacheTest, ForksThatDisagreeCannotPublishOneBlock) {
  Make();
  const SequenceId a = *cache_->Admit(4);
  const SequenceId b = *cache_->Fork(a);
  ASSERT_TRUE(cache_->Publish(a, Range(0, 4)).ok());
  EXPECT_EQ(cache_->Publish(b, Range(1, 4)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(cache_->Publish(b, Range(0, 4)).ok());
  Check();
}

TEST_F(BlockTableCacheTest, ACopyThatIsRefusedChangesNothing) {
  Make();
  const SequenceId a = *cache_->Admit(6);
  for (uint64_t t = 0; t < 6; ++t) Write(a, t, t);
  const SequenceId b = *cache_->Fork(a);
  const SequenceId c = *cache_->Fork(a);
  // Two copies of three groups each.
  for (uint64_t call = 1; call <= 6; ++call) {
    device_.driver()->FailCall(DriverCall::kCopyOnDevice, call,
                               absl::StatusCode::kInternal);
    EXPECT_EQ(Step({{a, 12}, {b, 7}, {c, 7}}).code(),
              absl::StatusCode::kInternal);
    device_.driver()->ClearFaults();
    EXPECT_EQ(*cache_->Length(a), 6u);
    EXPECT_EQ(Table(a, 6), Table(c, 6));
    EXPECT_EQ(free_blocks(), 14u);
  }
  ASSERT_TRUE(Step({{a, 12}, {b, 7}, {c, 7}}).ok());
  for (const SequenceId each : {a, b, c}) {
    for (uint64_t t = 0; t < 6; ++t) EXPECT_TRUE(Holds(each, t, t)) << t;
  }
}

// ---- Fences -----------------------------------------------------------------

TEST_F(BlockTableCacheTest, WhereOnlyCoolingBlocksAreLeftAdmitWaits) {
  Make();
  const SequenceId a = *cache_->Admit(64);
  const std::vector<uint32_t> table = Table(a, 64);
  BlockedStream stream(device_.driver());
  ASSERT_TRUE(cache_->Shrink(a, 60, Fence()).ok());
  ASSERT_TRUE(cache_->Shrink(a, 8, stream.Record()).ok());
  EXPECT_EQ(cache_->AdmissibleTokens(), 56u);
  // The block that cools for nobody comes first.
  const SequenceId b = *cache_->Admit(4);
  EXPECT_EQ(Table(b, 4)[0], table[15]);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stream.Unblock();
  });
  const auto c = cache_->Admit(4);
  ASSERT_TRUE(c.ok()) << c.status();
  other.join();
  ASSERT_TRUE(Step({{a, 56}}).ok());
  EXPECT_EQ(free_blocks(), 0u);
}

// 2048 pages, and 50 mappings: pages that are made one after the other lie
// under the pool in that order, where the kernel needs one mapping for all of
// them.
TEST(BlockTablePoolTest, APoolOfManySmallPagesTakesFewMappings) {
  HostDriverOptions options;
  options.memory_per_device = MiB(8);
  options.granularity = KiB(4);
  options.mapping_limit = 50;
  const auto driver = *HostDriver::Create(options);
  OwnerRegistry owners;
  const auto memory = *DeviceMemory::Create(
      driver.get(), &owners, {.page_size = KiB(4), .address_space = MiB(64)});
  const StreamId stream = *driver->CreateStream(DeviceId(0));
  {
    const auto cache = BlockTableCache::Create(
        memory.get(), TestLayout(1),
        {.max_sequence_length = 64, .max_sequences = 4, .stream = stream});
    ASSERT_TRUE(cache.ok()) << cache.status();
    EXPECT_EQ(memory->GetStatistics().live, KiB(4 * 2045));
  }
  EXPECT_TRUE(driver->DestroyStream(stream).ok());
}

// The first mapping is refused: it is said before all pages were made for it.
TEST(BlockTableCachePoolTest, ADriverThatTakesNoMappingsIsAskedForFewPages) {
  HostDriverOptions host;
  host.memory_per_device = MiB(64);
  host.granularity = KiB(4);
  host.backing = HostDriverOptions::Backing::kNone;
  const auto device = *HostDriver::Create(host);
  FaultyDriver driver(device.get());
  OwnerRegistry owners;
  DeviceMemoryOptions options;
  options.page_size = KiB(4);
  const auto memory = *DeviceMemory::Create(&driver, &owners, options);
  BlockTableCacheOptions cache;
  cache.max_sequence_length = 64;
  cache.stream = *driver.CreateStream(DeviceId(0));
  driver.FailCallsFrom(DriverCall::kMap, 1,
                       absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(BlockTableCache::Create(memory.get(), TestLayout(5), cache)
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_LT(device->GetCallStatistics().CountOf("CreatePage"), 16384u / 2);
  driver.ClearFaults();
  EXPECT_TRUE(BlockTableCache::Create(memory.get(), TestLayout(5), cache).ok());
  EXPECT_TRUE(driver.DestroyStream(cache.stream).ok());
}

}  // namespace
}  // namespace quire
