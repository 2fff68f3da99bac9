// Pages mapped ahead: in time, never at the cost of others, and safe against
// everything that happens meanwhile.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "alloc/testing/run_in_child.h"
#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

constexpr uint64_t kMaxTokens = 400;

KvCacheOptions AheadOptions(uint32_t max_steps, bool thread = false) {
  KvCacheOptions options = CacheOptions(kMaxTokens);
  options.page_ahead.max_steps = max_steps;
  options.page_ahead.thread = thread;
  return options;
}

TEST(KvCacheAheadTest, StepsFindTheirPagesMapped) {
  TestDevice device(200);
  // 32 tokens a page in each of five groups.
  const auto cache = MakeCache(&device, 1, AheadOptions(40));
  const SequenceId sequence = Admit(cache.get(), 20);
  ASSERT_TRUE(Step(cache.get(), sequence, 21).ok());
  EXPECT_EQ(*cache->PrepareAhead(11), PageCount(0));  // up to 32: mapped
  EXPECT_EQ(*cache->PrepareAhead(12), PageCount(5));
  EXPECT_EQ(*cache->PrepareAhead(12), PageCount(0));
  const uint64_t calls = device.mapping_calls();
  for (uint64_t length = 22; length <= 64; ++length)
    ASSERT_TRUE(Step(cache.get(), sequence, length).ok());
  EXPECT_EQ(device.mapping_calls(), calls);
  KvCacheStatistics statistics = cache->GetStatistics();
  EXPECT_EQ(statistics.steps_waited, 0u);
  EXPECT_EQ(statistics.steps_without_mapping, 44u);
  EXPECT_EQ(statistics.pages_mapped_ahead, 5u);
  EXPECT_EQ(statistics.runs_mapped_ahead, 5u);
  ASSERT_TRUE(Step(cache.get(), sequence, 65).ok());
  statistics = cache->GetStatistics();
  EXPECT_EQ(statistics.steps_waited, 1u);
  EXPECT_EQ(statistics.runs_mapped, 10u);  // of Admit and of the last step
}

TEST(KvCacheAheadTest, TheMostUrgentSequenceComesFirst) {
  TestDevice device(25);  // the third sequence finds no page
  const auto cache = MakeCache(&device, 1, AheadOptions(40));
  std::vector<SequenceId> sequences;
  std::vector<SequenceStep> steps;
  for (const uint64_t length : {10, 30, 20}) {
    sequences.push_back(Admit(cache.get(), length));
    steps.push_back({sequences.back(), length + 1});
  }
  ASSERT_TRUE(cache->Step(steps).ok());
  EXPECT_EQ(*cache->PrepareAhead(30), PageCount(10));
  const uint64_t calls = device.mapping_calls();
  for (const size_t i : {1, 2})
    ASSERT_TRUE(Step(cache.get(), sequences[i], 33).ok());
  EXPECT_EQ(device.mapping_calls(), calls);
}

TEST(KvCacheAheadTest, OnlySequencesThatStepAndOnlyUpToTheirLongest) {
  TestDevice device(400);
  const auto cache = MakeCache(&device, 5, AheadOptions(1000));
  const SequenceId sequence = Admit(cache.get(), 1);
  Admit(cache.get(), 1);  // waits
  ASSERT_TRUE(Step(cache.get(), sequence, 2).ok());
  // 640 bytes a token: 400 take 63 pages, of which it has one.
  EXPECT_EQ(*cache->PrepareAhead(1000), PageCount(62));
  EXPECT_EQ(*cache->PrepareAhead(), PageCount(0));
}

TEST(KvCacheAheadTest, TakesWhatIsParkedAndTheHeadroom) {
  TestDevice device(30);
  KvCacheOptions options = AheadOptions(400);
  options.headroom = PageCount(4);
  const auto cache = MakeCache(&device, 5, options);
  const SequenceId parked = Admit(cache.get(), 60);  // 10 pages
  const SequenceId sequence = Admit(cache.get(), 1);
  Release(cache.get(), parked);
  ASSERT_TRUE(Step(cache.get(), sequence, 2).ok());
  EXPECT_EQ(*cache->PrepareAhead(400), PageCount(30 - 1));
  EXPECT_EQ(cache->GetStatistics().parked, Bytes(0));
  // An admission finds it as before: what is ahead is to be had.
  EXPECT_TRUE(cache->Admit(25 * 6).ok());
  EXPECT_FALSE(cache->Admit(12).ok());
}

TEST(KvCacheAheadTest, OnAFullDeviceAStepReclaimsNothing) {
  TestDevice device(30);
  const auto cache = MakeCache(&device, 5, AheadOptions(8));
  const SequenceId parked = Admit(cache.get(), 120);  // 19 pages
  const SequenceId first = Admit(cache.get(), 30);    // 5
  const SequenceId second = Admit(cache.get(), 38);   // 6: full
  Release(cache.get(), parked);
  for (uint64_t step = 1; step <= 30; ++step) {
    const uint64_t calls = device.mapping_calls();
    const SequenceStep steps[] = {{first, 30 + step}, {second, 38 + step}};
    ASSERT_TRUE(cache->Step(steps).ok());
    if (step > 1) {
      EXPECT_EQ(device.mapping_calls(), calls) << step;
    }
    ASSERT_TRUE(cache->PrepareAhead(8).ok());
    EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  }
  EXPECT_LE(cache->GetStatistics().steps_waited, 1u);
}

