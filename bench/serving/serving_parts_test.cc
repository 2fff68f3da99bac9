// What simulations of serving read and compute, against files written by hand,
// published configurations and moments of the distributions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/option_checks.h"
#include "bench/serving/cost_model.h"
#include "bench/serving/model_table.h"
#include "bench/serving/prompt_tokens.h"
#include "bench/serving/traces.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TraceTest : public ::testing::Test {
 protected:
  TraceTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                absl::StrCat("serving_trace_", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~TraceTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  // The message of the error, which must name `at`.
  static void ExpectError(const std::string& path, const std::string& at) {
    const auto requests = ReadTrace(path, {});
    ASSERT_FALSE(requests.ok()) << path;
    EXPECT_THAT(std::string(requests.status().message()), HasSubstr(at));
  }

  const std::filesystem::path folder_;
};

TEST_F(TraceTest, ReadsAzure) {
  const std::string path = Write("conv.csv",
                                 "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                                 "2023-11-16 23:59:59.5000000,374,44\r\n"
                                 "2023-11-17 00:00:01.0000000,396,109\r\n");
  const auto requests = ReadTrace(path, {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[0].arrival, 0);
  EXPECT_NEAR((*requests)[1].arrival, 1.5, 1e-6);
  EXPECT_EQ((*requests)[1].prompt, 396u);
  EXPECT_EQ((*requests)[1].output, 109u);
  EXPECT_EQ(ReadTrace(path, {.max_requests = 1})->size(), 1u);
}

TEST_F(TraceTest, FindsColumnsByName) {
  const auto vidur =
      ReadTrace(Write("splitwise.csv",
                      "arrived_at,num_prefill_tokens,num_decode_tokens\n"
                      "2.5,374,44\n4.25,396,109\n"),
                {});
  ASSERT_TRUE(vidur.ok()) << vidur.status();
  ASSERT_EQ(vidur->size(), 2u);
  EXPECT_EQ((*vidur)[1].arrival, 1.75);
  EXPECT_EQ((*vidur)[1].prompt, 396u);
  EXPECT_EQ((*vidur)[1].output, 109u);
  const auto azure = ReadTrace(
      Write("bom.csv",
            "\xEF\xBB\xBFTIMESTAMP,Model,GeneratedTokens,ContextTokens\n"
            "2023-11-16 18:15:46.68,m,44,374\n"),
      {});
  ASSERT_TRUE(azure.ok()) << azure.status();
  EXPECT_EQ((*azure)[0].prompt, 374u);
  EXPECT_EQ((*azure)[0].output, 44u);
}

TEST_F(TraceTest, ReadsMooncake) {
  const auto requests = ReadTrace(
      Write(
          "t.jsonl",
          R"({"timestamp": 2500, "input_length": 513, "output_length": 3, "hash_ids": [0, 7]})"
          "\n"
          R"({"timestamp": 1000, "input_length": 512, "output_length": 9, "hash_ids": [0]})"
          "\n"),
      {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);  // by arrival
  EXPECT_EQ((*requests)[0].prompt, 512u);
  EXPECT_EQ((*requests)[1].arrival, 1.5);
  EXPECT_THAT((*requests)[1].blocks, ElementsAre(0u, 7u));
}

TEST_F(TraceTest, ReadsVidurAndDrawsArrivals) {
  std::string text =
      "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n";
  for (int i = 0; i < 4000; ++i) text += "3772,54,3826,69.85\n";
  const auto requests =
      ReadTrace(Write("v.csv", text), {.arrivals_per_second = 5});
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ(requests->back().prompt, 3772u);
  EXPECT_EQ(requests->back().output, 54u);
  // The sum of 4000 gaps of 0.2 s has a deviation of 1.6 %.
  EXPECT_NEAR(requests->back().arrival, 800, 65);
}

TEST_F(TraceTest, DrawsServegenFromWindowsAndHistograms) {
  Write("chunk-3-dataset.json",
        R"({"0": {"input_tokens": "{10: 0.25, 30: 0.75}",
                  "output_tokens": "{5: 1.0, 6: 0.0}"},
            "600": {"input_tokens": "{}", "output_tokens": "{}"}})");
  const std::string path = Write("chunk-3-trace.csv",
                                 "0,10,0.5,Gamma,4,0.025\n"
                                 "600,0,0,,0,0\n"
                                 "1200,10,1,Weibull,1,0.1\n");
  for (const std::string& source : {path, folder_.string()}) {
    const auto requests = ReadTrace(source, {.max_requests = 1'000'000});
    ASSERT_TRUE(requests.ok()) << requests.status();
    // Two windows of 600 s with ten requests a second.
    EXPECT_NEAR(static_cast<double>(requests->size()), 12000, 500);
    uint64_t prompts = 0;
    for (const StressRequest& request : *requests) {
      EXPECT_EQ(request.output, 5u);
      EXPECT_TRUE(request.arrival < 600 || request.arrival >= 1199);
      prompts += request.prompt;
    }
    EXPECT_NEAR(
        static_cast<double>(prompts) / static_cast<double>(requests->size()),
        25, 0.5);
  }
  EXPECT_EQ(ReadTrace(path, {})->size(), 10'000u);
}

TEST_F(TraceTest, ErrorsNameTheFileAndTheLine) {
  ExpectError((folder_ / "none.csv").string(), "none.csv: cannot open");
  ExpectError(Write("empty.csv", ""), "empty.csv: is empty");
  ExpectError(Write("other.csv", "a,b\n"), "other.csv:1: ");
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  ExpectError(Write("a0.csv", azure), "a0.csv: has no requests");
  for (const std::string line :
       {"2023-11-16 18:15:46.68,374", "2023-11-16 18:15:46.68,374,44,1",
        "2023-11-31 18:15:46.68,374,44", "yesterday,374,44",
        "2023-11-16 24:15:46.68,374,44", "2023-11-16 18:15:46.68,0,44",
        "2023-11-16 18:15:46.68,-3,44", "2023-11-16 18:15:46.68,3,4294967297",
        "2023-11-16 18:15:46.68,3,x", ""}) {
    ExpectError(Write("a.csv", azure + "2023-11-16 18:15:46.68,374,44\n" +
                                   std::string(line) + "\n"),
                "a.csv:3: ");
  }
  const std::string good =
      R"({"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [0]})"
      "\n";
  for (
      const std::string line :
      {R"({"timestamp": 0})", R"({"timestamp": 0, )", "7",
       R"({"timestamp": -1, "input_length": 5, "output_length": 3, "hash_ids": [0]})",
       R"({"timestamp": 0, "input_length": 0, "output_length": 3, "hash_ids": []})",
       R"({"timestamp": 0, "input_length": 5, "output_length": 3})",
       R"({"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [0, 1]})",
       R"({"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": ["a"]})",
       R"({"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [4194304]})"}) {
    ExpectError(Write("m.jsonl", good + line + "\n"), "m.jsonl:2: ");
  }
  // Deeper than a stack.
  ExpectError(Write("m.jsonl", "{\"hash_ids\": " + std::string(200000, '[') +
                                   std::string(200000, ']') + "}\n"),
              "m.jsonl:1: ");
}

