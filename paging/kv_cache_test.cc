#include "quire/paging/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "paging/kv_cache_testing.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

// ---- Admit, Step, Shrink, Release -------------------------------------------

TEST(KvCacheTest, AViewIsABaseAddressAndAStride) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 2, CacheOptions(100));
  const SequenceId sequence = Admit(cache.get(), 1);
  // Rows of 256 bytes: 100 tokens are 7 pages a group. Layer 3 is the second
  // one of the second group.
  const uint64_t base = Base(*cache, sequence).value();
  const auto view = *cache->View(sequence, 3);
  EXPECT_EQ(view.keys, DeviceAddress(base + 7 * 4096 + 128));
  EXPECT_EQ(view.values, DeviceAddress(base + 7 * 4096 + 192));
  EXPECT_EQ(view.row_stride, Bytes(256));
  // Layer 4 is alone in the last group.
  const auto last = *cache->View(sequence, 4);
  EXPECT_EQ(last.keys, DeviceAddress(base + 14 * 4096));
  EXPECT_EQ(last.row_stride, Bytes(128));
}

TEST(KvCacheTest, PagesAppearAsTheSequenceGrows) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId sequence = Admit(cache.get(), 0);
  EXPECT_EQ(device.live_pages(), 0u);
  for (const auto& [length, pages] : std::vector<std::pair<uint64_t, uint64_t>>{
           {1, 5}, {32, 5}, {33, 10}, {320, 50}}) {
    ASSERT_TRUE(Step(cache.get(), sequence, length).ok());
    EXPECT_EQ(device.live_pages(), pages) << length;
    EXPECT_EQ(*cache->Length(sequence), length);
  }
  const KvCacheStatistics statistics = cache->GetStatistics();
  EXPECT_EQ(statistics.sequences, 1u);
  EXPECT_EQ(statistics.tokens, 320u);
  EXPECT_EQ(statistics.used, Bytes(320 * 640));
  EXPECT_EQ(statistics.committed, Bytes(50 * 4096));
  EXPECT_EQ(statistics.parked, Bytes(0));
  EXPECT_EQ(statistics.reserved, Bytes(50 * 4096));
  EXPECT_EQ(statistics.steps, 4u);
  EXPECT_EQ(statistics.steps_without_mapping, 1u);
}

// kvcached#367: a block larger than a page hung its allocator.
TEST(KvCacheTest, Kvcached367RowsMayBeLargerThanPages) {
  TestDevice device(64);
  const KvLayout layout =
      *KvLayout::Create({3, 4, 256, KvDType::kF16}, 3);  // 12 KiB rows
  const auto cache =
      *KvCache::Create(device.memory(), layout, CacheOptions(20));
  const SequenceId sequence = Admit(cache.get(), 1);
  EXPECT_EQ(device.live_pages(), 3u);
  ASSERT_TRUE(Step(cache.get(), sequence, 20).ok());
  EXPECT_EQ(device.live_pages(), 60u);
}

