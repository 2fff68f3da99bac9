// The C interface of owners that sleep.

#include <memory>
#include <utility>
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
  return quire::c_api::CheckOptionalResult("quire_sleep_report", report);
}

absl::Status WriteReport(const quire::SleepReport& from,
                         quire_sleep_report* report) {
  quire_sleep_report values = QUIRE_SLEEP_REPORT_INIT;
  values.bytes_moved = from.bytes_moved.value();
  values.pages = from.pages.value();
  values.pages_freed = from.pages_freed.value();
  values.driver_calls = from.driver_calls;
  values.seconds = from.seconds;
  return quire::c_api::WriteOptionalResult("quire_sleep_report", values,
                                           report);
}

// The section that the caller has open, or one for the time of the call.
absl::StatusOr<std::shared_ptr<const quire::QuiescentSection>> SectionFor(
    const quire_sleep_options& options, quire::DeviceMemory* memory) {
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<StreamId> streams,
      quire::c_api::ReadStreams(options.streams, options.stream_count));
  if (options.section == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(quire::QuiescentSection section,
                           quire::QuiescentSection::Begin(memory, streams));
    return std::make_shared<const quire::QuiescentSection>(std::move(section));
  }
  if (!streams.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sleep has a section, which has waited already, and %u streams to wait "
        "for",
        streams.size()));
  }
  return options.section->section;
}

}  // namespace

quire_status quire_allocator_sleep(quire_allocator* allocator, uint32_t owner,
                                   const quire_sleep_options* options,
                                   quire_sleep_report* report) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    QUIRE_RETURN_IF_ERROR(CheckReport(report));
    QUIRE_ASSIGN_OR_RETURN(const quire_sleep_options known,
                           ReadOptions("quire_sleep_options", options));
    quire::SleepOptions sleep_options;
    QUIRE_ASSIGN_OR_RETURN(sleep_options.target, TargetOf(known.target));
    if (known.folder != nullptr) sleep_options.folder = known.folder;
    QUIRE_ASSIGN_OR_RETURN(const auto section,
                           SectionFor(known, allocator->allocator->memory()));
    QUIRE_ASSIGN_OR_RETURN(
        const quire::SleepReport slept,
        allocator->allocator->Sleep(*section, OwnerId(owner), sleep_options));
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