TEST(KvCacheAheadTest, DoesNotTakeFromOneWhatIsAheadForAnother) {
  TestDevice device(12);
  const auto cache = MakeCache(&device, 5, AheadOptions(100));
  const SequenceId first = Admit(cache.get(), 6);
  const SequenceId second = Admit(cache.get(), 6);
  const SequenceStep steps[] = {{first, 7}, {second, 7}};
  ASSERT_TRUE(cache->Step(steps).ok());
  EXPECT_EQ(*cache->PrepareAhead(100), PageCount(12 - 4));
  EXPECT_EQ(*cache->PrepareAhead(100), PageCount(0));
}

TEST(KvCacheAheadTest, PagesUnderAFenceAreNotWaitedFor) {
  TestDevice device(24);
  const auto cache = MakeCache(&device, 5, AheadOptions(100));
  const SequenceId parked = Admit(cache.get(), 120);
  const SequenceId sequence = Admit(cache.get(), 30);
  BlockedStream kernels(device.driver());
  Release(cache.get(), parked, kernels.Record());
  ASSERT_TRUE(Step(cache.get(), sequence, 31).ok());
  EXPECT_EQ(*cache->PrepareAhead(100), PageCount(0));
  kernels.Unblock();
  EXPECT_GT(*cache->PrepareAhead(100), PageCount(0));
}

TEST(KvCacheAheadTest, OthersTakeWhatIsMappedAhead) {
  TestDevice device(30);
  const auto cache = MakeCache(&device, 5, AheadOptions(400));
  const SequenceId sequence = Admit(cache.get(), 1);
  ASSERT_TRUE(Step(cache.get(), sequence, 2).ok());
  ASSERT_EQ(*cache->PrepareAhead(400), PageCount(29));
  EXPECT_EQ(cache->GetStatistics().reclaimable, KiB(29 * 4));
  EXPECT_EQ(cache->Use().needed, KiB(4));
  AddressRange* const other =
      *device.memory()->ReserveRange(PageCount(29), kUnnamedOwner);
  EXPECT_TRUE(device.memory()->Commit(other, PageCount(0), PageCount(29)).ok());
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  EXPECT_EQ(*cache->PrepareAhead(400), PageCount(0));
  device.memory()->ReleaseRange(other, Fence());
}

TEST(KvCacheAheadTest, LooksAsFarAheadAsCallsTake) {
  TestDevice device(400);
  KvCacheOptions options = AheadOptions(16);
  uint64_t now = 0;
  options.page_ahead.clock = [&now] { return now; };
  const auto cache = MakeCache(&device, 1, options);
  const SequenceId sequence = Admit(cache.get(), 31);
  for (uint64_t length = 32; length < 100; ++length) {
    now += 1000;
    ASSERT_TRUE(Step(cache.get(), sequence, length).ok());
    ASSERT_TRUE(cache->PrepareAhead().ok());
  }
  EXPECT_EQ(cache->GetStatistics().steps_ahead, 1u);  // calls take no time
  // Every reading takes a unit: a mapping takes one, and a step comes after two
  // to three, so that five mappings take two steps.
  options.page_ahead.clock = [&now] { return now += 1000; };
  const auto slow = MakeCache(&device, 1, options);
  const SequenceId other = Admit(slow.get(), 31);
  for (uint64_t length = 32; length < 150; ++length) {
    ASSERT_TRUE(Step(slow.get(), other, length).ok());
    ASSERT_TRUE(slow->PrepareAhead().ok());
  }
  EXPECT_GE(slow->GetStatistics().steps_ahead, 3u);
  EXPECT_LE(slow->GetStatistics().steps_ahead, 16u);
}

TEST(KvCacheAheadTest, EveryRefusalLeavesTheSequencesWhole) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kResourceExhausted, absl::StatusCode::kInternal}) {
    for (uint64_t n = 1;; ++n) {
      SCOPED_TRACE(n);
      TestDevice device(100);
      const auto cache = MakeCache(&device, 2, AheadOptions(40));
      const SequenceId sequence = Admit(cache.get(), 10);
      ASSERT_TRUE(Step(cache.get(), sequence, 11).ok());
      *Base(*cache, sequence).host_pointer<uint64_t>() = n;
      device.driver()->FailCall(n, code);
      const auto pages = cache->PrepareAhead(40);
      const bool fired = device.driver()->faults_fired() > 0;
      device.driver()->ClearFaults();
      EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
      EXPECT_EQ(*cache->Length(sequence), 11u);
      EXPECT_EQ(*Base(*cache, sequence).host_pointer<uint64_t>(), n);
      EXPECT_TRUE(Step(cache.get(), sequence, 51).ok());
      if (fired) continue;
      EXPECT_TRUE(pages.ok()) << pages.status();
      break;
    }
  }
}