// Latent vectors, scales, K and V of two sizes: every byte that belongs to a
// token is written through the views, then all are read.
TEST(KvCacheTest, RowsOfEveryKindReadBack) {
  constexpr uint64_t kTokens = 60;
  KvModelShape shape;
  shape.layers = {LatentKvLayer(24, 8, KvDType::kBF16),
                  {2, 7, 5, KvDType::kF8E4M3, KvScale::kF16},
                  {3, 5, 5, KvDType::kInt8, KvScale::kF32},
                  LatentKvLayer(24, 8, KvDType::kBF16),
                  {1, 4, 8, KvDType::kF32}};
  for (const bool apart : {false, true}) {
    TestDevice device(64);
    const KvLayout layout = *KvLayout::Create(shape, {2, apart});
    const auto cache = MakeCache(&device, layout, CacheOptions(100));
    const SequenceId sequence = Admit(cache.get(), kTokens);
    // Calls `visit` with the bytes of each side, elements or scales.
    const auto visit_all = [&](auto visit) {
      for (uint32_t layer = 0; layer < layout.layers(); ++layer) {
        const KvLayerKind& kind = layout.KindOf(layer);
        const KvLayerView view = *cache->View(sequence, layer);
        const uint64_t element = KvElementSize(kind.dtype).value();
        const uint64_t scales = kind.kv_heads * KvScaleSize(kind.scale).value();
        const auto at = [](DeviceAddress base, uint64_t token, Bytes stride) {
          return DeviceAddress(base.value() + token * stride.value())
              .host_pointer<uint8_t>();
        };
        for (uint64_t token = 0; token < kTokens; ++token) {
          visit(view.KeyRow(token).host_pointer<uint8_t>(),
                kind.kv_heads * kind.key_dim * element);
          visit(at(view.key_scales, token, view.row_stride), scales);
          if (kind.value_dim == 0) continue;
          visit(view.ValueRow(token).host_pointer<uint8_t>(),
                kind.kv_heads * kind.value_dim * element);
          visit(at(view.value_scales, token, view.value_stride), scales);
        }
      }
    };
    uint8_t next = 1;
    visit_all([&](uint8_t* bytes, uint64_t count) {
      for (uint64_t i = 0; i < count; ++i)
        bytes[i] = next = static_cast<uint8_t>(next + 31);
    });
    next = 1;
    uint64_t wrong = 0;
    visit_all([&](const uint8_t* bytes, uint64_t count) {
      for (uint64_t i = 0; i < count; ++i)
        wrong += bytes[i] != (next = static_cast<uint8_t>(next + 31));
    });
    EXPECT_EQ(wrong, 0u);
  }
}

TEST(KvCacheDeathTest, AddressesWithoutPagesFault) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId sequence = Admit(cache.get(), 32);
  const uint64_t keys = cache->View(sequence, 4)->keys.value();
  volatile uint8_t* const last =
      DeviceAddress(keys + 31 * 128).host_pointer<uint8_t>();
  volatile uint8_t* const behind =
      DeviceAddress(keys + 32 * 128).host_pointer<uint8_t>();
  *last = 1;
  EXPECT_EQ(*last, 1);
  EXPECT_DEATH(*behind = 1, "");
  EXPECT_DEATH((void)*behind, "");
}

TEST(KvCacheTest, AShorterLengthKeepsThePagesUntilShrink) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId sequence = Admit(cache.get(), 100);  // 4 pages in 5 groups
  ASSERT_TRUE(Step(cache.get(), sequence, 10).ok());
  EXPECT_EQ(device.live_pages(), 20u);
  // A kernel that was queued for 100 tokens may still run.
  EXPECT_EQ(cache->GetStatistics().reclaimable, Bytes(0));
  ASSERT_TRUE(cache->Shrink(sequence, 10, Fence()).ok());
  EXPECT_EQ(device.live_pages(), 5u);
  EXPECT_EQ(*cache->Length(sequence), 10u);
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
}

TEST(KvCacheTest, ShrunkPagesCoolUntilTheFenceAndMayComeBack) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId sequence = Admit(cache.get(), 100);
  BlockedStream stream(device.driver());
  ASSERT_TRUE(cache->Shrink(sequence, 10, stream.Record()).ok());
  EXPECT_EQ(device.live_pages(), 5u);
  EXPECT_EQ(device.cooling_pages(), 15u);
  const uint64_t calls = device.mapping_calls();
  ASSERT_TRUE(Step(cache.get(), sequence, 100).ok());
  EXPECT_EQ(device.live_pages(), 20u);
  EXPECT_EQ(device.mapping_calls(), calls);
}

