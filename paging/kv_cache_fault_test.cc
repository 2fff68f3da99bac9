// The KV cache when the driver refuses: every call of every operation fails
// once, with each kind of refusal, and a refused rollback costs no more than
// the sequence that it belongs to.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

constexpr absl::StatusCode kRefusals[] = {absl::StatusCode::kResourceExhausted,
                                          absl::StatusCode::kInternal};

// A device with a cache on which something is going on: three sequences, the
// first with 10 tokens, the others with 40, and regions parked at 60 and 20
// tokens. A page has 16 tokens, and 32 in the last of three groups, so that
// they have 3, 8, 8, 10 and 5 pages.
struct World {
  World(uint64_t pages, uint64_t map_ahead, bool with_parked,
        bool eager_reclaim = false)
      : device(pages) {
    KvCacheOptions options;
    options.max_sequence_length = 320;
    options.max_sequences = 8;
    options.map_ahead = PageCount(map_ahead);
    options.eager_reclaim = eager_reclaim;
    cache = MakeCache(&device, 2, options);
    std::vector<SequenceId> parked;
    if (with_parked) {
      for (const uint64_t length : {60, 20}) parked.push_back(Admit(length));
    }
    for (const uint64_t length : {10, 40, 40})
      sequences.push_back(Admit(length));
    for (const SequenceId sequence : parked)
      EXPECT_TRUE(cache->Release(sequence, Fence()).ok());
    for (const SequenceId sequence : sequences) Mark(sequence);
  }

  SequenceId Admit(uint64_t length) {
    const auto sequence = cache->Admit(length);
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    return sequence.value_or(SequenceId());
  }
  // The first token's keys say whose they are.
  void Mark(SequenceId sequence) {
    for (uint32_t layer = 0; layer < 5; ++layer)
      *cache->View(sequence, layer)->keys.host_pointer<uint64_t>() =
          sequence.value() + layer;
  }
  bool IsMarked(SequenceId sequence) {
    for (uint32_t layer = 0; layer < 5; ++layer) {
      if (*cache->View(sequence, layer)->keys.host_pointer<uint64_t>() !=
          sequence.value() + layer)
        return false;
    }
    return true;
  }
  std::vector<SequenceStep> StepsTo(uint64_t length) const {
    std::vector<SequenceStep> steps;
    for (const SequenceId sequence : sequences)
      steps.push_back({sequence, length});
    return steps;
  }
  void CheckBooks() {
    EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
    EXPECT_TRUE(device.memory()->CheckInvariants().ok())
        << device.memory()->CheckInvariants();
    const KvCacheStatistics statistics = cache->GetStatistics();
    EXPECT_EQ((statistics.committed.value() + statistics.parked.value()) / 4096,
              device.live_pages());
  }

  TestDevice device;
  std::vector<SequenceId> sequences;
  std::unique_ptr<KvCache> cache;
};

struct Operation {
  const char* name;
  uint64_t pages;  // of the device
  bool with_parked;
  uint64_t map_ahead;
  std::function<absl::Status(World*)> run;
};

// What a failed operation must leave as it was.
struct Kept {
  explicit Kept(const World& world) {
    for (const SequenceId sequence : world.sequences)
      lengths.push_back(*world.cache->Length(sequence));
    const KvCacheStatistics statistics = world.cache->GetStatistics();
    sequences = statistics.sequences;
    tokens = statistics.tokens;
    committed = statistics.committed;
    adoptions = statistics.adoptions;
    steps = statistics.steps;
  }
  friend bool operator==(const Kept&, const Kept&) = default;

  std::vector<uint64_t> lengths;
  uint32_t sequences;
  uint64_t tokens;
  Bytes committed;
  uint64_t adoptions;
  uint64_t steps;
};

class KvCacheFaultTest : public ::testing::TestWithParam<Operation> {};

TEST_P(KvCacheFaultTest, AFailureAtAnyCallChangesNothing) {
  const Operation& operation = GetParam();
  for (const absl::StatusCode code : kRefusals) {
    for (uint64_t n = 1;; ++n) {
      SCOPED_TRACE(std::string(operation.name) + ", call " + std::to_string(n) +
                   ", " + absl::StatusCodeToString(code));
      World world(operation.pages, operation.map_ahead, operation.with_parked);
      const Kept before(world);
      world.device.driver()->FailCall(n, code);
      const absl::Status status = operation.run(&world);
      const bool fired = world.device.driver()->faults_fired() > 0;
      world.device.driver()->ClearFaults();
      world.CheckBooks();
      for (const SequenceId sequence : world.sequences)
        EXPECT_TRUE(world.IsMarked(sequence));
      if (status.ok()) {
        if (!fired) break;  // it makes fewer calls
        continue;           // it found another way
      }
      EXPECT_TRUE(fired) << status;
      EXPECT_TRUE(Kept(world) == before) << status;
      // The refusal has passed: the same works now.
      const absl::Status again = operation.run(&world);
      EXPECT_TRUE(again.ok()) << again;
      world.CheckBooks();
    }
  }
}

