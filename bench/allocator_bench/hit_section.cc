// The hot path: once everything was allocated and freed before, the same
// sequence finds it cached.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/allocator_bench/contender.h"
#include "bench/allocator_bench/sections.h"
#include "bench/allocator_bench/timing.h"
#include "bench/allocator_bench/workload.h"
#include "bench/bench_device.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr int kWarmUpCycles = 3;

struct Phase {
  const char* name;
  const std::vector<Operation>* operations;
  double bar;
  double aim;
};

// What a contender took, phase by phase.
struct Results {
  std::vector<std::vector<double>> nanoseconds;  // [phase][repetition]
};

template <typename Contender>
absl::Status RunCycle(Contender& contender, const std::vector<Phase>& phases,
                      std::vector<uint64_t>* table, Results* results) {
  for (size_t i = 0; i < phases.size(); ++i) {
    const std::optional<double> nanoseconds =
        TimeOperations(contender, *phases[i].operations, table);
    if (!nanoseconds) {
      return absl::InternalError(
          absl::StrFormat("an operation failed in phase %s", phases[i].name));
    }
    if (results != nullptr) results->nanoseconds[i].push_back(*nanoseconds);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Section> MeasureHits(const BenchOptions& options) {
  PinThread(AllowedProcessors().front());
  const PhasedWorkload workload =
      MakeHitWorkload(options.divisor, options.seed);
  const std::vector<Phase> phases = {{"allocate", &workload.allocate, 50, 15},
                                     {"mixed", &workload.mixed, 60, 25},
                                     {"free", &workload.free, 50, 15}};
  QUIRE_ASSIGN_OR_RETURN(const auto plain, BenchDevice::Create(GiB(64)));
  QUIRE_ASSIGN_OR_RETURN(const auto streamed, BenchDevice::Create(GiB(64)));
  QUIRE_ASSIGN_OR_RETURN(const StreamId stream, streamed->CreateStream());
  // As a Runtime makes them.
  EventTrace trace(RuntimeOptions().trace_capacity);
  QUIRE_ASSIGN_OR_RETURN(const auto traced,
                         BenchDevice::Create(GiB(64), {.trace = &trace}));
  QUIRE_ASSIGN_OR_RETURN(const StreamId traced_stream, traced->CreateStream());
  QuireContender on_no_stream(plain->allocator(), StreamId());
  QuireContender on_stream(streamed->allocator(), stream);
  QuireContender on_traced_stream(traced->allocator(), traced_stream);
  const Mimalloc* const mimalloc = Mimalloc::Get();

  std::vector<uint64_t> table(workload.slots);
  Results of_no_stream, of_stream, of_traced_stream, of_mimalloc;
  for (Results* const results :
       {&of_no_stream, &of_stream, &of_traced_stream, &of_mimalloc}) {
    results->nanoseconds.resize(phases.size());
  }
  uint64_t plain_calls = 0;
  uint64_t streamed_calls = 0;
  for (int i = 0; i < kWarmUpCycles + options.repetitions; ++i) {
    const bool warm = i >= kWarmUpCycles;
    if (i == kWarmUpCycles) {
      plain_calls = plain->driver_calls();
      streamed_calls = streamed->driver_calls();
    }
    QUIRE_RETURN_IF_ERROR(
        RunCycle(on_no_stream, phases, &table, warm ? &of_no_stream : nullptr));
    QUIRE_RETURN_IF_ERROR(
        RunCycle(on_stream, phases, &table, warm ? &of_stream : nullptr));
    QUIRE_RETURN_IF_ERROR(RunCycle(on_traced_stream, phases, &table,
                                   warm ? &of_traced_stream : nullptr));
    if (mimalloc == nullptr) continue;
    FaultingMimalloc faulting(mimalloc);
    QUIRE_RETURN_IF_ERROR(
        warm ? RunCycle(*mimalloc, phases, &table, &of_mimalloc)
             : RunCycle(faulting, phases, &table, nullptr));
  }

  Section section;
  section.name = "hit";
  section.title = absl::StrFormat(
      "%u allocations of 256 B to 1 MiB, log-uniform; %u allocations and frees "
      "in random order; frees of the rest; ns per operation",
      workload.allocate.size(), workload.mixed.size());
  section.method =
      "one thread, its processor time; everything was allocated and freed "
      "before; no memory is touched";
  const auto add = [&](const Results& results, const char* where) {
    for (size_t i = 0; i < phases.size(); ++i) {
      section.figures.push_back(
          {.name = absl::StrFormat("%s, %s", phases[i].name, where),
           .unit = "ns",
           .value = Median(results.nanoseconds[i]),
           .mimalloc = mimalloc != nullptr
                           ? std::optional(Median(of_mimalloc.nanoseconds[i]))
                           : std::nullopt,
           .bar = phases[i].bar,
           .aim = phases[i].aim,
           .mimalloc_bar = 2});
    }
  };
  const auto add_calls = [&](uint64_t calls, const char* where) {
    section.figures.push_back(
        {.name = absl::StrFormat("driver calls an operation, %s", where),
         .unit = "calls",
         .value = static_cast<double>(calls) /
                  static_cast<double>(workload.operations()) /
                  options.repetitions,
         .bar = 0});
  };
  add(of_no_stream, "no stream");
  add_calls(plain->driver_calls() - plain_calls, "no stream");
  add(of_stream, "one stream");
  add_calls(streamed->driver_calls() - streamed_calls, "one stream");
  add(of_traced_stream, "one stream, traced");
  return section;
}

}  // namespace quire