TEST(KvCacheTest, StepIsAllOrNothingAcrossSequences) {
  TestDevice device(30);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  std::vector<SequenceStep> steps;
  for (int i = 0; i < 4; ++i) steps.push_back({Admit(cache.get(), 32), 32});
  EXPECT_EQ(device.live_pages(), 20u);
  // 10 pages are left: two sequences could grow, three cannot.
  const KvCacheStatistics before = cache->GetStatistics();
  for (int i = 0; i < 3; ++i) steps[i].length = 33;
  const absl::Status status = cache->Step(steps);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(OutOfMemoryVerdict::FromStatus(status).has_value());
  EXPECT_THAT(status.message(), HasSubstr("the KV cache needs 15 pages"));
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  EXPECT_EQ(device.live_pages(), 20u);
  for (const SequenceStep& step : steps)
    EXPECT_EQ(*cache->Length(step.sequence), 32u);
  EXPECT_EQ(cache->GetStatistics().steps, before.steps);
  EXPECT_EQ(cache->GetStatistics().committed, before.committed);
  steps.resize(2);
  EXPECT_TRUE(cache->Step(steps).ok());
  EXPECT_EQ(device.live_pages(), 30u);
}

TEST(KvCacheTest, MapAheadMakesLongerRunsWhereMemoryIsFree) {
  TestDevice device(64);
  KvCacheOptions options = CacheOptions(320);
  options.map_ahead = PageCount(2);
  const auto cache = MakeCache(&device, 1, options);
  const SequenceId sequence = Admit(cache.get(), 1);
  EXPECT_EQ(device.live_pages(), 15u);  // one page and two ahead, five groups
  const uint64_t calls = device.mapping_calls();
  ASSERT_TRUE(Step(cache.get(), sequence, 96).ok());
  EXPECT_EQ(device.mapping_calls(), calls);
  ASSERT_TRUE(Step(cache.get(), sequence, 97).ok());
  EXPECT_EQ(device.live_pages(), 30u);
  // Not beyond the longest length, and not where the pages are not free.
  ASSERT_TRUE(Step(cache.get(), sequence, 320).ok());
  EXPECT_EQ(device.live_pages(), 50u);
  Admit(cache.get(), 33);
  EXPECT_EQ(device.live_pages(), 60u);
  EXPECT_EQ(cache->GetStatistics().reclaimable, Bytes(0));
}

// ---- Parking and adoption ---------------------------------------------------

TEST(KvCacheTest, TheNextSequenceAdoptsTheParkedRegion) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId first = Admit(cache.get(), 100);
  const DeviceAddress base = Base(*cache, first);
  Release(cache.get(), first);
  EXPECT_EQ(device.live_pages(), 20u);
  EXPECT_EQ(cache->GetStatistics().parked, Bytes(20 * 4096));
  EXPECT_EQ(cache->GetStatistics().parked_regions, 1u);
  const uint64_t calls = device.mapping_calls();
  const SequenceId second = Admit(cache.get(), 90);
  EXPECT_EQ(device.mapping_calls(), calls);
  EXPECT_EQ(Base(*cache, second), base);
  EXPECT_NE(first, second);
  EXPECT_EQ(cache->GetStatistics().adoptions, 1u);
}

// vAttention's best fit keeps the first idle slot, also when it is empty.
TEST(KvCacheTest, VAttentionAdoptsTheRegionWithTheLeastMappingWork) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId empty = Admit(cache.get(), 0);
  const SequenceId three = Admit(cache.get(), 96);
  const SequenceId nine = Admit(cache.get(), 288);
  const DeviceAddress three_base = Base(*cache, three);
  const DeviceAddress nine_base = Base(*cache, nine);
  Release(cache.get(), empty);
  Release(cache.get(), nine);
  Release(cache.get(), three);
  const uint64_t calls = device.mapping_calls();
  // Both have the three pages; the smaller one is enough.
  const SequenceId a = Admit(cache.get(), 96);
  EXPECT_EQ(Base(*cache, a), three_base);
  const SequenceId b = Admit(cache.get(), 96);
  EXPECT_EQ(Base(*cache, b), nine_base);
  EXPECT_EQ(device.mapping_calls(), calls);
}

