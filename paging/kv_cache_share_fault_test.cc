// Sharing and swap when the driver refuses: every call of every operation fails
// once, and nothing has changed but what was kept for prompts to come.

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "paging/kv_cache_share_testing.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

const Tokens kDocument = TokensFrom(0, 100);
const Tokens kAnswer = Concat(kDocument, TokensFrom(500, 30));
const Tokens kOther = TokensFrom(10000, 90);

// A sequence with the document and an answer, a fork of it that went back to 50
// tokens, and a parked region with another text.
struct World {
  World(uint64_t pages, uint32_t layers_per_row) : device(pages) {
    KvCacheOptions options = CacheOptions(320);
    options.prefix_block_tokens = 4;
    options.swap_space = KiB(4 * 100);
    stream = *device.driver()->CreateStream(DeviceId(0));
    options.stream = stream;
    cache = MakeCache(&device, layers_per_row, options);
    const SequenceId parent = Prompt(kAnswer);
    const SequenceId other = Prompt(kOther);
    EXPECT_TRUE(cache->Release(other, Fence()).ok());
    const SequenceId child = *cache->Fork(parent, stream);
    EXPECT_TRUE(device.driver()->SynchronizeStream(stream).ok());
    EXPECT_TRUE(cache->Shrink(child, 50, Fence()).ok());
    sequences = {{parent, kAnswer},
                 {child, Tokens(kAnswer.begin(), kAnswer.begin() + 50)}};
  }
  ~World() { EXPECT_TRUE(device.driver()->DestroyStream(stream).ok()); }

  SequenceId Prompt(const Tokens& tokens) {
    const PromptAdmission admission =
        AdmitPrompt(cache.get(), tokens, {.stream = stream});
    WriteAndPublish(cache.get(), admission.sequence, tokens,
                    admission.cached_tokens);
    return admission.sequence;
  }
  void Check() {
    EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
    EXPECT_TRUE(device.memory()->CheckInvariants().ok())
        << device.memory()->CheckInvariants();
    EXPECT_TRUE(device.driver()->SynchronizeStream(stream).ok());
    for (const auto& [id, tokens] : sequences) {
      EXPECT_GE(*cache->Length(id), tokens.size());
      EXPECT_EQ(TokenRows(*cache, id).FirstWrong(tokens), tokens.size());
    }
  }

  TestDevice device;
  StreamId stream;
  std::unique_ptr<KvCache> cache;
  std::vector<std::pair<SequenceId, Tokens>> sequences;  // on the device
  std::pair<SequenceId, Tokens> swapped;
};

// What a failure must leave as it was.
struct Kept {
  explicit Kept(World& world) {
    const KvCacheStatistics statistics = world.cache->GetStatistics();
    sequences = statistics.sequences;
    tokens = statistics.tokens;
    // Pages of their own that sequences have got stay.
    committed =
        statistics.committed.value() -
        world.device.memory()->page_size().value() * statistics.pages_unshared;
    prompts = statistics.prompts;
    forks = statistics.forks;
  }
  friend bool operator==(const Kept&, const Kept&) = default;
  uint32_t sequences;
  uint64_t tokens;
  uint64_t committed;
  uint64_t prompts;
  uint64_t forks;
};

absl::Status Prompt(World* world, const Tokens& known) {
  const Tokens tokens = Concat(known, TokensFrom(900, 60));
  const auto admission =
      world->cache->AdmitPrompt(tokens, {.stream = world->stream});
  if (!admission.ok()) return admission.status();
  // Rows that are not there yet are not looked at.
  world->sequences.push_back(
      {admission->sequence,
       Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(
                                                   admission->cached_tokens))});
  return absl::OkStatus();
}

// Under a fence that is not complete for long.
absl::Status SwapOut(World* world) {
  const auto fence = Fence::Record(world->device.driver(), DeviceId(0),
                                   std::span(&world->stream, 1));
  if (!fence.ok()) return fence.status();
  const absl::Status status =
      world->cache->SwapOut(world->sequences[0].first, *fence);
  if (status.ok()) {
    world->swapped = world->sequences[0];
    world->sequences.erase(world->sequences.begin());
  }
  return status;
}

absl::Status SwapIn(World* world) {
  const absl::Status status = world->cache->SwapIn(world->swapped.first);
  if (status.ok()) world->sequences.push_back(world->swapped);
  return status;
}

// Both sequences were written out with what they share, and the first is back.
absl::Status SwapInTheFirst(World* world) {
  for (const auto& [id, tokens] : world->sequences)
    QUIRE_RETURN_IF_ERROR(world->cache->SwapOut(id, Fence()));
  DeviceMemory* const memory = world->device.memory();
  const PageCount all(200);
  QUIRE_ASSIGN_OR_RETURN(AddressRange* const other,
                         memory->ReserveRange(all, kUnnamedOwner));
  QUIRE_RETURN_IF_ERROR(memory->Commit(other, PageCount(0), all));
  memory->ReleaseRange(other, Fence());
  world->swapped = world->sequences.back();
  world->sequences.pop_back();
  return world->cache->SwapIn(world->sequences[0].first);
}

