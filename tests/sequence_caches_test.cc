// The engine on each kind of KV cache: the same tokens out, whatever holds the
// keys and values, in batches, with too little memory, and with prefixes that
// are found again.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loader/checkpoint_test_util.h"
#include "quire/model/engine.h"
#include "quire/model/session.h"
#include "quire/paging/kv_cache.h"
#include "tests/engine_testing.h"
#include "tests/golden_cases.h"

namespace quire {
namespace {

class SequenceCachesTest : public testing::TestWithParam<Setting> {};

TEST_P(SequenceCachesTest, TokensAndLogitsAreThoseOfTransformers) {
  const GoldenCase golden = ReadGoldenCase(ModelFolder());
  const auto session = Open(OptionsOf(GetParam()));
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(
      Continue(*session, {golden.prompt}, golden.greedy.size()).continuations,
      Texts{golden.greedy});
  std::vector<float> logits;
  const absl::Status status =
      session->ComputeLogits(golden.prompt, [&](std::span<const float> rows) {
        logits.insert(logits.end(), rows.begin(), rows.end());
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(logits.size(), golden.logits.size());
  const auto largest = std::ranges::max(
      golden.logits, {}, [](float value) { return std::abs(value); });
  for (size_t i = 0; i < logits.size(); ++i)
    ASSERT_NEAR(logits[i], golden.logits[i], golden.rtol * std::abs(largest));
}

TEST_P(SequenceCachesTest, ABatchGivesWhatEachGivesAlone) {
  SessionOptions options = OptionsOf(GetParam());
  options.decoder.max_batch_tokens = 16;
  const auto session = Open(options);
  ASSERT_NE(session, nullptr);
  const Texts prompts = Prompts(session->config().vocab_size, 0);
  const Texts expected = Expected(prompts, 24);
  EXPECT_EQ(Continue(*session, prompts, 24).continuations, expected);
  EXPECT_EQ(Continue(*session, prompts, 24, 3).continuations, expected);
}

TEST_P(SequenceCachesTest, PrefixesThatAreFoundAgainChangeNoToken) {
  const auto session = Open(OptionsOf(GetParam()));
  ASSERT_NE(session, nullptr);
  const Texts prompts = Prompts(session->config().vocab_size, 40);
  const Texts expected = Expected(prompts, 20);
  // Three at a time, so that later ones find what earlier ones have published.
  const Outcome first = Continue(*session, prompts, 20, 3);
  EXPECT_EQ(first.continuations, expected);
  const Outcome second = Continue(*session, prompts, 20, 3);
  EXPECT_EQ(second.continuations, expected);
  // Slots share nothing.
  if (GetParam().kind != KvCacheKind::kStatic) {
    EXPECT_GE(first.statistics.cached_prompt_tokens, 5u * 32);
    EXPECT_GT(second.statistics.cached_prompt_tokens,
              first.statistics.cached_prompt_tokens);
  }
}

// A limit of fewer tokens than prompts have: whole prompts and chunks of them,
// and what is dropped on the way.
TEST_P(SequenceCachesTest, ALimitOfTokensIsTheSameForAll) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts unlimited = Expected(prompts, 40);
  SessionOptions alone = OptionsOf({KvCacheKind::kContiguous, 16, 0});
  alone.kv_limit = {.max_tokens = 20, .sinks = 3};
  Texts expected;
  for (const auto& prompt : prompts)
    expected.push_back(Continue(*Open(alone), {prompt}, 40).continuations[0]);
  EXPECT_NE(expected, unlimited);
  SessionOptions options = OptionsOf(GetParam());
  options.kv_limit = alone.kv_limit;
  options.decoder.max_batch_tokens = 16;
  const auto session = Open(options);
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(Continue(*session, prompts, 40).continuations, expected);
  EXPECT_EQ(Continue(*session, prompts, 40, 3).continuations, expected);
}

// Limits of single requests, beside others that have none, are those of
// sessions with that limit.
TEST_P(SequenceCachesTest, ALimitOfOneRequestIsItsOwn) {
  const KvTokenLimit limit = {.max_tokens = 20, .sinks = 3};
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts unlimited = Expected(prompts, 40);
  SessionOptions alone = OptionsOf({KvCacheKind::kContiguous, 16, 0});
  alone.kv_limit = limit;
  Texts expected;
  for (size_t i = 0; i < prompts.size(); ++i) {
    expected.push_back(unlimited[i]);
    if (i % 2 == 0)
      expected.back() =
          Continue(*Open(alone), {prompts[i]}, 40).continuations[0];
    expected.push_back(expected.back());
  }
  SessionOptions options = OptionsOf(GetParam());
  options.decoder.max_batch_tokens = 16;
  const auto session = Open(options);
  ASSERT_NE(session, nullptr);
  for (const uint32_t max_sequences : {64, 3}) {
    Engine engine(&session->decoder(), &session->cache(), max_sequences);
    for (size_t i = 0; i < prompts.size(); ++i) {
      Request request;
      request.prompt = prompts[i];
      request.max_new_tokens = 40;
      request.continuations = 2;
      if (i % 2 == 0) request.cache.limit = limit;
      ASSERT_TRUE(engine.Add(std::move(request)).ok());
    }
    const absl::Status status = engine.RunToCompletion();
    ASSERT_TRUE(status.ok()) << status;
    Texts texts;
    for (const Completion& completion : engine.completions())
      texts.push_back(completion.tokens);
    EXPECT_EQ(texts, expected);
  }
  Request bad = {.prompt = prompts[0], .max_new_tokens = 4};
  bad.cache.limit = {.max_tokens = 3, .sinks = 3};
  Engine engine(&session->decoder(), &session->cache(), 4);
  EXPECT_EQ(engine.Add(std::move(bad)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine.done());
}

TEST_P(SequenceCachesTest, TooLittleMemoryChangesNoToken) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts expected = Expected(prompts, 40);
  const auto session = Open(TightOptions(GetParam()));
  ASSERT_NE(session, nullptr);
  const Outcome run = Continue(*session, prompts, 40);
  EXPECT_EQ(run.continuations, expected);
  // Slots of the longest length never run out in mid-flight.
  if (GetParam().kind != KvCacheKind::kStatic) {
    EXPECT_GT(run.statistics.preemptions, 0u);
  }
}

// What the continuations of a prompt should be: requests of their own.
constexpr uint32_t kContinuations = 5;
constexpr uint64_t kSeed = 40;

Request Sampled(const std::vector<TokenId>& prompt, uint64_t seed,
                double temperature) {
  Request request;
  request.prompt = prompt;
  request.max_new_tokens = 20;
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  return request;
}

// Each alone, on contiguous rows of all layers.
Texts ExpectedContinuations(const Texts& prompts, double temperature) {
  const auto session = Open(OptionsOf({KvCacheKind::kContiguous, 16, 0}));
  Texts texts;
  for (const auto& prompt : prompts) {
    for (uint64_t i = 0; i < kContinuations; ++i) {
      Engine engine(&session->decoder(), &session->cache(), 1);
      EXPECT_TRUE(engine.Add(Sampled(prompt, kSeed + i, temperature)).ok());
      EXPECT_TRUE(engine.RunToCompletion().ok());
      texts.push_back(engine.completions()[0].tokens);
    }
  }
  return texts;
}

Outcome ContinueEach(Session& session, const Texts& prompts, double temperature,
                     const EngineOptions& options) {
  const auto engine =
      Engine::Create(&session.decoder(), &session.cache(), options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  Texts told(prompts.size() * kContinuations);
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request = Sampled(prompts[i], kSeed, temperature);
    request.continuations = kContinuations;
    request.on_token = [&told, i](TokenId token, uint32_t continuation) {
      told[i * kContinuations + continuation].push_back(token);
      return true;
    };
    EXPECT_EQ(*(*engine)->Add(request), i * kContinuations);
  }
  const absl::Status status = (*engine)->RunToCompletion();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(session.cache().CheckInvariants().ok())
      << session.cache().CheckInvariants();
  Outcome run = {.continuations = {}, .statistics = (*engine)->statistics()};
  for (const Completion& completion : (*engine)->completions())
    run.continuations.push_back(completion.tokens);
  EXPECT_EQ(run.continuations, told);
  return run;
}

TEST_P(SequenceCachesTest, ContinuationsAreThoseOfRequestsOfTheirOwn) {
  SessionOptions options = OptionsOf(GetParam());
  options.decoder.max_batch_tokens = 16;
  const auto session = Open(options);
  ASSERT_NE(session, nullptr);
  const Texts prompts = Prompts(session->config().vocab_size, 0);
  uint64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.size();
  const Texts expected = ExpectedContinuations(prompts, 1.0);
  const Outcome all =
      ContinueEach(*session, prompts, 1.0, {.max_sequences = 64});
  EXPECT_EQ(all.continuations, expected);
  EXPECT_EQ(all.statistics.forks, prompts.size() * (kContinuations - 1));
  EXPECT_EQ(all.statistics.prompt_tokens, tokens);
  // Not all have seats, and those that have none begin later.
  const Outcome some =
      ContinueEach(*session, prompts, 1.0, {.max_sequences = 3});
  EXPECT_EQ(some.continuations, expected);
  EXPECT_GT(some.statistics.forks, 0u);
  EXPECT_LT(some.statistics.forks, prompts.size() * (kContinuations - 1));
  const Outcome prepared =
      ContinueEach(*session, prompts, 1.0, {.prepare_next = true});
  EXPECT_EQ(prepared.continuations, expected);
  EXPECT_GT(prepared.statistics.forks, 0u);
  // They differ, or the seeds do nothing.
  EXPECT_NE(std::vector(expected.begin(), expected.begin() + 1),
            std::vector(expected.begin() + 1, expected.begin() + 2));
}

TEST_P(SequenceCachesTest, WithoutATemperatureAllContinuationsAreTheSame) {
  const auto session = Open(OptionsOf(GetParam()));
  ASSERT_NE(session, nullptr);
  const Texts prompts = Prompts(session->config().vocab_size, 0);
  const Texts alone = Expected(prompts, 20);
  Texts expected;
  for (const auto& text : alone)
    expected.insert(expected.end(), kContinuations, text);
  EXPECT_EQ(
      ContinueEach(*session, prompts, 0, {.max_sequences = 64}).continuations,
      expected);
}

TEST_P(SequenceCachesTest, ContinuationsInTooLittleMemoryAreTheSame) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const auto session = Open(TightOptions(GetParam()));
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(
      ContinueEach(*session, prompts, 1.0, {.max_sequences = 64}).continuations,
      ExpectedContinuations(prompts, 1.0));
}

// Behind a limit the rows of a fork are copies, and each drops its own.
TEST_P(SequenceCachesTest, ContinuationsBehindALimitAreTheSame) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  SessionOptions options = OptionsOf(GetParam());
  options.kv_limit = {.max_tokens = 20, .sinks = 3};
  const auto session = Open(options);
  ASSERT_NE(session, nullptr);
  Texts expected;
  for (const auto& prompt : prompts) {
    for (uint64_t i = 0; i < kContinuations; ++i) {
      Engine engine(&session->decoder(), &session->cache(), 1);
      ASSERT_TRUE(engine.Add(Sampled(prompt, kSeed + i, 1.0)).ok());
      ASSERT_TRUE(engine.RunToCompletion().ok());
      expected.push_back(engine.completions()[0].tokens);
    }
  }
  const Outcome run =
      ContinueEach(*session, prompts, 1.0, {.max_sequences = 64});
  EXPECT_EQ(run.continuations, expected);
  EXPECT_GT(run.statistics.forks, 0u);
}

INSTANTIATE_TEST_SUITE_P(Caches, SequenceCachesTest,
                         testing::ValuesIn(AllSettings()), SettingName);

// Who has to give way waits on the host, and nothing is computed twice; or the
// host has too little for some.
TEST(SequenceCachesSwapTest, SwapChangesNoTokenAndSparesTheComputation) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts expected = Expected(prompts, 40);
  uint64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.size();
  for (const uint32_t layers_per_row : {0, 1}) {
    for (const Bytes swap_space : {MiB(4), KiB(64)}) {
      SCOPED_TRACE(FormatBytes(swap_space));
      SessionOptions options =
          TightOptions({KvCacheKind::kContiguous, 16, layers_per_row});
      options.swap_space = swap_space;
      const auto session = Open(options);
      ASSERT_NE(session, nullptr);
      const Outcome run = Continue(*session, prompts, 40);
      EXPECT_EQ(run.continuations, expected);
      EXPECT_GT(run.statistics.swaps, 0u);
      if (swap_space == MiB(4)) {
        EXPECT_EQ(run.statistics.swaps, run.statistics.preemptions);
        EXPECT_EQ(run.statistics.prompt_tokens, tokens);
      }
    }
  }
}

