// The whole chain against transformers: checkpoint to logits and tokens.
//
// The cases under tests/golden/ are the project's own. A second, larger set may
// lie beside the project; where it does not, its tests skip and say so.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "quire/model/engine.h"
#include "quire/model/session.h"
#include "tests/golden_cases.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

const fs::path kOwnCases = fs::path(QUIRE_SOURCE_DIR) / "tests/golden";
const fs::path kSharedCases =
    fs::path(QUIRE_SOURCE_DIR).parent_path() / "shared/golden";

SessionOptions ExactOptions() {
  SessionOptions options;
  options.device.device_memory = GiB(1);
  options.kv_dtype = KvDType::kF32;
  options.threads = 2;
  return options;
}

std::unique_ptr<Session> Open(const fs::path& folder,
                              const SessionOptions& options) {
  auto session = Session::Open(folder, options);
  EXPECT_TRUE(session.ok()) << session.status();
  return session.ok() ? *std::move(session) : nullptr;
}

// The continuations of `prompts`, decoded as one batch.
std::vector<std::vector<TokenId>> Continue(
    Session& session, const std::vector<std::vector<TokenId>>& prompts,
    uint64_t new_tokens, uint32_t max_sequences = 64, AdapterId adapter = {}) {
  Engine engine(&session.decoder(), &session.cache(), max_sequences,
                &session.adapters());
  for (const auto& prompt : prompts) {
    Request request;
    request.prompt = prompt;
    request.max_new_tokens = new_tokens;
    request.adapter = adapter;
    EXPECT_TRUE(engine.Add(std::move(request)).ok());
  }
  const absl::Status status = engine.RunToCompletion();
  EXPECT_TRUE(status.ok()) << status;
  std::vector<std::vector<TokenId>> continuations;
  for (const Completion& completion : engine.completions())
    continuations.push_back(completion.tokens);
  return continuations;
}

void CheckCase(const fs::path& folder, uint32_t layers_per_row) {
  const GoldenCase golden = ReadGoldenCase(folder);
  SessionOptions options = ExactOptions();
  options.layers_per_row = layers_per_row;
  if (!golden.adapter.empty())
    options.adapters.push_back({"golden", golden.adapter});
  options.weights.quantization = golden.quantization;
  const std::unique_ptr<Session> session = Open(golden.model, options);
  ASSERT_NE(session, nullptr);
  const AdapterId adapter =
      session->adapters().Find("golden").value_or(AdapterId());
  const std::vector<float> logits = AllLogits(*session, golden.prompt, adapter);
  ASSERT_EQ(logits.size(), golden.logits.size());
  EXPECT_LE(RelativeError(logits, golden.logits), golden.rtol);
  EXPECT_EQ(
      Continue(*session, {golden.prompt}, golden.greedy.size(), 1, adapter)[0],
      golden.greedy);
}