struct Operation {
  const char* name;
  uint64_t pages;  // of the device, at five layers per row
  std::function<absl::Status(World*)> run;
  std::function<absl::Status(World*)> begin = nullptr;
};

class KvCacheShareFaultTest
    : public ::testing::TestWithParam<std::tuple<Operation, uint32_t>> {};

// All that can fail and leaves nothing behind: an event or a stream that the
// driver does not take back is lost.
constexpr DriverCall kCalls[] = {DriverCall::kReserveAddress,
                                 DriverCall::kCreatePage,
                                 DriverCall::kReleasePage,
                                 DriverCall::kMap,
                                 DriverCall::kUnmap,
                                 DriverCall::kCreateStream,
                                 DriverCall::kSynchronizeStream,
                                 DriverCall::kCreateEvent,
                                 DriverCall::kRecordEvent,
                                 DriverCall::kQueryEvent,
                                 DriverCall::kSynchronizeEvent,
                                 DriverCall::kCopyOnDevice,
                                 DriverCall::kCopyToHost,
                                 DriverCall::kCopyToDevice,
                                 DriverCall::kWaitEvent,
                                 DriverCall::kAllocatePinned};

TEST_P(KvCacheShareFaultTest, AFailureAtAnyCallChangesNothing) {
  const auto& [operation, layers_per_row] = GetParam();
  int fired_in_all = 0;
  for (const DriverCall call : kCalls) {
    for (uint64_t n = 1;; ++n) {
      SCOPED_TRACE(std::string(operation.name) + ", call " +
                   std::to_string(static_cast<int>(call)) + ", the " +
                   std::to_string(n) + "th");
      World world(operation.pages, layers_per_row);
      if (operation.begin) {
        ASSERT_TRUE(operation.begin(&world).ok());
        // Its pages are not those that it finds.
        ASSERT_TRUE(
            world.device.driver()->SynchronizeStream(world.stream).ok());
      }
      const Kept before(world);
      world.device.driver()->FailCall(call, n, absl::StatusCode::kInternal);
      const absl::Status status = operation.run(&world);
      const bool fired = world.device.driver()->faults_fired() > 0;
      world.device.driver()->ClearFaults();
      world.Check();
      if (HasFailure()) return;
      if (!fired) {
        EXPECT_TRUE(status.ok()) << status;
        break;
      }
      ++fired_in_all;
      if (status.ok()) continue;  // it found another way
      EXPECT_TRUE(Kept(world) == before) << status;
      const absl::Status again = operation.run(&world);
      EXPECT_TRUE(again.ok()) << again;
      world.Check();
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(fired_in_all, 0);
}

absl::Status Fork(World* world) {
  const auto child =
      world->cache->Fork(world->sequences[0].first, world->stream);
  if (child.ok()) world->sequences.push_back({*child, kAnswer});
  return child.status();
}

absl::Status StepOnSharedPages(World* world) {
  auto& [id, tokens] = world->sequences[1];
  const SequenceStep step{id, 90};
  const absl::Status status = world->cache->Step(std::span(&step, 1));
  if (!status.ok()) return status;
  tokens = Concat(tokens, TokensFrom(7000, 40));
  TokenRows(*world->cache, id).Write(tokens, 50);
  return status;
}

INSTANTIATE_TEST_SUITE_P(
    Operations, KvCacheShareFaultTest,
    ::testing::Combine(
        ::testing::Values(
            Operation{"Sharing", 200,
                      [](World* world) { return Prompt(world, kDocument); }},
            Operation{"Adopting", 200,
                      [](World* world) {
                        // All that is known: 88 of 90 tokens, and 2 unknown.
                        return Prompt(
                            world, Tokens(kOther.begin(), kOther.begin() + 88));
                      }},
            Operation{"SharingFromAParkedRegion", 200,
                      [](World* world) {
                        return Prompt(
                            world, Tokens(kOther.begin(), kOther.begin() + 60));
                      }},
            Operation{"Evicting", 44,
                      [](World* world) { return Prompt(world, kDocument); }},
            Operation{"Fork", 200, Fork},
            Operation{"Unsharing", 200, StepOnSharedPages},
            Operation{"SwappingOut", 200, SwapOut},
            Operation{"SwappingIn", 200, SwapIn, SwapOut},
            Operation{"SwappingInWhatAnotherHasAgain", 200, SwapIn,
                      SwapInTheFirst}),
        ::testing::Values(1, 5)),
    [](const auto& test) {
      return std::string(std::get<0>(test.param).name) +
             std::to_string(std::get<1>(test.param));
    });

}  // namespace
}  // namespace quire