TEST(KvCacheTest, AParkedRegionIsNotAdoptedBeforeItsFence) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId first = Admit(cache.get(), 100);
  const DeviceAddress base = Base(*cache, first);
  BlockedStream stream(device.driver());
  Release(cache.get(), first, stream.Record());
  const SequenceId second = Admit(cache.get(), 100);
  EXPECT_NE(Base(*cache, second), base);
  EXPECT_EQ(cache->GetStatistics().adoptions, 0u);
  EXPECT_EQ(device.live_pages(), 40u);
  stream.Unblock();
  const SequenceId third = Admit(cache.get(), 100);
  EXPECT_EQ(Base(*cache, third), base);
  EXPECT_EQ(device.live_pages(), 40u);
}

TEST(KvCacheTest, ARegionWithoutPagesIsReusedAsAddresses) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId first = Admit(cache.get(), 0);
  const DeviceAddress base = Base(*cache, first);
  Release(cache.get(), first);
  EXPECT_EQ(Base(*cache, Admit(cache.get(), 10)), base);
  EXPECT_EQ(cache->GetStatistics().reserved, Bytes(50 * 4096));
}

TEST(KvCacheTest, ASteadyStateMakesNoMappingCall) {
  TestDevice device(200);
  const auto cache = MakeCache(&device, 2, CacheOptions(320));
  const std::vector<uint64_t> lengths = {10, 70, 33, 200};
  const auto cycle = [&] {
    std::vector<SequenceStep> steps;
    for (const uint64_t length : lengths)
      steps.push_back({Admit(cache.get(), length), length});
    for (int i = 0; i < 40; ++i) {
      for (SequenceStep& step : steps) ++step.length;
      ASSERT_TRUE(cache->Step(steps).ok());
    }
    for (const SequenceStep& step : steps) Release(cache.get(), step.sequence);
  };
  // A prompt does not say how long its sequence gets, so that a region may fit
  // the one and be too short for the other: the parked regions grow for a
  // while.
  for (int i = 0; i < 4; ++i) cycle();
  const uint64_t calls = device.mapping_calls();
  const uint64_t mapping_steps = cache->GetStatistics().steps -
                                 cache->GetStatistics().steps_without_mapping;
  for (int i = 0; i < 5; ++i) cycle();
  EXPECT_EQ(device.mapping_calls(), calls);
  EXPECT_EQ(cache->GetStatistics().steps -
                cache->GetStatistics().steps_without_mapping,
            mapping_steps);
  EXPECT_EQ(cache->GetStatistics().adoptions, 8 * 4u);
}

// ---- Admission --------------------------------------------------------------

// vAttention and kvcached#377: the free count wrapped below zero.
TEST(KvCacheTest, VAttentionAndKvcached377AdmissibleTokensNeverWraps) {
  TestDevice device(10);
  KvCacheOptions options = CacheOptions(1000);
  options.headroom = PageCount(11);
  const auto cache = MakeCache(&device, 1, options);
  EXPECT_EQ(cache->AdmissibleTokens(), 0u);
  EXPECT_EQ(cache->Admit(1).status().code(),
            absl::StatusCode::kResourceExhausted);
  options.headroom = PageCount(UINT64_MAX);
  const auto greedy = MakeCache(&device, 1, options);
  EXPECT_EQ(greedy->AdmissibleTokens(), 0u);
  EXPECT_EQ(greedy->Admit(1000).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device.live_pages(), 0u);
}

TEST(KvCacheTest, ALongerClaimThanTheFreePoolLeavesTheCountRight) {
  TestDevice device(10);
  const auto cache = MakeCache(&device, 1, CacheOptions(1000));
  EXPECT_EQ(cache->AdmissibleTokens(), 64u);
  EXPECT_FALSE(cache->Admit(65).ok());
  EXPECT_EQ(cache->AdmissibleTokens(), 64u);
  Admit(cache.get(), 64);
  EXPECT_EQ(cache->AdmissibleTokens(), 0u);
}