// Layers on two devices: a sequence is out on both, or on none.
TEST(SequenceCachesSwapTest, SwapOverTwoDevicesChangesNoToken) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts expected = Expected(prompts, 40);
  const TemporaryFolder folder;
  SessionOptions options = OptionsOf({KvCacheKind::kContiguous, 16, 0});
  options.placement.device_map =
      folder.Write("map.json", R"({"model.embed_tokens": 0, "model.layers.0": 0,
                      "model.layers.1": 1, "model.norm": 1, "lm_head": 1})");
  for (const Bytes swap_space : {MiB(4), KiB(64)}) {
    SCOPED_TRACE(FormatBytes(swap_space));
    options.swap_space = swap_space;
    const auto session = Open(options);
    ASSERT_NE(session, nullptr);
    const Bytes token = session->cache().layout().TokenBytes();
    for (int device = 0; device < 2; ++device) {
      DeviceMemory* const memory = session->runtime().memory(DeviceId(device));
      ASSERT_TRUE(memory
                      ->SetLimit(Bytes(memory->GetStatistics().in_use.value() +
                                       128 * token.value()))
                      .ok());
    }
    const Outcome run = Continue(*session, prompts, 40);
    EXPECT_EQ(run.continuations, expected);
    EXPECT_GT(run.statistics.swaps, 0u);
    if (swap_space == MiB(4)) {
      EXPECT_EQ(run.statistics.swaps, run.statistics.preemptions);
    }
  }
}

