// What an operation costs with a thousand live allocations, and with a million.

#include <algorithm>
#include <memory>
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

constexpr uint32_t kLiveCounts[] = {1000, 10'000, 100'000, 1'000'000};
constexpr uint32_t kPairs = 200'000;
// Small, since mimalloc writes into the first bytes of what it has free, and a
// million pages of the host would be measured rather than an allocator.
constexpr SizeRange kSizes = {256, 4096};

// ns of an operation with so many live allocations.
struct Costs {
  std::vector<double> no_stream;
  std::vector<double> one_stream;
  std::vector<double> mimalloc;
  double metadata_share = 0;  // of mapped bytes
};

template <typename Contender>
absl::Status Run(Contender& contender, const std::vector<Operation>& operations,
                 std::vector<uint64_t>* table, std::vector<double>* costs) {
  const std::optional<double> nanoseconds =
      TimeOperations(contender, operations, table);
  if (!nanoseconds) return absl::InternalError("an operation failed");
  if (costs != nullptr) costs->push_back(*nanoseconds);
  return absl::OkStatus();
}

absl::StatusOr<Costs> MeasureCount(uint32_t live, const BenchOptions& options) {
  const ChurnWorkload workload =
      MakeChurnWorkload(live, kPairs / options.divisor, kSizes, options.seed);
  QUIRE_ASSIGN_OR_RETURN(const auto plain, BenchDevice::Create(GiB(64)));
  QUIRE_ASSIGN_OR_RETURN(const auto streamed, BenchDevice::Create(GiB(64)));
  QUIRE_ASSIGN_OR_RETURN(const StreamId stream, streamed->CreateStream());
  QuireContender on_no_stream(plain->allocator(), StreamId());
  QuireContender on_stream(streamed->allocator(), stream);
  const Mimalloc* const mimalloc = Mimalloc::Get();
  std::vector<uint64_t> no_stream_table(live), stream_table(live),
      mimalloc_table(live);
  // Filling is not measured, and mimalloc's pages are there afterwards.
  if (mimalloc != nullptr) {
    FaultingMimalloc faulting(mimalloc);
    QUIRE_RETURN_IF_ERROR(
        Run(faulting, workload.fill, &mimalloc_table, nullptr));
  }
  QUIRE_RETURN_IF_ERROR(
      Run(on_no_stream, workload.fill, &no_stream_table, nullptr));
  QUIRE_RETURN_IF_ERROR(Run(on_stream, workload.fill, &stream_table, nullptr));
  const auto run = [&](const std::vector<Operation>& operations,
                       Costs* costs) -> absl::Status {
    QUIRE_RETURN_IF_ERROR(Run(on_no_stream, operations, &no_stream_table,
                              costs ? &costs->no_stream : nullptr));
    QUIRE_RETURN_IF_ERROR(Run(on_stream, operations, &stream_table,
                              costs ? &costs->one_stream : nullptr));
    if (mimalloc == nullptr) return absl::OkStatus();
    return Run(*mimalloc, operations, &mimalloc_table,
               costs ? &costs->mimalloc : nullptr);
  };
  Costs costs;
  QUIRE_RETURN_IF_ERROR(run(workload.churn, nullptr));
  for (int i = 0; i < options.repetitions; ++i) {
    QUIRE_RETURN_IF_ERROR(run(workload.churn, &costs));
  }
  const AllocatorStatistics statistics = plain->allocator()->GetStatistics();
  costs.metadata_share = static_cast<double>(statistics.metadata_bytes) /
                         static_cast<double>(statistics.mapped_bytes);
  QUIRE_RETURN_IF_ERROR(run(workload.drain, nullptr));
  return costs;
}

}  // namespace

absl::StatusOr<Section> MeasureScaling(const BenchOptions& options) {
  PinThread(AllowedProcessors().front());
  Section section;
  section.name = "scaling";
  section.title =
      "one of many live allocations of 256 B to 4 KiB, drawn at random, is "
      "freed "
      "and another takes its place; ns per operation";
  section.method = "one thread, its processor time; no memory is touched";
  std::vector<Costs> all;
  std::vector<uint32_t> counts;
  for (const uint32_t live : kLiveCounts) {
    counts.push_back(std::max(live / options.divisor, 1u));
    QUIRE_ASSIGN_OR_RETURN(Costs costs, MeasureCount(counts.back(), options));
    all.push_back(std::move(costs));
  }
  const bool with_mimalloc = !all.front().mimalloc.empty();
  const auto growth = [&](std::vector<double> Costs::*of) {
    return Median(all.back().*of) / Median(all.front().*of);
  };
  const auto add = [&](std::vector<double> Costs::*costs, const char* where) {
    for (size_t i = 0; i < all.size(); ++i) {
      section.figures.push_back(
          {.name = absl::StrFormat("%u live, %s", counts[i], where),
           .unit = "ns",
           .value = Median(all[i].*costs),
           .mimalloc = with_mimalloc ? std::optional(Median(all[i].mimalloc))
                                     : std::nullopt});
    }
    section.figures.push_back(
        {.name = absl::StrFormat("growth from %u to %u live, %s",
                                 counts.front(), counts.back(), where),
         .unit = "x",
         .value = growth(costs),
         .mimalloc = with_mimalloc ? std::optional(growth(&Costs::mimalloc))
                                   : std::nullopt,
         .mimalloc_bar = 1});
  };
  add(&Costs::no_stream, "no stream");
  add(&Costs::one_stream, "one stream");
  section.figures.push_back(
      {.name =
           absl::StrFormat("host metadata / mapped, %u live", counts.back()),
       .unit = "x",
       .value = all.back().metadata_share,
       .bar = 0.01});
  return section;
}

}  // namespace quire