absl::Status AdmitOne(World* world) {
  return world->cache->Admit(100).status();  // 18 pages
}

absl::Status StepAll(World* world) {
  return world->cache->Step(world->StepsTo(60));  // 11 pages more
}

INSTANTIATE_TEST_SUITE_P(
    Operations, KvCacheFaultTest,
    ::testing::Values(Operation{"AdmitReserving", 100, false, 0, AdmitOne},
                      Operation{"AdmitAdopting", 100, true, 0, AdmitOne},
                      Operation{"AdmitReclaiming", 41, true, 0, AdmitOne},
                      Operation{"Step", 100, true, 0, StepAll},
                      Operation{"StepMappingAhead", 100, true, 2, StepAll},
                      Operation{"StepReclaiming", 39, true, 0, StepAll}),
    [](const auto& test) { return std::string(test.param.name); });

// ---- Shrink and Release -----------------------------------------------------

struct Ending {
  const char* name;
  bool eager_reclaim;
  bool releases;  // else shrinks
  bool pending;   // under a fence that is not complete
};

class KvCacheEndingFaultTest : public ::testing::TestWithParam<Ending> {};

// What the driver keeps costs addresses and pages, and neither a row that is
// left nor anybody else's.
TEST_P(KvCacheEndingFaultTest, AFailureAtAnyCallLosesNoRow) {
  const Ending& ending = GetParam();
  for (const DriverCall call :
       {DriverCall::kReleaseAddress, DriverCall::kReleasePage, DriverCall::kMap,
        DriverCall::kUnmap, DriverCall::kQueryEvent,
        DriverCall::kSynchronizeEvent}) {
    for (uint64_t n = 1;; ++n) {
      SCOPED_TRACE(std::string(ending.name) + ", call " +
                   std::to_string(static_cast<int>(call)) + ", the " +
                   std::to_string(n) + "th");
      World world(200, 0, true, ending.eager_reclaim);
      FaultyDriver* const driver = world.device.driver();
      const SequenceId sequence = world.sequences[1];
      BlockedStream stream(driver);
      if (!ending.pending) stream.Unblock();
      const Fence fence = stream.Record();
      driver->FailCall(call, n, absl::StatusCode::kInternal);
      const absl::Status status =
          ending.releases ? world.cache->Release(sequence, fence)
                          : world.cache->Shrink(sequence, 10, fence);
      const bool fired = driver->faults_fired() > 0;
      driver->ClearFaults();
      world.CheckBooks();
      stream.Unblock();
      EXPECT_TRUE(fired || status.ok()) << status;
      const bool gone = !world.cache->Length(sequence).ok();
      if (ending.releases) {
        EXPECT_EQ(gone, status.ok()) << status;
      } else {
        EXPECT_FALSE(gone);
      }
      // The refusal has passed: what is left grows, or says that its addresses
      // are lost.
      for (const SequenceId left : world.sequences) {
        if (left == sequence && gone) continue;
        EXPECT_TRUE(world.IsMarked(left));
        const SequenceStep step{left, 60};
        const absl::Status grown = world.cache->Step(std::span(&step, 1));
        EXPECT_TRUE(grown.ok() || (left == sequence && absl::IsDataLoss(grown)))
            << grown;
        world.CheckBooks();
        EXPECT_TRUE(world.cache->Release(left, Fence()).ok());
      }
      for (int i = 0; i < 3; ++i) world.Admit(300);
      world.CheckBooks();
      if (HasFailure()) return;
      if (!fired) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Endings, KvCacheEndingFaultTest,
    ::testing::Values(Ending{"Shrink", false, false, false},
                      Ending{"ShrinkUnderAFence", false, false, true},
                      Ending{"Release", false, true, false},
                      Ending{"EagerRelease", true, true, false},
                      Ending{"EagerReleaseUnderAFence", true, true, true}),
    [](const auto& test) { return std::string(test.param.name); });

// ---- Refused rollbacks ------------------------------------------------------

// The driver refuses a mapping, and then to undo those made before it.
TEST(KvCacheDamageTest, ARefusedRollbackOfAStepCostsTheRegionsNotTheCache) {
  for (uint64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    World world(200, 0, false);
    const Kept before(world);
    FaultyDriver* const driver = world.device.driver();
    driver->FailCall(DriverCall::kMap, n, absl::StatusCode::kInternal);
    driver->FailCallsFrom(DriverCall::kUnmap, 1, absl::StatusCode::kInternal);
    const absl::Status status = StepAll(&world);
    const bool fired = driver->faults_fired() > 0;
    driver->ClearFaults();
    world.CheckBooks();
    if (!fired) {
      EXPECT_TRUE(status.ok()) << status;
      break;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_TRUE(Kept(world) == before);
    for (const SequenceId sequence : world.sequences) {
      EXPECT_TRUE(world.IsMarked(sequence));
      // It grows, or says that its addresses are lost.
      const SequenceStep step{sequence, 60};
      const absl::Status grown = world.cache->Step(std::span(&step, 1));
      EXPECT_TRUE(grown.ok() || absl::IsDataLoss(grown)) << grown;
      EXPECT_TRUE(world.cache->Release(sequence, Fence()).ok());
    }
    world.CheckBooks();
    // What is adopted now is whole.
    for (int i = 0; i < 3; ++i) world.Admit(300);
    world.CheckBooks();
  }
}

TEST(KvCacheDamageTest, ALostMappingIsToldAndNotParkedLater) {
  for (uint64_t n = 1; n <= 6; ++n) {
    World world(200, 0, false);
    const Kept before(world);
    world.device.driver()->FailCall(DriverCall::kMap, n,
                                    absl::StatusCode::kDataLoss);
    EXPECT_EQ(StepAll(&world).code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(Kept(world) == before);
    world.CheckBooks();
    for (const SequenceId sequence : world.sequences)
      EXPECT_TRUE(world.cache->Release(sequence, Fence()).ok());
    EXPECT_EQ(world.cache->GetStatistics().parked_regions, 2u);
    world.CheckBooks();
  }
}

TEST(KvCacheDamageTest, AnAdmissionThatCannotBeUndoneLeavesNoRegionBehind) {
  for (uint64_t n = 2; n <= 3; ++n) {  // of the three groups' mappings
    World world(200, 0, true);
    FaultyDriver* const driver = world.device.driver();
    driver->FailCall(DriverCall::kMap, n, absl::StatusCode::kInternal);
    driver->FailCallsFrom(DriverCall::kUnmap, 1, absl::StatusCode::kInternal);
    EXPECT_EQ(AdmitOne(&world).code(), absl::StatusCode::kInternal);
    driver->ClearFaults();
    world.CheckBooks();
    EXPECT_EQ(world.cache->GetStatistics().parked_regions, 1u);
    EXPECT_EQ(AdmitOne(&world), absl::OkStatus());
    EXPECT_EQ(AdmitOne(&world), absl::OkStatus());
  }
}

TEST(KvCacheDamageTest, AShrinkThatIsRefusedIsToldAndNotParkedLater) {
  World world(100, 0, false);
  FaultyDriver* const driver = world.device.driver();
  // Twice: a refusal that is passing is no damage.
  for (const uint64_t n : {1, 2})
    driver->FailCall(DriverCall::kUnmap, n, absl::StatusCode::kInternal);
  const SequenceId sequence = world.sequences[1];
  EXPECT_FALSE(world.cache->Shrink(sequence, 10, Fence()).ok());
  EXPECT_EQ(*world.cache->Length(sequence), 10u);
  EXPECT_TRUE(world.IsMarked(sequence));
  world.CheckBooks();
  EXPECT_TRUE(world.cache->Release(sequence, Fence()).ok());
  EXPECT_EQ(world.cache->GetStatistics().parked_regions, 0u);
  world.CheckBooks();
}

TEST(KvCacheDamageTest, AParkedRegionThatCannotBeReclaimedIsDropped) {
  World world(39, 0, true);
  for (const uint64_t n : {1, 2})
    world.device.driver()->FailCall(DriverCall::kUnmap, n,
                                    absl::StatusCode::kInternal);
  EXPECT_TRUE(StepAll(&world).ok());  // from the other parked region
  EXPECT_EQ(world.device.driver()->faults_fired(), 2u);
  EXPECT_EQ(world.cache->GetStatistics().parked_regions, 1u);
  world.CheckBooks();
}

}  // namespace
}  // namespace quire