TEST(SequenceCachesSwapTest, ContinuationsThatAreSwappedOutAreTheSame) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts expected = ExpectedContinuations(prompts, 1.0);
  for (const uint32_t layers_per_row : {0, 1}) {
    SessionOptions options =
        TightOptions({KvCacheKind::kContiguous, 16, layers_per_row});
    options.swap_space = MiB(4);
    const auto session = Open(options);
    ASSERT_NE(session, nullptr);
    const Outcome run =
        ContinueEach(*session, prompts, 1.0, {.max_sequences = 64});
    EXPECT_EQ(run.continuations, expected);
    EXPECT_GT(run.statistics.swaps, 0u);
  }
}

// Layers on two devices: a fork is one on both.
TEST(SequenceCachesSwapTest, ContinuationsOverTwoDevicesAreTheSame) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const TemporaryFolder folder;
  SessionOptions options = OptionsOf({KvCacheKind::kContiguous, 16, 0});
  options.placement.device_map =
      folder.Write("map.json", R"({"model.embed_tokens": 0, "model.layers.0": 0,
                      "model.layers.1": 1, "model.norm": 1, "lm_head": 1})");
  for (const KvCacheKind kind :
       {KvCacheKind::kContiguous, KvCacheKind::kPaged, KvCacheKind::kStatic}) {
    options.kv_cache = kind;
    const auto session = Open(options);
    ASSERT_NE(session, nullptr);
    const Outcome run =
        ContinueEach(*session, prompts, 1.0, {.max_sequences = 64});
    EXPECT_EQ(run.continuations, ExpectedContinuations(prompts, 1.0));
    EXPECT_EQ(run.statistics.forks, prompts.size() * (kContinuations - 1));
  }
}

