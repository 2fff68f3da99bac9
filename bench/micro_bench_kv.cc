// What a decode step of the KV cache costs the host where it maps nothing.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_device.h"
#include "quire/paging/kv_cache.h"

namespace quire {
namespace {

// Qwen3-8B's shape, every sequence one token further in each step, within the
// pages it has: some tens of tokens at 36 layers per row, hundreds at one.
void BM_KvStepNothingToMap(benchmark::State& state) {
  const auto sequences = static_cast<uint32_t>(state.range(0));
  const auto device = BenchDevice::Create(GiB(64));
  const auto layout = KvLayout::Create(KvShape{36, 8, 128, KvDType::kF16},
                                       static_cast<uint32_t>(state.range(1)));
  if (!device.ok() || !layout.ok()) {
    state.SkipWithError("no device");
    return;
  }
  KvCacheOptions options;
  options.max_sequence_length = 8192;
  options.max_sequences = sequences;
  options.page_ahead.max_steps = static_cast<uint32_t>(state.range(2));
  options.page_ahead.thread = state.range(3) != 0;
  const auto cache = KvCache::Create((*device)->memory(), *layout, options);
  if (!cache.ok()) {
    state.SkipWithError(std::string(cache.status().message()).c_str());
    return;
  }
  constexpr uint64_t kFirst = 1000;
  constexpr uint64_t kLast = 1008;
  std::vector<SequenceStep> steps;
  for (uint32_t i = 0; i < sequences; ++i) {
    const auto sequence = (*cache)->Admit(kLast);
    if (!sequence.ok()) {
      state.SkipWithError(std::string(sequence.status().message()).c_str());
      return;
    }
    steps.push_back({*sequence, kFirst});
  }
  const uint64_t calls = (*device)->driver_calls();
  for (auto _ : state) {
    for (SequenceStep& step : steps)
      step.length = step.length == kLast ? kFirst : step.length + 1;
    if (!(*cache)->Step(steps).ok()) state.SkipWithError("a step failed");
  }
  state.counters["driver_calls"] =
      static_cast<double>((*device)->driver_calls() - calls);
}
BENCHMARK(BM_KvStepNothingToMap)
    ->ArgNames({"sequences", "layers_per_row", "page_ahead", "thread"})
    ->Args({1, 36, 0, 0})
    ->Args({256, 1, 0, 0})
    ->Args({256, 36, 0, 0})
    ->Args({256, 36, 16, 0})
    ->Args({256, 36, 16, 1});

}  // namespace
}  // namespace quire
