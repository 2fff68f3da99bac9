// Small working sets: few blocks are live of any class, so that classes could
// take their pages from one another all the time.

#include <optional>
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

constexpr uint32_t kPairs = 20000;
constexpr int kWarmUps = 2;

absl::Status MeasureLive(uint32_t live, const BenchOptions& options,
                         Section* section) {
  QUIRE_ASSIGN_OR_RETURN(const auto device, BenchDevice::Create(GiB(64)));
  QUIRE_ASSIGN_OR_RETURN(const StreamId stream, device->CreateStream());
  QuireContender contender(device->allocator(), stream);
  const ChurnWorkload workload =
      MakeChurnWorkload(live, kPairs, {256, 1 << 20}, options.seed);
  std::vector<uint64_t> table(workload.slots);
  if (!RunOperations(contender, workload.fill, &table)) {
    return absl::InternalError("an allocation failed");
  }
  std::vector<double> nanoseconds;
  uint64_t calls = 0;
  for (int i = -kWarmUps; i < options.repetitions; ++i) {
    if (i == 0) calls = device->driver_calls();
    const std::optional<double> taken =
        TimeOperations(contender, workload.churn, &table);
    if (!taken) return absl::InternalError("an operation failed");
    if (i >= 0) nanoseconds.push_back(*taken);
  }
  calls = device->driver_calls() - calls;
  const double operations =
      static_cast<double>(workload.churn.size()) * options.repetitions;
  const auto add = [&](const char* what, const char* unit, double value) {
    section->figures.push_back(
        {.name = absl::StrFormat("%u live, %s", live, what),
         .unit = unit,
         .value = value});
  };
  add("allocate or free", "ns", Median(nanoseconds));
  add("driver calls a thousand operations", "calls",
      1000 * static_cast<double>(calls) / operations);
  add("mapped at the peak", "MiB",
      static_cast<double>(
          device->allocator()->GetStatistics().peak_mapped_bytes) /
          static_cast<double>(MiB(1).value()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Section> MeasureFew(const BenchOptions& options) {
  PinThread(AllowedProcessors().front());
  Section section;
  section.name = "few";
  section.title =
      "few live blocks of 256 B to 1 MiB, log-uniform, one freed and another "
      "allocated in turn";
  section.method = absl::StrFormat(
      "one thread, its processor time, on one stream; after %u operations",
      2 * kWarmUps * kPairs);
  for (const uint32_t live : {8u, 24u, 72u, 360u}) {
    QUIRE_RETURN_IF_ERROR(MeasureLive(live, options, &section));
  }
  return section;
}

}  // namespace quire