std::string CaseName(const testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename();
  std::replace(name.begin(), name.end(), '-', '_');
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

class OwnGoldenTest : public testing::TestWithParam<fs::path> {};

TEST_P(OwnGoldenTest, LogitsAndTokensAreThoseOfTransformers) {
  CheckCase(GetParam(), 1);
}

INSTANTIATE_TEST_SUITE_P(Cases, OwnGoldenTest,
                         testing::ValuesIn(FindGoldenCases(kOwnCases, {""})),
                         CaseName);

TEST(OwnGoldenCasesTest, AreThere) {
  EXPECT_GE(FindGoldenCases(kOwnCases, {""}).size(), 12u);
}

class SharedGoldenTest : public testing::TestWithParam<fs::path> {};

TEST_P(SharedGoldenTest, LogitsAndTokensAreThoseOfTransformers) {
  CheckCase(GetParam(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SharedGoldenTest,
    testing::ValuesIn(FindGoldenCases(
        kSharedCases, {"plain-", "gptq-w", "gptq-dynamic", "onecomp-", "awq-",
                       "fp8-", "arch-smollm2", "arch-llama3-rope",
                       "arch-llama-linear-rope", "arch-qwen", "lora-"})),
    CaseName);
// Where the set is not there.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SharedGoldenTest);

TEST(SharedGoldenCasesTest, AreThere) {
  if (!fs::exists(kSharedCases))
    GTEST_SKIP() << "no second set of golden cases at " << kSharedCases
                 << "; the project's own were tested";
  EXPECT_FALSE(FindGoldenCases(kSharedCases, {"gptq-w"}).empty());
}

// ---- Keys and values of 8 bits ---------------------------------------------

// What they cost at most, in the same measure: float32 keeps within 1e-5. Each
// key and value is off by up to 1/16 with E4M3, and by 1/254 of the largest in
// its head with int8; random weights show all of it.
struct EightBits {
  KvDType dtype;
  double tolerance;
  // Of plain-f32 in transformers, whose cache was given keys and values that
  // torch had rounded in this way.
  double known;
};

class EightBitKvTest : public testing::TestWithParam<EightBits> {};

TEST_P(EightBitKvTest, LogitsStayWithinTheTolerance) {
  for (const fs::path& folder :
       FindGoldenCases(kOwnCases, {"plain-", "rope-"})) {
    SCOPED_TRACE(folder);
    const GoldenCase golden = ReadGoldenCase(folder);
    SessionOptions options = ExactOptions();
    options.kv_dtype = GetParam().dtype;
    for (const KvCacheKind kind :
         {KvCacheKind::kContiguous, KvCacheKind::kPaged}) {
      options.kv_cache = kind;
      const std::unique_ptr<Session> session = Open(golden.model, options);
      ASSERT_NE(session, nullptr);
      const std::vector<float> logits = AllLogits(*session, golden.prompt);
      const double error = RelativeError(logits, golden.logits);
      EXPECT_LE(error, GetParam().tolerance);
      EXPECT_GT(error, golden.rtol) << "it has no 8 bits";
      if (folder.filename() == "plain-f32") {
        EXPECT_NEAR(error, GetParam().known, 1e-4);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    KvDTypes, EightBitKvTest,
    testing::Values(EightBits{KvDType::kF8E4M3, 0.1, 0.072495},
                    EightBits{KvDType::kInt8, 0.04, 0.024682}),
    [](const auto& test) {
      return std::string(KvDTypeName(test.param.dtype));
    });

// ---- Batches ----------------------------------------------------------------

std::vector<std::vector<TokenId>> UnequalPrompts(size_t vocab) {
  std::vector<std::vector<TokenId>> prompts(8);
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (size_t t = 0; t < 3 + 5 * i; ++t)
      prompts[i].push_back(
          static_cast<TokenId>((i * 37 + t * 101 + 3) % vocab));
  }
  return prompts;
}

class BatchTest : public testing::TestWithParam<KvDType> {
 protected:
  void SetUp() override {
    const std::vector<fs::path> cases = FindGoldenCases(kOwnCases, {"gptq-"});
    ASSERT_FALSE(cases.empty());
    folder_ = cases.front();
    options_ = ExactOptions();
    options_.kv_dtype = GetParam();
  }

  // Each sequence alone, in a session of its own.
  std::vector<std::vector<TokenId>> OneAtATime(
      const std::vector<std::vector<TokenId>>& prompts, uint64_t new_tokens) {
    std::vector<std::vector<TokenId>> continuations;
    for (const auto& prompt : prompts) {
      const auto session = Open(folder_, options_);
      continuations.push_back(Continue(*session, {prompt}, new_tokens)[0]);
    }
    return continuations;
  }

  fs::path folder_;
  SessionOptions options_;
};

TEST_P(BatchTest, EightSequencesGiveWhatEachGivesAlone) {
  const auto session = Open(folder_, options_);
  ASSERT_NE(session, nullptr);
  const auto prompts = UnequalPrompts(session->config().vocab_size);
  EXPECT_EQ(Continue(*session, prompts, 24), OneAtATime(prompts, 24));
}

TEST_P(BatchTest, SmallChunksAndFewSlotsChangeNothing) {
  const auto prompts =
      UnequalPrompts(Open(folder_, options_)->config().vocab_size);
  const auto expected = OneAtATime(prompts, 24);
  options_.decoder.max_batch_tokens = 7;
  options_.decoder.max_logit_rows = 2;
  const auto session = Open(folder_, options_);
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(Continue(*session, prompts, 24, 3), expected);
}

TEST_P(BatchTest, PreemptionChangesNothing) {
  const auto prompts =
      UnequalPrompts(Open(folder_, options_)->config().vocab_size);
  const auto expected = OneAtATime(prompts, 40);
  // So few pages that not all sequences can grow: small pages, and a device
  // that holds the weights and little more.
  options_.device.page_size = KiB(64);
  options_.max_model_len = 128;
  Bytes needed;
  {
    const auto session = Open(folder_, options_);
    ASSERT_NE(session, nullptr);
    needed = session->runtime().memory()->GetStatistics().in_use;
  }
  options_.device.memory_utilization = 1;
  const uint64_t spare = 8 * KiB(64).value();
  options_.device.device_memory = Bytes(needed.value() + spare);
  const auto session = Open(folder_, options_);
  ASSERT_NE(session, nullptr);
  Engine engine(&session->decoder(), &session->cache(), 64);
  for (const auto& prompt : prompts) {
    Request request;
    request.prompt = prompt;
    request.max_new_tokens = 40;
    ASSERT_TRUE(engine.Add(std::move(request)).ok());
  }
  const absl::Status status = engine.RunToCompletion();
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(engine.completions()[i].tokens, expected[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(KvDTypes, BatchTest,
                         testing::Values(KvDType::kF32, KvDType::kF16,
                                         KvDType::kBF16, KvDType::kF8E4M3,
                                         KvDType::kInt8),
                         [](const auto& test) {
                           return std::string(KvDTypeName(test.param));
                         });

}  // namespace
}  // namespace quire