TEST(KvCacheTest, HeadroomIsLeftForTheGrowthOfTheAdmitted) {
  TestDevice device(30);
  KvCacheOptions options = CacheOptions(320);
  options.headroom = PageCount(10);
  const auto cache = MakeCache(&device, 1, options);
  EXPECT_EQ(cache->AdmissibleTokens(), 128u);
  const SequenceId sequence = Admit(cache.get(), 128);
  const auto refused = cache->Admit(1);
  EXPECT_THAT(refused.status().message(), HasSubstr("a headroom of 10"));
  // Steps may use it.
  EXPECT_TRUE(Step(cache.get(), sequence, 192).ok());
}

TEST(KvCacheTest, AdmissibleTokensIsWhatAdmitTakes) {
  for (const uint32_t layers_per_row : {1u, 2u, 5u}) {
    TestDevice device(45);
    KvCacheOptions options = CacheOptions(320);
    options.headroom = PageCount(3);
    const auto cache = MakeCache(&device, layers_per_row, options);
    const SequenceId long_one = Admit(cache.get(), 150);
    Admit(cache.get(), 20);
    Release(cache.get(), long_one);
    const uint64_t admissible = cache->AdmissibleTokens();
    EXPECT_FALSE(cache->Admit(admissible + 1).ok());
    EXPECT_EQ(cache->AdmissibleTokens(), admissible);
    Admit(cache.get(), admissible);
  }
}

TEST(KvCacheTest, UseTellsWhatIsNeededHeldAndToBeHad) {
  constexpr auto pages = [](uint64_t n) { return Bytes(n * 4096); };
  TestDevice device(64);
  KvCacheOptions options = CacheOptions(320);
  options.map_ahead = PageCount(1);
  const auto cache = MakeCache(&device, 1, options);
  EXPECT_EQ(cache->Use().needed, Bytes(0));
  EXPECT_EQ(cache->Use().capacity, pages(64));
  EXPECT_EQ(cache->Use().fraction(), 0);

  const SequenceId a = Admit(cache.get(), 33);  // two pages of five layers
  const SequenceId b = Admit(cache.get(), 1);
  EXPECT_EQ(cache->Use().needed, pages(15));
  EXPECT_EQ(cache->Use().held, pages(25));  // with a page ahead for each layer
  EXPECT_EQ(cache->Use().capacity, pages(64));
  EXPECT_EQ(*cache->FreedByRelease(a), pages(10));
  EXPECT_EQ(*cache->FreedByRelease(b), pages(5));

  Release(cache.get(), a);  // parked pages are held, and not needed
  EXPECT_EQ(cache->Use().needed, pages(5));
  EXPECT_EQ(cache->Use().held, pages(25));
  EXPECT_EQ(cache->FreedByRelease(a).status().code(),
            absl::StatusCode::kNotFound);

  // What others use cannot be had.
  AddressRange* const other =
      *device.memory()->ReserveRange(PageCount(30), kUnnamedOwner);
  ASSERT_TRUE(device.memory()->Commit(other, PageCount(0), PageCount(30)).ok());
  EXPECT_EQ(cache->Use().capacity, pages(34));
  device.memory()->ReleaseRange(other, Fence());
  EXPECT_EQ(cache->Use().capacity, pages(64));
  EXPECT_EQ(CacheUse().fraction(), 1);
}

TEST(KvCacheTest, SequenceSlotsAreALimitOfTheirOwn) {
  TestDevice device(64);
  KvCacheOptions options = CacheOptions(320);
  options.max_sequences = 2;
  const auto cache = MakeCache(&device, 1, options);
  const SequenceId first = Admit(cache.get(), 1);
  Admit(cache.get(), 1);
  const auto third = cache->Admit(1);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(third.status().message(), "KV cache: all 2 sequences are in use");
  EXPECT_EQ(cache->AdmissibleTokens(), 0u);
  Release(cache.get(), first);
  EXPECT_EQ(cache->AdmissibleTokens(), 320u);
  Admit(cache.get(), 1);
}

