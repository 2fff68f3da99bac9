// An engine that prepares the next step while the device computes: the same
// tokens, whatever is done meanwhile or refused, and no step that decodes waits
// for a call that changes pages or addresses.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quire/alloc/host_driver.h"
#include "quire/alloc/runtime.h"
#include "quire/model/engine.h"
#include "quire/model/session.h"
#include "tests/engine_testing.h"
#include "tests/golden_cases.h"
#include "tests/phase_driver.h"

namespace quire {
namespace {

// A session on a device that is watched.
struct World {
  explicit World(SessionOptions options) {
    HostDriverOptions host;
    host.granularity = options.device.page_size;
    host.memory_per_device = options.device.device_memory;
    auto device = HostDriver::Create(host);
    EXPECT_TRUE(device.ok()) << device.status();
    auto watched = std::make_unique<PhaseDriver>(*std::move(device));
    driver = watched.get();
    auto created = Runtime::Create(std::move(watched),
                                   {.page_size = options.device.page_size,
                                    .limit = options.device.device_memory});
    EXPECT_TRUE(created.ok()) << created.status();
    runtime = *std::move(created);
    options.runtime = runtime.get();
    session = Open(options);
    driver->Reset();
  }

  std::unique_ptr<Runtime> runtime;
  PhaseDriver* driver = nullptr;
  std::unique_ptr<Session> session;
};

EngineOptions Preparing(uint32_t max_sequences = 64) {
  return {.max_sequences = max_sequences, .prepare_next = true};
}

SessionOptions Ahead(SessionOptions options) {
  if (options.kv_cache == KvCacheKind::kContiguous) options.page_ahead = 8;
  return options;
}

Texts SomePrompts(size_t common = 0) {
  return Prompts(ReadGoldenCase(ModelFolder()).vocab, common);
}

class PrepareNextTest : public testing::TestWithParam<Setting> {};

TEST_P(PrepareNextTest, ChangesNoToken) {
  for (const size_t common : {0, 40}) {
    const Texts prompts = SomePrompts(common);
    const Texts expected = Expected(prompts, 24);
    for (const uint32_t at_once : {64, 3}) {
      for (const bool hold : {false, true}) {
        SCOPED_TRACE(testing::Message() << common << " tokens in common, "
                                        << at_once << " at once, " << hold);
        SessionOptions options = Ahead(OptionsOf(GetParam()));
        options.decoder.max_batch_tokens = 32;
        World world(options);
        world.driver->HoldKernels(hold);
        const Outcome run =
            Continue(*world.session, prompts, 24, Preparing(at_once));
        EXPECT_EQ(run.continuations, expected);
        EXPECT_EQ(run.statistics.refused_preparations, 0u);
      }
    }
  }
}

TEST_P(PrepareNextTest, TooLittleMemoryChangesNoToken) {
  const Texts prompts = SomePrompts();
  const Texts expected = Expected(prompts, 40);
  World world(Ahead(TightOptions(GetParam())));
  EXPECT_EQ(Continue(*world.session, prompts, 40, Preparing()).continuations,
            expected);
}

TEST_P(PrepareNextTest, ALimitOfTokensChangesNoOther) {
  const Texts prompts = SomePrompts();
  SessionOptions options = OptionsOf(GetParam());
  options.kv_limit = {.max_tokens = 20, .sinks = 3};
  options.decoder.max_batch_tokens = 16;
  const Texts expected = Continue(*Open(options), prompts, 40).continuations;
  World world(Ahead(options));
  EXPECT_EQ(Continue(*world.session, prompts, 40, Preparing()).continuations,
            expected);
}

INSTANTIATE_TEST_SUITE_P(Caches, PrepareNextTest,
                         testing::ValuesIn(AllSettings()), SettingName);

TEST(PrepareNextCallsTest, NoStepThatDecodesWaitsForTheDriver) {
  const Texts prompts = SomePrompts();
  for (const uint32_t layers_per_row : {0, 1}) {
    SessionOptions options =
        OptionsOf({KvCacheKind::kContiguous, 16, layers_per_row});
    options.page_ahead = 0;
    {
      World world(options);
      const EngineStatistics without =
          Continue(*world.session, prompts, 60, EngineOptions()).statistics;
      EXPECT_GT(without.decode_steps_waiting, 0u);
      EXPECT_EQ(without.driver_calls_meanwhile, 0u);
      EXPECT_EQ(without.driver_calls, world.driver->otherwise().mapping);
    }
    World world(Ahead(options));
    const EngineStatistics with =
        Continue(*world.session, prompts, 60, Preparing()).statistics;
    EXPECT_EQ(with.decode_steps_waiting, 0u);
    EXPECT_GT(with.decode_steps, 50u);
    EXPECT_GT(with.driver_calls_meanwhile, 0u);
    // The pages of what ends last are given back beside no other step.
    const uint64_t meanwhile = world.driver->meanwhile().mapping;
    const uint64_t otherwise = world.driver->otherwise().mapping;
    EXPECT_LT(with.driver_calls, otherwise);
    EXPECT_GT(with.driver_calls_meanwhile, meanwhile);
    EXPECT_EQ(with.driver_calls + with.driver_calls_meanwhile,
              meanwhile + otherwise);
  }
}

// Requests that take turns: what ends is released, and who comes is admitted,
// beside steps that decode. In batches that small they do not all end at once.
TEST(PrepareNextCallsTest, NoStepWaitsForThoseThatComeAndGo) {
  const Texts prompts = SomePrompts();
  SessionOptions options = Ahead(OptionsOf({KvCacheKind::kContiguous, 16, 1}));
  options.decoder.max_batch_tokens = 16;
  World world(options);
  const EngineStatistics run =
      Continue(*world.session, prompts, 60, Preparing(3)).statistics;
  EXPECT_EQ(run.decode_steps_waiting, 0u);
  EXPECT_GT(run.decode_steps, 100u);
}

// Who waits on the host comes back while the others are computed: each ends
// after a step of its own. Without pages ahead, since with them how much is
// given back in a step depends on the time that steps take.
TEST(PrepareNextSwapTest, SequencesComeBackWhileTheDeviceComputes) {
  const Texts prompts = SomePrompts();
  Texts expected = Expected(prompts, 50);
  std::vector<uint64_t> new_tokens;
  for (size_t i = 0; i < prompts.size(); ++i) {
    new_tokens.push_back(36 + 2 * i);
    expected[i].resize(new_tokens.back());
  }
  for (const bool prepare : {false, true}) {
    SessionOptions options = TightOptions({KvCacheKind::kContiguous, 16, 0});
    options.swap_space = MiB(4);
    options.page_ahead = 0;
    World world(options);
    const Outcome run = Continue(*world.session, prompts, new_tokens,
                                 {.prepare_next = prepare});
    EXPECT_EQ(run.continuations, expected);
    EXPECT_GT(run.statistics.swaps, 0u);
    const uint64_t meanwhile = world.driver->meanwhile().to_device;
    const uint64_t otherwise = world.driver->otherwise().to_device;
    if (prepare) {
      // Not all of them: where no other sequence runs, there is nothing to do
      // it beside.
      EXPECT_GT(meanwhile, 0u);
    } else {
      EXPECT_EQ(meanwhile, 0u);
      EXPECT_GT(otherwise, 0u);
    }
  }
}

TEST(PrepareNextSwapTest, PagesAheadOfSwappedSequencesChangeNoToken) {
  const Texts prompts = SomePrompts();
  const Texts expected = Expected(prompts, 40);
  SessionOptions options =
      Ahead(TightOptions({KvCacheKind::kContiguous, 16, 0}));
  options.swap_space = MiB(4);
  World world(options);
  const Outcome run = Continue(*world.session, prompts, 40, Preparing());
  EXPECT_EQ(run.continuations, expected);
  EXPECT_GT(run.statistics.swaps, 0u);
}

// A step may fail, and then none of its tokens is lost.
Outcome ContinueInSpiteOfErrors(Session& session, const Texts& prompts,
                                uint64_t new_tokens,
                                const EngineOptions& options) {
  const auto engine =
      Engine::Create(&session.decoder(), &session.cache(), options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  for (const auto& prompt : prompts) {
    Request request;
    request.prompt = prompt;
    request.max_new_tokens = new_tokens;
    EXPECT_TRUE((*engine)->Add(std::move(request)).ok());
  }
  int errors = 0;
  while (!(*engine)->done()) {
    if ((*engine)->Step().ok()) continue;
    EXPECT_LT(++errors, 3);
    if (errors == 3) break;
  }
  Outcome run;
  for (const Completion& completion : (*engine)->completions())
    run.continuations.push_back(completion.tokens);
  run.statistics = (*engine)->statistics();
  return run;
}

// Each call that is made meanwhile is refused once.
TEST(PrepareNextFaultTest, WhatIsRefusedMeanwhileIsDoneLater) {
  const Texts prompts = SomePrompts(20);
  const Texts expected = Expected(prompts, 12);
  const SessionOptions plain = OptionsOf({KvCacheKind::kContiguous, 16, 0});
  SessionOptions tight = TightOptions({KvCacheKind::kContiguous, 16, 0});
  tight.swap_space = MiB(4);
  for (const SessionOptions& options : {plain, tight}) {
    uint64_t noticed = 0;
    for (uint64_t n = 1;; ++n) {
      SCOPED_TRACE(n);
      World world(Ahead(options));
      world.driver->RefuseMeanwhile(n);
      const Outcome run =
          ContinueInSpiteOfErrors(*world.session, prompts, 12, Preparing(3));
      EXPECT_EQ(run.continuations, expected);
      EXPECT_TRUE(world.session->cache().CheckInvariants().ok())
          << world.session->cache().CheckInvariants();
      noticed += run.statistics.refused_preparations;
      if (!world.driver->has_refused()) break;
    }
    EXPECT_GT(noticed, 0u);
  }
}

}  // namespace
}  // namespace quire
