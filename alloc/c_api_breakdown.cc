// The C interface of statistics by size class, stream and owner.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "alloc/c_api_internal.h"
#include "quire/alloc/allocator_breakdown.h"

struct quire_allocator_breakdown {
  quire::AllocatorBreakdown rows;
};

using quire::AllocatorBreakdown;
using quire::c_api::Call;
using quire::c_api::CheckArguments;
using quire::c_api::WriteResult;

namespace {

static_assert(QUIRE_ALLOCATOR_BREAKDOWN_VERSION ==
              AllocatorBreakdown::kVersion);

// A statistic without a field does not compile: add it at the end of the
// struct, and raise the version.
#define QUIRE_COPY_STATISTIC(name, help) to.name = from.name;

void Fill(const quire::SizeClassStatistics& from,
          quire_size_class_statistics& to) {
  QUIRE_SIZE_CLASS_STATISTICS(QUIRE_COPY_STATISTIC)
  to.internal_fragmentation = from.internal_fragmentation();
  to.external_fragmentation = from.external_fragmentation();
}

void Fill(const quire::StreamStatistics& from, quire_stream_statistics& to) {
  to.stream = from.stream.value();
  QUIRE_STREAM_STATISTICS(QUIRE_COPY_STATISTIC)
}

void Fill(const quire::OwnerUseStatistics& from,
          quire_owner_use_statistics& to) {
  to.owner = from.owner.value();
  QUIRE_OWNER_USE_STATISTICS(QUIRE_COPY_STATISTIC)
  to.internal_fragmentation = from.internal_fragmentation();
  to.external_fragmentation = from.external_fragmentation();
}

#undef QUIRE_COPY_STATISTIC

// `name` is that of the struct.
template <typename Row, typename Result>
quire_status GetRow(const quire_allocator_breakdown* breakdown,
                    std::vector<Row> AllocatorBreakdown::*rows, uint64_t index,
                    const char* name, Result* statistics) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"breakdown", breakdown}, {"statistics", statistics}}));
    const std::vector<Row>& all = breakdown->rows.*rows;
    if (index >= all.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s %u of a breakdown that has %u", name, index, all.size()));
    }
    Result values{};
    values.version = QUIRE_ALLOCATOR_BREAKDOWN_VERSION;
    Fill(all[index], values);
    return WriteResult(name, values, statistics);
  });
}

}  // namespace

quire_status quire_allocator_calculate_breakdown(
    const quire_allocator* allocator,
    quire_allocator_breakdown** breakdown) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"breakdown", breakdown}}));
    *breakdown = new quire_allocator_breakdown{
        allocator->allocator->CalculateStatistics()};
    return absl::OkStatus();
  });
}

void quire_allocator_breakdown_destroy(
    quire_allocator_breakdown* breakdown) noexcept {
  delete breakdown;
}

quire_status quire_allocator_breakdown_get_counts(
    const quire_allocator_breakdown* breakdown, uint64_t* classes,
    uint64_t* streams, uint64_t* owners) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"breakdown", breakdown}}));
    if (classes != nullptr) *classes = breakdown->rows.classes.size();
    if (streams != nullptr) *streams = breakdown->rows.streams.size();
    if (owners != nullptr) *owners = breakdown->rows.owners.size();
    return absl::OkStatus();
  });
}

quire_status quire_allocator_breakdown_get_class(
    const quire_allocator_breakdown* breakdown, uint64_t index,
    quire_size_class_statistics* statistics) noexcept {
  return GetRow(breakdown, &AllocatorBreakdown::classes, index,
                "quire_size_class_statistics", statistics);
}

quire_status quire_allocator_breakdown_get_stream(
    const quire_allocator_breakdown* breakdown, uint64_t index,
    quire_stream_statistics* statistics) noexcept {
  return GetRow(breakdown, &AllocatorBreakdown::streams, index,
                "quire_stream_statistics", statistics);
}

quire_status quire_allocator_breakdown_get_owner(
    const quire_allocator_breakdown* breakdown, uint64_t index,
    quire_owner_use_statistics* statistics) noexcept {
  return GetRow(breakdown, &AllocatorBreakdown::owners, index,
                "quire_owner_use_statistics", statistics);
}