// Whether pages are mapped before steps need them, who gives way, and how many
// may run: none of it changes a token.
TEST(SequenceCachesOptionsTest, PagesMappedAheadChangeNoToken) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts expected = Expected(prompts, 40);
  for (const uint32_t layers_per_row : {0, 1}) {
    for (const bool tight : {false, true}) {
      const Setting setting{KvCacheKind::kContiguous, 16, layers_per_row};
      SessionOptions options =
          tight ? TightOptions(setting) : OptionsOf(setting);
      options.page_ahead = 8;
      options.swap_space = MiB(1);
      const auto session = Open(options);
      ASSERT_NE(session, nullptr);
      const Outcome run = Continue(*session, prompts, 40, options.ForEngine());
      EXPECT_EQ(run.continuations, expected);
      EXPECT_GT(run.statistics.driver_calls_meanwhile, 0u);
    }
  }
}

// What ended stays mapped for those that come, as far as that is wanted.
TEST(SequenceCachesOptionsTest, PagesBehindWhatEndedStayAsFarAsIsWanted) {
  for (const uint32_t page_ahead : {0, 8}) {
    for (const std::optional<double> max_parked :
         std::vector<std::optional<double>>{std::nullopt, 0, 0.002, 1}) {
      SessionOptions options = OptionsOf({KvCacheKind::kContiguous, 16, 1});
      options.page_ahead = page_ahead;
      options.max_parked = max_parked;
      const auto session = Open(options);
      ASSERT_NE(session, nullptr);
      const double free = static_cast<double>(
          session->runtime().memory()->GetStatistics().growable.value());
      auto& cache = dynamic_cast<KvCache&>(session->cache());
      const SequenceId sequence = *cache.Admit(100);
      const Bytes held = cache.Use().held;
      ASSERT_TRUE(cache.Release(sequence, Fence()).ok());
      const Bytes parked = cache.GetStatistics().parked;
      const double part = max_parked.value_or(page_ahead > 0 ? 0 : 1);
      if (part == 1) {
        EXPECT_EQ(parked, held);
      } else {
        EXPECT_LE(static_cast<double>(parked.value()), part * free);
        EXPECT_EQ(parked.zero(), part == 0);
      }
    }
  }
}

