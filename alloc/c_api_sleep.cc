// The C interface of owners that sleep.

#include <span>
#include <vector>

#include "absl/strings/str_format.h"
#include "alloc/c_api_internal.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/sleep.h"

using quire::OwnerId;
using quire::StreamId;
using quire::c_api::Call;
using quire::c_api::CheckArguments;
using quire::c_api::ReadOptions;
using quire::c_api::WriteResult;

namespace {

absl::StatusOr<quire::SleepTarget> TargetOf(quire_sleep_target target) {
  switch (target) {
    case QUIRE_SLEEP_HOST:
      return quire::SleepTarget::kHost;
    case QUIRE_SLEEP_DISK:
      return quire::SleepTarget::kDisk;
    case QUIRE_SLEEP_DROP:
      return quire::SleepTarget::kDrop;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("%d is no target of sleep", target));
  }
}

absl::Status CheckReport(const quire_sleep_report* report) {
  if (report == nullptr) return absl::OkStatus();
  return quire::c_api::CheckStructSize(
      "quire_sleep_report", report->size,
      quire::c_api::kFirstSize<quire_sleep_report>);
}

absl::Status WriteReport(const quire::SleepReport& from,
                         quire_sleep_report* report) {
  if (report == nullptr) return absl::OkStatus();
  quire_sleep_report values{};
  values.bytes_moved = from.bytes_moved.value();
  values.pages = from.pages.value();
  values.pages_freed = from.pages_freed.value();
  values.driver_calls = from.driver_calls;
  values.seconds = from.seconds;
  return WriteResult("quire_sleep_report", values, report);
}

}  // namespace

quire_status quire_allocator_sleep(quire_allocator* allocator, uint32_t owner,
                                   const quire_sleep_options* options,
                                   quire_sleep_report* report) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    // A sleep that succeeds is not to be undone for want of a report.
    QUIRE_RETURN_IF_ERROR(CheckReport(report));
    QUIRE_ASSIGN_OR_RETURN(const quire_sleep_options known,
                           ReadOptions("quire_sleep_options", options));
    if (known.stream_count > 0) {
      QUIRE_RETURN_IF_ERROR(CheckArguments({{"streams", known.streams}}));
    }
    quire::SleepOptions sleep_options;
    QUIRE_ASSIGN_OR_RETURN(sleep_options.target, TargetOf(known.target));
    if (known.folder != nullptr) sleep_options.folder = known.folder;
    std::vector<StreamId> streams;
    for (uint64_t i = 0; i < known.stream_count; ++i) {
      streams.emplace_back(known.streams[i]);
    }
    QUIRE_ASSIGN_OR_RETURN(const quire::QuiescentSection section,
                           quire::QuiescentSection::Begin(
                               allocator->allocator->memory(), streams));
    QUIRE_ASSIGN_OR_RETURN(
        const quire::SleepReport slept,
        allocator->allocator->Sleep(section, OwnerId(owner), sleep_options));
    return WriteReport(slept, report);
  });
}

quire_status quire_allocator_wake(quire_allocator* allocator, uint32_t owner,
                                  int32_t zero_dropped,
                                  quire_sleep_report* report) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    QUIRE_RETURN_IF_ERROR(CheckReport(report));
    QUIRE_ASSIGN_OR_RETURN(
        const quire::SleepReport woken,
        allocator->allocator->Wake(OwnerId(owner),
                                   {.zero_dropped = zero_dropped != 0}));
    return WriteReport(woken, report);
  });
}
