// Large allocations that find a range that was freed before and is still
// mapped.

#include <optional>
#include <string>
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

constexpr uint32_t kLive = 16;
constexpr int kCycles = 200;
constexpr int kWarmUpCycles = 3;
constexpr uint32_t kMiB = 1 << 20;

struct SizeCase {
  const char* name;
  uint32_t size;
};
constexpr SizeCase kSizes[] = {{"2.1 MiB", kMiB * 21 / 10},
                               {"64 MiB", 64 * kMiB}};

// Costs of one phase, allocations or frees.
struct Cost {
  std::vector<double> nanoseconds;
  uint64_t driver_calls = 0;
};

absl::Status RunPhase(QuireContender& contender, BenchDevice* device,
                      const std::vector<Operation>& operations,
                      std::vector<uint64_t>* table, uint64_t* nanoseconds,
                      Cost* cost) {
  const uint64_t calls = device->driver_calls();
  const uint64_t start = ThreadNanoseconds();
  const bool ok = RunOperations(contender, operations, table);
  *nanoseconds += ThreadNanoseconds() - start;
  cost->driver_calls += device->driver_calls() - calls;
  return ok ? absl::OkStatus() : absl::InternalError("an operation failed");
}

absl::Status MeasureCase(const SizeCase& size, bool own_stream,
                         const BenchOptions& options, Section* section) {
  const PhasedWorkload workload =
      MakePhasedWorkload(kLive, 0, {size.size, size.size}, options.seed);
  QUIRE_ASSIGN_OR_RETURN(const auto device, BenchDevice::Create(GiB(64)));
  StreamId stream;
  if (own_stream) {
    QUIRE_ASSIGN_OR_RETURN(stream, device->CreateStream());
  }
  QuireContender contender(device->allocator(), stream);
  std::vector<uint64_t> table(workload.slots);
  Cost allocate, free;
  const int cycles = kCycles / static_cast<int>(options.divisor) + 1;
  for (int repetition = -1; repetition < options.repetitions; ++repetition) {
    uint64_t allocate_time = 0;
    uint64_t free_time = 0;
    const bool warm = repetition >= 0;
    Cost ignored;
    const int count = warm ? cycles : kWarmUpCycles;
    for (int cycle = 0; cycle < count; ++cycle) {
      QUIRE_RETURN_IF_ERROR(RunPhase(contender, device.get(), workload.allocate,
                                     &table, &allocate_time,
                                     warm ? &allocate : &ignored));
      QUIRE_RETURN_IF_ERROR(RunPhase(contender, device.get(), workload.free,
                                     &table, &free_time,
                                     warm ? &free : &ignored));
    }
    if (!warm) continue;
    const double operations = static_cast<double>(kLive) * count;
    allocate.nanoseconds.push_back(static_cast<double>(allocate_time) /
                                   operations);
    free.nanoseconds.push_back(static_cast<double>(free_time) / operations);
  }
  const char* const where = own_stream ? "one stream" : "no stream";
  const double operations =
      static_cast<double>(kLive) * cycles * options.repetitions;
  const auto add = [&](const char* what, const char* unit, double value,
                       std::optional<double> bar, std::optional<double> aim) {
    section->figures.push_back(
        {.name = absl::StrFormat("%s, %s, %s", size.name, what, where),
         .unit = unit,
         .value = value,
         .bar = bar,
         .aim = aim});
  };
  add("allocate", "ns", Median(allocate.nanoseconds), 500, 200);
  add("driver calls an allocation", "calls",
      static_cast<double>(allocate.driver_calls) / operations, 0, std::nullopt);
  add("free", "ns", Median(free.nanoseconds), std::nullopt, std::nullopt);
  add("driver calls a free", "calls",
      static_cast<double>(free.driver_calls) / operations, std::nullopt,
      std::nullopt);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Section> MeasureReuse(const BenchOptions& options) {
  PinThread(AllowedProcessors().front());
  Section section;
  section.name = "reuse";
  section.title = absl::StrFormat(
      "%u large allocations, freed in random order, again and again", kLive);
  section.method =
      "one thread, its processor time; the clock's own calls, twice every 16 "
      "operations, are in it";
  for (const SizeCase& size : kSizes) {
    for (const bool own_stream : {false, true}) {
      QUIRE_RETURN_IF_ERROR(MeasureCase(size, own_stream, options, &section));
    }
  }
  return section;
}

}  // namespace quire