TEST(SequenceCachesOptionsTest, WhoGivesWayChangesNoToken) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts expected = Expected(prompts, 40);
  for (const char* policy : {"youngest", "lru", "page-aware"}) {
    SCOPED_TRACE(policy);
    SessionOptions options = TightOptions({KvCacheKind::kContiguous, 16, 0});
    options.victim_policy = policy;
    const auto session = Open(options);
    ASSERT_NE(session, nullptr);
    const Outcome run = Continue(*session, prompts, 40, options.ForEngine());
    EXPECT_EQ(run.continuations, expected);
    EXPECT_GT(run.statistics.preemptions, 0u);
  }
}

TEST(SequenceCachesOptionsTest, ThresholdsOfTheBatchChangeNoToken) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts expected = Expected(prompts, 40);
  SessionOptions options = TightOptions({KvCacheKind::kContiguous, 16, 0});
  options.batch_limit = {.halve_above = 1, .grow_below = 1};
  EXPECT_EQ(Continue(*Open(options), prompts, 40, options.ForEngine())
                .statistics.batch_halvings,
            0u);
  options.batch_limit = {.halve_above = 0.2, .grow_below = 0.1};
  const Outcome run =
      Continue(*Open(options), prompts, 40, options.ForEngine());
  EXPECT_EQ(run.continuations, expected);
  EXPECT_GT(run.statistics.batch_halvings, 0u);
}