TEST_F(TraceTest, ErrorsOfServegenNameTheFile) {
  ExpectError(folder_.string(), "chunk-N-trace.csv");
  const std::string path = Write("chunk-1-trace.csv", "0,1,1,Gamma,1,1\n");
  ExpectError(path, "chunk-1-dataset.json: cannot open");
  const std::string sides = R"("input_tokens": "{1: 1}", "output_tokens": )";
  for (const auto& [text, at] :
       std::vector<std::pair<std::string, std::string>>{
           {"[", "no valid JSON"},
           {"[]", "is no JSON object"},
           {R"({"x": {}})", "window x"},
           {R"({"0": 1})", "input_tokens"},
           {R"({"0": {"text_tokens": "{1: 1}", "output_tokens": "{1: 1}"}})",
            "input_tokens is missing"},
           {"{\"0\": {" + sides + "\"{1}\"}}", "output_tokens"},
           {"{\"0\": {" + sides + "\"{1: -1}\"}}", "output_tokens"},
           {"{\"0\": {" + sides + "\"1: 1\"}}", "output_tokens"}}) {
    Write("chunk-1-dataset.json", text);
    ExpectError(path, at);
  }
  Write("chunk-1-dataset.json", "{\"0\": {" + sides + "\"{1: 1}\"}}");
  EXPECT_TRUE(ReadTrace(path, {}).ok());
  for (const char* line : {"0,1,1,Normal,1,1\n", "0,1,1,Gamma,0,1\n",
                           "0,1,1,Gamma,1\n", "0,nan,1,Gamma,1,1\n"}) {
    Write("chunk-1-trace.csv", line);
    ExpectError(path, "chunk-1-trace.csv:1: ");
  }
}