TEST(KvCacheTest, AddressesAreALimitOfTheirOwn) {
  TestDevice device(64, KiB(4), Bytes(50 * 4096));
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  Admit(cache.get(), 1);
  const auto second = cache->Admit(1);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  const auto verdict = OutOfMemoryVerdict::FromStatus(second.status());
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->kind, ShortageKind::kAddressSpace);
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
}

// ---- Wrong use --------------------------------------------------------------

TEST(KvCacheTest, RejectsOptionsThatCannotWork) {
  TestDevice device(10);
  const KvLayout layout = TestLayout(1);
  const auto code = [&](const KvCacheOptions& options) {
    return KvCache::Create(device.memory(), layout, options).status().code();
  };
  EXPECT_EQ(code(CacheOptions(0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(CacheOptions(UINT64_MAX)), absl::StatusCode::kInvalidArgument);
  // 64 MiB of addresses are 104,857 tokens of 640 bytes.
  EXPECT_EQ(code(CacheOptions(105000)), absl::StatusCode::kInvalidArgument);
  KvCacheOptions none = CacheOptions(10);
  none.max_sequences = 0;
  EXPECT_EQ(code(none), absl::StatusCode::kInvalidArgument);
}

TEST(KvCacheTest, RejectsLengthsBeyondTheMaximum) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  for (const uint64_t length : {uint64_t{321}, UINT64_MAX}) {
    EXPECT_EQ(cache->Admit(length).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  const SequenceId sequence = Admit(cache.get(), 10);
  EXPECT_EQ(Step(cache.get(), sequence, 321).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Shrink(sequence, 11, Fence()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->View(sequence, 5).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*cache->Length(sequence), 10u);
}

TEST(KvCacheTest, ADeadIdIsNotFound) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId dead = Admit(cache.get(), 10);
  Release(cache.get(), dead);
  const SequenceId heir = Admit(cache.get(), 10);  // in the same slot
  for (const SequenceId id : {dead, SequenceId(), SequenceId(UINT64_MAX),
                              SequenceId(heir.value() + 1)}) {
    EXPECT_EQ(Step(cache.get(), id, 11).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(cache->Release(id, Fence()).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(cache->Shrink(id, 1, Fence()).code(),
              absl::StatusCode::kNotFound);
    EXPECT_EQ(cache->View(id, 0).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(cache->Length(id).status().code(), absl::StatusCode::kNotFound);
  }
}

TEST(KvCacheTest, AStepWithAWrongEntryChangesNothing) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  const SequenceId a = Admit(cache.get(), 10);
  const SequenceId b = Admit(cache.get(), 10);
  for (const SequenceStep& wrong :
       {SequenceStep{SequenceId(99), 10}, SequenceStep{b, 400},
        SequenceStep{a, 200}}) {
    const std::vector<SequenceStep> steps = {{a, 100}, wrong};
    EXPECT_FALSE(cache->Step(steps).ok());
    EXPECT_EQ(*cache->Length(a), 10u);
    EXPECT_EQ(device.live_pages(), 10u);
  }
  EXPECT_EQ(cache->GetStatistics().steps, 0u);
  const std::vector<SequenceStep> steps = {{a, 100}, {b, 12}};
  EXPECT_TRUE(cache->Step(steps).ok());
}

TEST(KvCacheTest, AStepOfNothingIsAStep) {
  TestDevice device(64);
  const auto cache = MakeCache(&device, 1, CacheOptions(320));
  EXPECT_TRUE(cache->Step({}).ok());
  EXPECT_EQ(cache->GetStatistics().steps_without_mapping, 1u);
}

}  // namespace
}  // namespace quire
