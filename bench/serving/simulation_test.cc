// What the caches waste and what steps wait for, of conversations of a public
// trace that fill a device: virtual time, the same on every machine.
//
// The bars are those that docs/kv_figures.md sets: contiguous regions hold
// 0.3 % more than blocks of 16 tokens at most, and one decode step in a
// thousand waits for a driver call, made in it or outlasting the one before.

#include "bench/serving/simulation.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bench/serving/serving_arguments.h"

namespace quire {
namespace {

std::vector<SimulationResult> Serve(const ServingArguments& arguments) {
  SimulationOptions simulation = *MakeSimulation(arguments);
  const ServingWorkload workload =
      *MakeServingWorkload(arguments, simulation.cache.max_sequence_length);
  simulation.prefixes = !workload.requests.front().blocks.empty();
  const CostModel costs = *CostModel::Read(arguments.costs);
  const std::vector<CacheKind> kinds = *MakeCacheKinds(
      arguments.caches, arguments.waste_limit, simulation, workload.requests);
  std::vector<SimulationResult> results;
  for (const CacheKind& kind : kinds) {
    auto result = Simulate(simulation, costs, /*create_page_us=*/193, kind,
                           workload.requests);
    EXPECT_TRUE(result.ok()) << kind.name << ": " << result.status();
    if (!result.ok()) return {};
    EXPECT_EQ(result->served, workload.requests.size());
    results.push_back(*std::move(result));
  }
  return results;
}

ServingArguments Trace(const std::string& name, const std::string& memory) {
  ServingArguments arguments;
  arguments.trace = QUIRE_SOURCE_DIR "/bench/traces/" + name;
  arguments.model = "qwen3-8b";
  arguments.device_memory = memory;
  arguments.max_sequences = 1024;
  arguments.halve_above = 0.97;
  arguments.grow_below = 0.9;
  arguments.caches = {"contiguous:36", "blocks:16"};
  return arguments;
}

void ExpectFewWaits(const SimulationResult& result) {
  EXPECT_LE(static_cast<double>(result.decode_steps_waiting),
            0.001 * static_cast<double>(result.decode_steps))
      << result.decode_steps_overrun << " of " << result.decode_steps_waiting
      << " for calls that outlast a step, " << result.longest_wait_ms
      << " ms at most";
}

TEST(SimulationTest, ConversationsThatFillTheDeviceMeetTheBars) {
  ServingArguments arguments = Trace("azure_conv_first_1000.csv", "32GiB");
  arguments.load_factor = 12;
  arguments.max_model_len = 16384;
  for (const bool park : {false, true}) {
    SCOPED_TRACE(park);
    arguments.park = park;
    if (park) arguments.max_parked = 0.002;
    const std::vector<SimulationResult> results = Serve(arguments);
    ASSERT_EQ(results.size(), 2u);
    EXPECT_LE(results[0].waste_ratio(), results[1].waste_ratio() + 0.003);
    ExpectFewWaits(results[0]);
  }
}

// Prompts of 12,000 tokens, most of whose pages have to be taken from what is
// kept of others.
TEST(SimulationTest, LongPromptsLeaveStepsAlone) {
  const std::vector<SimulationResult> results =
      Serve(Trace("mooncake_conversation_first_300.jsonl", "40GiB"));
  ASSERT_EQ(results.size(), 2u);
  ExpectFewWaits(results[0]);
  EXPECT_GE(results[0].served / results[0].virtual_seconds,
            results[1].served / results[1].virtual_seconds);
}

// What outlasts a step is counted with what the step waits for: a model that
// computes next to nothing, and every page made when it is needed.
TEST(SimulationTest, CallsThatOutlastAStepAreWaits) {
  ServingArguments arguments = Trace("azure_conv_first_1000.csv", "4GiB");
  arguments.model.clear();
  arguments.requests = 50;
  arguments.caches = {"contiguous:1"};
  SimulationOptions simulation = *MakeSimulation(arguments);
  simulation.scheduler.prepare_next = true;  // and pages are not made at first
  const ServingWorkload workload = *MakeServingWorkload(arguments, 8192);
  const CostModel costs = *CostModel::Read(arguments.costs);
  const std::vector<CacheKind> kinds = *MakeCacheKinds(
      arguments.caches, arguments.waste_limit, simulation, workload.requests);
  const auto result =
      Simulate(simulation, costs, 10'000, kinds.front(), workload.requests);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->decode_steps_overrun, 0u);
  EXPECT_GE(result->decode_steps_waiting, result->decode_steps_overrun);
  EXPECT_GT(result->overrun_ms, 0);
}

// More than the device holds, so that some are preempted.
TEST(SimulationTest, WhatIsSwappedIsNotComputedAgain) {
  ServingArguments arguments;
  arguments.device_memory = "2GiB";
  arguments.headroom = "0";
  arguments.random.requests = 300;
  arguments.random.prompt_mean = 400;
  arguments.random.output_mean = 400;
  arguments.random.arrivals_per_step = 1;
  arguments.caches = {"contiguous:36"};
  const std::vector<SimulationResult> without = Serve(arguments);
  ASSERT_EQ(without.size(), 1u);
  EXPECT_GT(without[0].scheduler.preemptions, 0u);
  EXPECT_GT(without[0].scheduler.recomputed_tokens, 0u);
  EXPECT_EQ(without[0].scheduler.swaps, 0u);
  EXPECT_EQ(without[0].swapped_out, Bytes(0));
  arguments.swap_space = "2GiB";
  const std::vector<SimulationResult> with = Serve(arguments);
  ASSERT_EQ(with.size(), 1u);
  EXPECT_EQ(with[0].scheduler.swaps, with[0].scheduler.preemptions);
  EXPECT_GT(with[0].scheduler.swaps, 0u);
  EXPECT_EQ(with[0].scheduler.recomputed_tokens, 0u);
  // All came back, over 24 GB/s.
  EXPECT_GT(with[0].swapped_out, Bytes(0));
  EXPECT_EQ(with[0].swapped_in, with[0].swapped_out);
  EXPECT_NEAR(with[0].copy_ms,
              2 * static_cast<double>(with[0].swapped_out.value()) / 24e6,
              0.001);
}

}  // namespace
}  // namespace quire
