// Two threads, each on a stream of its own, against one.

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/allocator_bench/contender.h"
#include "bench/allocator_bench/sections.h"
#include "bench/allocator_bench/timing.h"
#include "bench/allocator_bench/workload.h"
#include "bench/bench_device.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// A thread is new, so that it fills its cache first.
constexpr int kWarmUpCycles = 2;
// Long against the time that threads need to start together.
constexpr int kCycles = 40;

// What `threads` threads did together.
struct Run {
  double operations_per_second;
  double processor_nanoseconds;  // of an operation
};

template <typename Contender>
bool RunCycle(Contender& contender, const PhasedWorkload& workload,
              std::vector<uint64_t>* table) {
  return RunOperations(contender, workload.allocate, table) &&
         RunOperations(contender, workload.mixed, table) &&
         RunOperations(contender, workload.free, table);
}

QuireContender WarmingUp(const QuireContender& quire) { return quire; }
FaultingMimalloc WarmingUp(const Mimalloc& mimalloc) {
  return FaultingMimalloc(&mimalloc);
}

// One thread for each contender, each on a processor of its own.
template <typename Contender>
absl::StatusOr<Run> RunTogether(const std::vector<Contender>& contenders,
                                const PhasedWorkload& workload) {
  const std::vector<int>& processors = AllowedProcessors();
  const size_t count = contenders.size();
  std::atomic<size_t> ready = 0;
  std::atomic<bool> ok = true;
  std::vector<uint64_t> starts(count), ends(count), processor_times(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      PinThread(processors[i]);
      Contender contender = contenders[i];
      std::vector<uint64_t> table(workload.slots);
      bool all = true;
      auto warming_up = WarmingUp(contender);
      for (int cycle = 0; cycle < kWarmUpCycles; ++cycle) {
        all &= RunCycle(warming_up, workload, &table);
      }
      ready.fetch_add(1);
      while (ready.load() < count) {
      }
      starts[i] = WallNanoseconds();
      processor_times[i] = ThreadNanoseconds();
      for (int cycle = 0; cycle < kCycles; ++cycle) {
        all &= RunCycle(contender, workload, &table);
      }
      processor_times[i] = ThreadNanoseconds() - processor_times[i];
      ends[i] = WallNanoseconds();
      if (!all) ok = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!ok) return absl::InternalError("an operation failed");
  const double operations = static_cast<double>(workload.operations()) *
                            kCycles * static_cast<double>(count);
  const uint64_t start = *std::min_element(starts.begin(), starts.end());
  const uint64_t end = *std::max_element(ends.begin(), ends.end());
  uint64_t processor_time = 0;
  for (const uint64_t time : processor_times) processor_time += time;
  return Run{operations / (static_cast<double>(end - start) * 1e-9),
             static_cast<double>(processor_time) / operations};
}

// Medians of one thread, of two, and of how the two compare in one repetition.
struct Results {
  std::vector<double> throughput_ratios;
  std::vector<double> cost_ratios;

  void Add(const Run& one, const Run& two) {
    throughput_ratios.push_back(two.operations_per_second /
                                one.operations_per_second);
    cost_ratios.push_back(two.processor_nanoseconds /
                          one.processor_nanoseconds);
  }
};

template <typename Contender>
absl::Status Measure(const std::vector<Contender>& contenders,
                     const PhasedWorkload& workload, Results* results) {
  QUIRE_ASSIGN_OR_RETURN(
      const Run one,
      RunTogether(std::vector<Contender>{contenders[0]}, workload));
  QUIRE_ASSIGN_OR_RETURN(const Run two, RunTogether(contenders, workload));
  results->Add(one, two);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Section> MeasureTwoThreads(const BenchOptions& options) {
  Section section;
  section.name = "threads";
  section.title =
      "the sequence of section hit on two threads, each on its own stream of "
      "one "
      "allocator, against one thread";
  if (AllowedProcessors().size() < 2) {
    section.method = "not measured: there is one processor";
    return section;
  }
  section.method =
      "throughput by the clock on the wall, so other programs on the machine "
      "lower it; cost by the threads' processor time";
  const PhasedWorkload workload =
      MakeHitWorkload(options.divisor, options.seed);
  QUIRE_ASSIGN_OR_RETURN(const auto device, BenchDevice::Create(GiB(64)));
  QUIRE_ASSIGN_OR_RETURN(const StreamId first, device->CreateStream());
  QUIRE_ASSIGN_OR_RETURN(const StreamId second, device->CreateStream());
  const std::vector<QuireContender> quire = {
      QuireContender(device->allocator(), first),
      QuireContender(device->allocator(), second)};
  const Mimalloc* const mimalloc = Mimalloc::Get();

  Results of_quire, of_mimalloc;
  for (int i = 0; i < options.repetitions; ++i) {
    QUIRE_RETURN_IF_ERROR(Measure(quire, workload, &of_quire));
    if (mimalloc == nullptr) continue;
    QUIRE_RETURN_IF_ERROR(Measure(std::vector<Mimalloc>{*mimalloc, *mimalloc},
                                  workload, &of_mimalloc));
  }
  const auto median = [&](std::vector<double> Results::*ratios) {
    return mimalloc != nullptr ? std::optional(Median(of_mimalloc.*ratios))
                               : std::nullopt;
  };
  section.figures = {
      {.name = "throughput of two threads / one",
       .unit = "x",
       .value = Median(of_quire.throughput_ratios),
       .mimalloc = median(&Results::throughput_ratios),
       .bar = 1.8,
       .aim = 1.95,
       .higher_is_better = true},
      {.name = "processor time of an operation, two threads / one",
       .unit = "x",
       .value = Median(of_quire.cost_ratios),
       .mimalloc = median(&Results::cost_ratios)}};
  return section;
}

}  // namespace quire