TEST(KvCacheAheadTest, EagerReclaimGivesBackAtOnce) {
  TestDevice device(30);
  KvCacheOptions options = CacheOptions(kMaxTokens);
  options.eager_reclaim = true;
  const auto cache = MakeCache(&device, 5, options);
  BlockedStream stream(device.driver());
  const SequenceId sequence = Admit(cache.get(), 60);
  Release(cache.get(), sequence, stream.Record());
  EXPECT_EQ(cache->GetStatistics().parked_regions, 1u);
  EXPECT_EQ(cache->GetStatistics().parked, Bytes(0));
  EXPECT_EQ(device.cooling_pages(), 10u);
  stream.Unblock();
  EXPECT_EQ(device.memory()->Harvest(), PageCount(10));
}

TEST(KvCacheAheadTest, RejectsAThreadWithNothingToDo) {
  TestDevice device(10);
  EXPECT_EQ(KvCache::Create(device.memory(), TestLayout(1),
                            AheadOptions(0, /*thread=*/true))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

// ---- The thread -------------------------------------------------------------

TEST(KvCacheAheadThreadTest, MapsAfterAStepByItself) {
  TestDevice device(200);
  const auto cache = MakeCache(&device, 1, AheadOptions(40, true));
  const SequenceId sequence = Admit(cache.get(), 31);
  ASSERT_TRUE(Step(cache.get(), sequence, 32).ok());
  while (cache->GetStatistics().pages_mapped_ahead < 5)
    std::this_thread::yield();
  const uint64_t calls = device.mapping_calls();
  ASSERT_TRUE(Step(cache.get(), sequence, 33).ok());
  EXPECT_EQ(device.mapping_calls(), calls);
}

// Sequences grow, shrink and end while pages are mapped under them and taken
// from them.
TEST(KvCacheAheadThreadTest, MapsBesideEverythingElse) {
  TestDevice device(150);
  const auto cache = MakeCache(&device, 2, AheadOptions(40, true));
  std::atomic<bool> done = false;
  std::thread other([&] {
    AddressRange* const range =
        *device.memory()->ReserveRange(PageCount(60), kUnnamedOwner);
    while (!done) {
      EXPECT_TRUE(
          device.memory()->Commit(range, PageCount(0), PageCount(60)).ok());
      EXPECT_TRUE(device.memory()
                      ->Decommit(range, PageCount(0), PageCount(60), Fence())
                      .ok());
      std::this_thread::yield();
    }
    device.memory()->ReleaseRange(range, Fence());
  });
  for (int round = 0; round < 20; ++round) {
    std::vector<SequenceId> sequences;
    for (uint32_t i = 0; i < 4; ++i)
      sequences.push_back(Admit(cache.get(), 10 * i));
    for (uint64_t length = 31; length < 70; ++length) {
      std::vector<SequenceStep> steps;
      for (const SequenceId sequence : sequences)
        steps.push_back({sequence, length});
      ASSERT_TRUE(cache->Step(steps).ok());
      for (const SequenceId sequence : sequences) {
        const KvLayerView view = *cache->View(sequence, 4);
        *view.ValueRow(length - 1).host_pointer<uint64_t>() =
            sequence.value() + length;
      }
    }
    for (const SequenceId sequence : sequences) {
      const KvLayerView view = *cache->View(sequence, 4);
      for (uint64_t length = 31; length < 70; ++length)
        ASSERT_EQ(*view.ValueRow(length - 1).host_pointer<uint64_t>(),
                  sequence.value() + length);
      ASSERT_TRUE(cache->Shrink(sequence, 20, Fence()).ok());
      Release(cache.get(), sequence);
    }
  }
  done = true;
  other.join();
}

TEST(KvCacheAheadThreadTest, AForkedChildIsToldAndDoesNoHarm) {
  TestDevice device(100);
  auto cache = MakeCache(&device, 1, AheadOptions(40, true));
  const SequenceId sequence = Admit(cache.get(), 31);
  EXPECT_EQ(RunInChild([&] {
              const SequenceStep step{sequence, 40};
              const absl::Status calls[] = {
                  cache->Admit(1).status(),
                  cache->Step(std::span(&step, 1)),
                  cache->Shrink(sequence, 1, Fence()),
                  cache->Release(sequence, Fence()),
                  cache->Length(sequence).status(),
                  cache->View(sequence, 0).status(),
                  cache->FreedByRelease(sequence).status(),
                  cache->PrepareAhead().status(),
                  cache->CheckInvariants()};
              for (const absl::Status& status : calls)
                if (!absl::IsFailedPrecondition(status)) return 1;
              if (cache->AdmissibleTokens() != 0) return 2;
              if (cache->GetStatistics().sequences != 0) return 3;
              if (!cache->Use().held.zero()) return 4;
              cache.reset();
              return 0;
            }),
            0);
  EXPECT_TRUE(Step(cache.get(), sequence, 40).ok());
}

}  // namespace
}  // namespace quire
