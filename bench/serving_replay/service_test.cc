// Percentiles, promises and rates, worked out by hand; and a day whose times
// follow from the cost of a step.

#include "bench/serving_replay/service.h"

#include <string>
#include <vector>

#include "bench/serving/cost_model.h"
#include "bench/serving/model_table.h"
#include "bench/serving/simulation.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(PercentilesTest, AreNearestRanks) {
  std::vector<double> values;
  for (int i = 100; i > 0; --i) values.push_back(i);
  const Percentiles of_100 = PercentilesOf(values);
  EXPECT_EQ(of_100.mean, 50.5);
  EXPECT_EQ(of_100.p50, 50);
  EXPECT_EQ(of_100.p90, 90);
  EXPECT_EQ(of_100.p99, 99);
  EXPECT_EQ(of_100.max, 100);
  const Percentiles of_one = PercentilesOf({7});
  EXPECT_EQ(of_one.p50, 7);
  EXPECT_EQ(of_one.p99, 7);
  EXPECT_EQ(PercentilesOf({}).max, 0);
}

TEST(JudgeTest, CountsWhatWasPromised) {
  const std::vector<RequestTiming> timings = {
      {.arrival = 0, .first_token = 1, .last_token = 3, .output = 5},
      // Late for its first token, and fast afterwards.
      {.arrival = 1, .first_token = 4, .last_token = 5, .output = 11},
      // In time, and slow afterwards.
      {.arrival = 2, .first_token = 2.5, .last_token = 10, .output = 4},
      // Nothing behind its first token.
      {.arrival = 3, .first_token = 3.5, .last_token = 3.5, .output = 1}};
  const ServiceQuality quality =
      Judge(timings, {.time_to_first_token = 1, .time_per_output_token = 0.5});
  EXPECT_EQ(quality.kept, 2u);
  EXPECT_EQ(quality.attainment, 0.5);
  EXPECT_EQ(quality.requests_per_second, 0.4);
  EXPECT_EQ(quality.tokens_per_second, 2.1);
  EXPECT_EQ(quality.goodput, 0.2);
  EXPECT_EQ(quality.time_to_first_token.max, 3);
  EXPECT_EQ(quality.time_to_first_token.mean, (1 + 3 + 0.5 + 0.5) / 4);
  EXPECT_EQ(quality.time_per_output_token.max, 2.5);
  EXPECT_EQ(quality.time_per_output_token.p50, 0.5);
  EXPECT_EQ(Judge({}, {}).attainment, 0);
}

// Two requests, one at a time in the batch: the second waits for all tokens of
// the first. Driver calls cost nothing here, so that every step takes what the
// cost model says of it.
TEST(SimulatedTimingsTest, AreThoseOfTheSteps) {
  const auto costs = CostModel::Parse(
      R"({"card": "test",
          "driver_calls_us": {"reserve_address": 0, "release_address": 0,
            "create_page": [0], "release_page": 0, "map_page": 0,
            "set_access": 0, "unmap_page": 0, "other": 0},
          "roofline": {"peak_tflops": 1, "compute_efficiency": 1,
            "bandwidth_gb_per_s": 1e6, "bandwidth_efficiency": 1,
            "step_overhead_us": 1000}})",
      "test");
  ASSERT_TRUE(costs.ok()) << costs.status();
  SimulationOptions options;
  options.model = StressModel("tiny", KvShape{2, 1, 64, KvDType::kF16},
                              /*query_heads=*/1, /*max_positions=*/1024);
  options.cache.shape = options.model.Shape(options.dtype);
  options.cache.max_sequence_length = 1024;
  options.cache.max_sequences = 1;
  options.cache.page_size = MiB(2);
  options.kv_memory = MiB(64);
  options.scheduler.max_num_seqs = 1;
  options.scheduler.max_num_batched_tokens = 2048;
  const std::vector<StressRequest> requests = {
      {.arrival = 0, .prompt = 16, .output = 4},
      {.arrival = 0, .prompt = 16, .output = 2}};
  for (const CacheKind& kind :
       {CacheKind{.layers_per_row = 2, .name = "contiguous:2"},
        CacheKind{.family = CacheKind::Family::kBlocks,
        .block_tokens = 16,
        .name = "blocks:16"}}) {
    const auto result = Simulate(options, *costs, 0, kind, requests);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->timings.size(), 2u);
    // A millisecond a step, and next to nothing for the arithmetic.
    const auto expect = [&](size_t index, double first, double last) {
      const RequestTiming& timing = result->timings[index];
      EXPECT_NEAR(timing.first_token, first, 5e-5) << kind.name << index;
      EXPECT_NEAR(timing.last_token, last, 5e-5) << kind.name << index;
      EXPECT_EQ(timing.output, requests[index].output);
    };
    expect(0, 0.001, 0.004);
    expect(1, 0.005, 0.006);
  }
}

}  // namespace
}  // namespace quire