// Counts and sums of lengths, by another program.
TEST(ShippedTracesTest, AreReadWhole) {
  const struct {
    const char* name;
    size_t requests;
    uint64_t prompts;
    uint64_t outputs;
  } traces[] = {
      {"azure_conv_first_1000.csv", 1000, 1014189, 247262},
      {"mooncake_conversation_first_300.jsonl", 300, 4269971, 113079},
  };
  for (const auto& [name, count, prompts, outputs] : traces) {
    SCOPED_TRACE(name);
    const auto requests =
        ReadTrace(absl::StrCat(QUIRE_SOURCE_DIR, "/bench/traces/", name), {});
    ASSERT_TRUE(requests.ok()) << requests.status();
    EXPECT_EQ(requests->size(), count);
    uint64_t prompt_tokens = 0;
    uint64_t output_tokens = 0;
    for (const StressRequest& request : *requests) {
      prompt_tokens += request.prompt;
      output_tokens += request.output;
    }
    EXPECT_EQ(prompt_tokens, prompts);
    EXPECT_EQ(output_tokens, outputs);
  }
}

// The traces themselves, where they are: QUIRE_TRACES names their folder.
TEST(PublicTracesTest, HaveWhatTheirAuthorsSay) {
  const char* const folder = std::getenv("QUIRE_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "QUIRE_TRACES is not set";
  const struct {
    const char* file;
    size_t requests;
    double prompt_mean;
    double output_mean;
  } traces[] = {
      {"azure-llm-2023/AzureLLMInferenceTrace_conv.csv", 19366, 1155, 211},
      {"mooncake-fast25/conversation_trace.jsonl", 12031, 12035, 343},
      {"mooncake-fast25/synthetic_trace.jsonl", 3993, 15325, 149},
      {"vidur-arxiv/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
       28257, 2588, 291}};
  for (const auto& trace : traces) {
    const auto requests = ReadTrace(absl::StrCat(folder, "/", trace.file), {});
    ASSERT_TRUE(requests.ok()) << requests.status();
    double prompts = 0;
    double outputs = 0;
    for (const StressRequest& request : *requests) {
      prompts += static_cast<double>(request.prompt);
      outputs += static_cast<double>(request.output);
    }
    const double count = static_cast<double>(requests->size());
    EXPECT_EQ(requests->size(), trace.requests);
    EXPECT_NEAR(prompts / count, trace.prompt_mean, 1) << trace.file;
    EXPECT_NEAR(outputs / count, trace.output_mean, 1) << trace.file;
  }
  EXPECT_TRUE(ReadTrace(absl::StrCat(folder, "/servegen/m-small"), {}).ok());
}

TEST(StressRandomTest, HasTheMomentsOfItsDistributions) {
  StressRandom random(3);
  const auto expect = [&](auto draw, double mean, double variance) {
    constexpr int kDraws = 200'000;
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double x = draw();
      sum += x;
      squares += x * x;
    }
    const double measured = sum / kDraws;
    EXPECT_NEAR(measured, mean, 0.02 * std::max(mean, 1.0));
    EXPECT_NEAR(squares / kDraws - measured * measured, variance,
                0.05 * variance);
  };
  expect([&] { return random.Normal(); }, 0, 1);
  expect([&] { return random.Exponential(3); }, 3, 9);
  expect([&] { return random.Gamma(4, 0.5); }, 2, 1);
  expect([&] { return random.Gamma(0.5, 2); }, 1, 2);
  // Weibull of shape 2: the mean is sqrt(pi) / 2 and the variance 1 - pi / 4.
  expect([&] { return random.Weibull(2, 1); }, std::sqrt(M_PI) / 2,
         1 - M_PI / 4);
}

// 2 * layers * kv_heads * head_dim * bytes, from the published configurations.
TEST(StressModelTest, KvBytesAreTheFormula) {
  const auto bytes = [](const char* name, uint64_t tokens) {
    return FindStressModel(name)->KvBytes(tokens, KvDType::kF16).value();
  };
  EXPECT_EQ(bytes("qwen3-8b", 1), 147'456u);
  EXPECT_EQ(bytes("llama3-8b", 1), 131'072u);
  EXPECT_EQ(bytes("llama2-7b", 1), 524'288u);
  EXPECT_EQ(bytes("qwen3-8b", 1000), 147'456'000u);
  // gpt-oss-20b: 24 layers of 2 KiB a token, every second with 128 tokens.
  EXPECT_EQ(bytes("gpt-oss-20b", 128), 128u * 49'152);
  EXPECT_EQ(bytes("gpt-oss-20b", 1000), 1000u * 24'576 + 128u * 24'576);
  EXPECT_EQ(FindStressModel("qwen3-8b")->KvBytes(1, KvDType::kF32).value(),
            294'912u);
  // 27 latent vectors of 512 and 64 elements.
  EXPECT_EQ(bytes("deepseek-v2-lite", 10), 10u * 27 * 576 * 2);
  EXPECT_EQ(FindStressModel("gpt-5"), nullptr);
  // Two products and two sums a pair of elements, for 32 heads of 128.
  EXPECT_EQ(FindStressModel("qwen3-8b")->AttentionFlops(10),
            4.0 * 32 * 128 * 36 * 10);
}

// A byte an element, and two for the scale of each head of keys and of values.
TEST(StressModelTest, ElementsOf8BitsHaveScales) {
  for (const KvDType dtype :
       {KvDType::kF8E4M3, KvDType::kF8E5M2, KvDType::kInt8}) {
    EXPECT_EQ(FindStressModel("qwen3-8b")->KvBytes(100, dtype).value(),
              100u * 36 * 2 * 8 * (128 + 2));
    EXPECT_EQ(FindStressModel("gpt-oss-20b")->KvBytes(1000, dtype).value(),
              (1000u + 128) * 12 * 2 * 8 * (64 + 2));
    EXPECT_EQ(FindStressModel("deepseek-v2-lite")->KvBytes(1, dtype).value(),
              27u * (576 + 2));
  }
}

// What the simulation counts is what the cache keeps.
TEST(StressModelTest, KvBytesAreThoseOfTheLayout) {
  for (const StressModel& model : StressModels()) {
    SCOPED_TRACE(model.name());
    for (const KvDType dtype :
         {KvDType::kF32, KvDType::kBF16, KvDType::kInt8}) {
      const auto layout = KvLayout::Create(model.Shape(dtype), 1);
      ASSERT_TRUE(layout.ok()) << layout.status();
      for (const uint64_t tokens : {1, 100, 128, 129, 5000}) {
        EXPECT_EQ(model.KvBytes(tokens, dtype), layout->KeptBytes(tokens));
      }
    }
  }
}

TEST(StressModelTest, ALatentVectorIsKeyAndValue) {
  EXPECT_EQ(FindStressModel("deepseek-v2-lite")->AttentionFlops(10),
            2.0 * 16 * (576 + 576) * 27 * 10);
}

TEST(CostModelTest, ReadsTheFileThatIsHere) {
  const auto costs =
      CostModel::Read(QUIRE_SOURCE_DIR "/bench/costs/a100-80g.json");
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_THAT(costs->create_page_us(), ElementsAre(29, 193));
  const DriverCostTable a100 = DriverCostTable::A100();
  const DriverCostTable read = costs->DriverCosts(193);
  EXPECT_EQ(read.create_page, a100.create_page);
  EXPECT_EQ(read.map_page, a100.map_page);
  EXPECT_EQ(read.set_access, a100.set_access);
  EXPECT_EQ(read.unmap_page, a100.unmap_page);
  EXPECT_EQ(read.reserve_address, a100.reserve_address);
  EXPECT_EQ(read.release_page, a100.release_page);
  EXPECT_EQ(costs->DriverCosts(29).create_page, 29'000u);

  const StressModel& model = *FindStressModel("qwen3-8b");
  // One token reads the weights: 16.4 GB at 0.8 of 2039 GB/s, and 0.5 ms.
  EXPECT_NEAR(static_cast<double>(costs->StepNanoseconds(model, {.tokens = 1})),
              16'381'470'720 / 1631.2 + 5e5, 2);
  // 2048 tokens multiply: 2 * 8.19e9 each at 0.6 of 312 TFLOPS.
  EXPECT_NEAR(
      static_cast<double>(costs->StepNanoseconds(model, {.tokens = 2048})),
      2048 * 2 * 8.19e9 / 187.2e3 + 5e5, 2);
}

TEST(CostModelTest, ErrorsNameTheEntry) {
  const std::string calls =
      R"("driver_calls_us": {"reserve_address": 1, "release_address": 1,
         "create_page": [1], "release_page": 1, "map_page": 1, "set_access": 1,
         "unmap_page": 1, "other": 1})";
  const std::string roofline =
      R"("roofline": {"peak_tflops": 1, "compute_efficiency": 1,
         "bandwidth_gb_per_s": 1, "bandwidth_efficiency": 1,
         "step_overhead_us": 0})";
  const std::string good =
      absl::StrCat(R"({"card": "c", )", calls, ", ", roofline, "}");
  EXPECT_TRUE(CostModel::Parse(good, "f.json").ok());
  const auto expect = [&](const std::string& from, const std::string& to,
                          const std::string& at) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    const auto costs = CostModel::Parse(text, "f.json");
    ASSERT_FALSE(costs.ok()) << text;
    EXPECT_THAT(std::string(costs.status().message()), HasSubstr(at));
    EXPECT_THAT(std::string(costs.status().message()), HasSubstr("f.json: "));
  };
  expect("}", "", "is no JSON object");
  expect("\"c\"", "7", "card");
  expect("\"map_page\": 1", "\"map_page\": -1", "driver_calls_us.map_page");
  expect("\"map_page\": 1", "\"map\": 1", "driver_calls_us.map_page");
  expect("[1]", "1", "driver_calls_us.create_page");
  expect("[1]", "[]", "driver_calls_us.create_page");
  expect("[1]", "[\"a\"]", "driver_calls_us.create_page");
  expect("\"peak_tflops\": 1", "\"peak_tflops\": 0", "roofline.peak_tflops");
  expect("\"other\": 1", "\"other\": 1e300", "driver_calls_us.other");
}

TEST(NumberBetweenTest, TakesFiniteNumbersOfTheRangeOnly) {
  const CLI::Validator number = NumberBetween(0, 10);
  for (std::string text : {"0", "10", "2.5", "1e-3", " 7"})
    EXPECT_EQ(number(text), "") << text;
  for (std::string text : {"nan", "NaN", "-nan", "inf", "-inf", "1e999", "10.1",
                           "-1e-9", "", "5x"})
    EXPECT_THAT(number(text), HasSubstr("is no number in [0 - 10]")) << text;
}

TEST(WholeNumberTest, TakesWhatFitsIn64Bits) {
  const CLI::Validator number = WholeNumber();
  for (std::string text : {"0", "7", "0x10", "18446744073709551615"})
    EXPECT_EQ(number(text), "") << text;
  for (std::string text : {"18446744073709551616", "1e3", "-1", "+1", "", " 1",
                           "1 ", "0x", "99999999999999999999999"})
    EXPECT_THAT(number(text), HasSubstr("is no whole number")) << text;
}

TEST(PromptTokensTest, EqualBlocksAreEqualTokensAndTheRestIsUnlikeAll) {
  const StressRequest a = {.prompt = 600, .output = 10, .blocks = {3, 5}};
  const StressRequest b = {.prompt = 700, .output = 10, .blocks = {3, 6}};
  PromptTokens tokens;
  tokens.Add(RequestId(1), &a);
  tokens.Add(RequestId(2), &b);
  const auto of_a = tokens.Of(RequestId(1));
  const auto of_b = tokens.Of(RequestId(2));
  ASSERT_EQ(of_a.size(), 610u);
  ASSERT_EQ(of_b.size(), 710u);
  for (size_t i = 0; i < 512; ++i) EXPECT_EQ(of_a[i], of_b[i]);
  for (size_t i = 512; i < of_a.size(); ++i) EXPECT_NE(of_a[i], of_b[i]);
  EXPECT_EQ(of_a[512], 5 * 512);
}

}  // namespace
}  // namespace quire