TEST(SequenceCachesOptionsTest, TheLayoutIsChosenAndExplained) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts expected = Expected(prompts, 24);
  SessionOptions options = OptionsOf({KvCacheKind::kContiguous, 16, 0});
  {
    const auto session = Open(options);
    EXPECT_EQ(session->kv_layout(),
              "2 layers per row: all, which wastes least");
  }
  options.layers_per_row = kAutoLayersPerRow;
  // Whatever is wasted is within the first limit, and nothing within the other.
  for (const auto& [waste_limit, layers] :
       std::vector<std::pair<double, uint32_t>>{{1000, 1}, {0, 2}}) {
    options.kv_workload = {.mean_tokens = 40, .waste_limit = waste_limit};
    const auto session = Open(options);
    ASSERT_NE(session, nullptr);
    EXPECT_EQ(session->cache().layout().options().layers_per_row, layers);
    EXPECT_EQ(
        session->kv_layout().find(std::to_string(layers) + " layers per row: "),
        0u)
        << session->kv_layout();
    EXPECT_EQ(Continue(*session, prompts, 24).continuations, expected);
  }
}

// Who shares the device with others asks them, and goes on when they have made
// room.
TEST(SequenceCachesRoomTest, ARequestThatFindsNoMemoryHasOthersMakeRoom) {
  const Texts prompts = Prompts(ReadGoldenCase(ModelFolder()).vocab, 0);
  const Texts expected = Expected({prompts[7]}, 20);
  const auto session = Open(OptionsOf({KvCacheKind::kContiguous, 16, 0}));
  ASSERT_NE(session, nullptr);
  DeviceMemory* const memory = session->runtime().memory();
  const Bytes limit = memory->GetStatistics().limit;
  ASSERT_TRUE(memory->SetLimit(memory->GetStatistics().in_use).ok());
  Request request;
  request.prompt = prompts[7];
  request.max_new_tokens = 20;
  Engine engine(&session->decoder(), &session->cache(), 4);
  ASSERT_TRUE(engine.Add(request).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine.Step()));
  int asked = 0;
  engine.set_make_room([&](Bytes missing) {
    ++asked;
    EXPECT_GT(missing, Bytes(0));
    return absl::ResourceExhaustedError("they keep it");
  });
  EXPECT_TRUE(absl::IsResourceExhausted(engine.Step()));
  EXPECT_EQ(asked, 1);
  engine.set_make_room([&](Bytes) { return memory->SetLimit(limit); });
  const absl::Status status = engine.RunToCompletion();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(engine.completions()[0].tokens, expected[0]);
  // It has the device to itself.
  EXPECT_EQ(session->MakeRoom(MiB(1)).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(SequenceCachesOptionsTest, BadOnesAreErrors) {
  const auto expect_refused = [](const SessionOptions& options,
                                 const std::string& mention) {
    const absl::Status status = Session::Open(ModelFolder(), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find(mention), absl::string_view::npos)
        << status;
  };
  expect_refused(OptionsOf({KvCacheKind::kPaged, 12, 0}), "12");
  for (const KvCacheKind kind : {KvCacheKind::kPaged, KvCacheKind::kStatic}) {
    SessionOptions options = OptionsOf({kind, 16, 0});
    options.swap_space = MiB(1);
    expect_refused(options, "--swap-space 1.00 MiB");
    options = OptionsOf({kind, 16, 0});
    options.page_ahead = 1;
    expect_refused(options, "--page-ahead 1");
    options = OptionsOf({kind, 16, 0});
    options.max_parked = 0.5;
    expect_refused(options, "--max-parked 0.5");
  }
  const SessionOptions good = OptionsOf({KvCacheKind::kContiguous, 16, 0});
  SessionOptions options = good;
  options.layers_per_row = 3;
  expect_refused(options, "--layers-per-row 3");
  options = good;
  options.kv_limit = {.max_tokens = 0, .sinks = 4};
  expect_refused(options, "--attention-sinks 4");
  options.kv_limit = {.max_tokens = 4, .sinks = 4};
  expect_refused(options, "--max-cache-len 4");
  options = good;
  options.max_parked = 1.5;
  expect_refused(options, "--max-parked 1.5");
  options = good;
  options.batch_limit = {.halve_above = 0.5, .grow_below = 0.6};
  expect_refused(options, "--grow-below 0.6");
  options.batch_limit = {.halve_above = std::nan(""), .grow_below = 0.6};
  expect_refused(options, "--halve-above");

  const auto session = Open(good);
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(Engine::Create(&session->decoder(), &session->cache(),
                           {.victim_policy = "oldest"})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire
