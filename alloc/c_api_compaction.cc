// The C interface of quiescent sections, of mesh and policies, and of pins.

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "alloc/c_api_internal.h"

using quire::Bytes;
using quire::CompactionReport;
using quire::DeviceAddress;
using quire::OwnerId;
using quire::StreamId;
using quire::c_api::Call;
using quire::c_api::CheckArguments;
using quire::c_api::CheckOptionalResult;
using quire::c_api::ReadOptions;
using quire::c_api::ReportOf;
using quire::c_api::WriteOptionalResult;

namespace {

constexpr uint32_t kSecondsPerDay = 24 * 60 * 60;

// 0 leaves the default.
absl::Status ReadThreshold(const char* name, double from, double* threshold) {
  if (std::isnan(from) || from < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %g, which is no threshold", name, from));
  }
  if (from > 0) *threshold = from;
  return absl::OkStatus();
}

absl::StatusOr<quire::ThresholdPolicy::Thresholds> ThresholdsOf(
    const quire_compaction_thresholds* from) {
  QUIRE_ASSIGN_OR_RETURN(const quire_compaction_thresholds known,
                         ReadOptions("quire_compaction_thresholds", from));
  quire::ThresholdPolicy::Thresholds thresholds;
  QUIRE_RETURN_IF_ERROR(
      ReadThreshold("pool_in_use", known.pool_in_use, &thresholds.pool_in_use));
  QUIRE_RETURN_IF_ERROR(
      ReadThreshold("pinned", known.pinned, &thresholds.pinned));
  QUIRE_RETURN_IF_ERROR(ReadThreshold("least_seconds", known.least_seconds,
                                      &thresholds.least_interval));
  QUIRE_RETURN_IF_ERROR(
      ReadThreshold("idle_seconds", known.idle_seconds, &thresholds.idle));
  thresholds.maintenance = {known.maintenance_begin, known.maintenance_end};
  for (const uint32_t time : {known.maintenance_begin, known.maintenance_end}) {
    if (time > kSecondsPerDay) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "maintenance at second %u of a day of %u", time, kSecondsPerDay));
    }
  }
  return thresholds;
}

}  // namespace

// ---- Quiescent sections -----------------------------------------------------

quire_status quire_quiescent_section_begin(
    quire_memory* memory, const uint64_t* streams, uint64_t stream_count,
    quire_quiescent_section** section) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"memory", memory}, {"section", section}}));
    QUIRE_ASSIGN_OR_RETURN(const std::vector<StreamId> waited_for,
                           quire::c_api::ReadStreams(streams, stream_count));
    // What a section stands on; destroyed from the bottom up.
    struct OpenSection {
      std::shared_ptr<quire::DeviceMemory> memory;
      quire::QuiescentSection section;
    };
    QUIRE_ASSIGN_OR_RETURN(
        quire::QuiescentSection begun,
        quire::QuiescentSection::Begin(memory->memory.get(), waited_for));
    auto open = std::make_shared<OpenSection>(
        OpenSection{memory->memory, std::move(begun)});
    const quire::QuiescentSection* const face = &open->section;
    *section = new quire_quiescent_section{
        std::shared_ptr<const quire::QuiescentSection>(std::move(open), face)};
    return absl::OkStatus();
  });
}

void quire_quiescent_section_end(quire_quiescent_section* section) noexcept {
  delete section;
}

// ---- Trim -------------------------------------------------------------------

quire_status quire_allocator_trim_with_report(
    quire_allocator* allocator, uint64_t keep,
    quire_compaction_report* report) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    QUIRE_RETURN_IF_ERROR(
        CheckOptionalResult("quire_compaction_report", report));
    return WriteOptionalResult(
        "quire_compaction_report",
        ReportOf(allocator->allocator->Trim(Bytes(keep))), report);
  });
}

quire_status quire_memory_trim_with_report(
    quire_memory* memory, uint64_t keep_pages,
    quire_compaction_report* report) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"memory", memory}}));
    QUIRE_RETURN_IF_ERROR(
        CheckOptionalResult("quire_compaction_report", report));
    return WriteOptionalResult(
        "quire_compaction_report",
        ReportOf(memory->memory->Trim(quire::PageCount(keep_pages))), report);
  });
}

// ---- Mesh -------------------------------------------------------------------

quire_status quire_allocator_mesh(quire_allocator* allocator,
                                  const quire_quiescent_section* section,
                                  const quire_mesh_options* options,
                                  quire_compaction_report* report) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"section", section}}));
    QUIRE_RETURN_IF_ERROR(
        CheckOptionalResult("quire_compaction_report", report));
    QUIRE_ASSIGN_OR_RETURN(const quire_mesh_options known,
                           ReadOptions("quire_mesh_options", options));
    quire::MeshOptions mesh_options;
    if (known.smallest_slot != 0) {
      mesh_options.smallest_slot = Bytes(known.smallest_slot);
    }
    if (known.of_one_owner != 0) mesh_options.owner = OwnerId(known.owner);
    QUIRE_ASSIGN_OR_RETURN(
        const CompactionReport meshed,
        allocator->allocator->Mesh(*section->section, mesh_options));
    return WriteOptionalResult("quire_compaction_report", ReportOf(meshed),
                               report);
  });
}

quire_status quire_allocator_compact(
    quire_allocator* allocator, const quire_quiescent_section* section,
    const quire_compaction_thresholds* thresholds,
    quire_compaction_report* report) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"section", section}}));
    QUIRE_RETURN_IF_ERROR(
        CheckOptionalResult("quire_compaction_report", report));
    QUIRE_ASSIGN_OR_RETURN(const quire::ThresholdPolicy::Thresholds known,
                           ThresholdsOf(thresholds));
    quire::ThresholdPolicy policy(known);
    QUIRE_ASSIGN_OR_RETURN(
        const CompactionReport done,
        allocator->allocator->Compact(*section->section, &policy));
    return WriteOptionalResult("quire_compaction_report", ReportOf(done),
                               report);
  });
}

// ---- Pins -------------------------------------------------------------------

quire_status quire_allocator_pin(quire_allocator* allocator,
                                 uint64_t address) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    return allocator->allocator->Pin(DeviceAddress(address));
  });
}

quire_status quire_allocator_unpin(quire_allocator* allocator,
                                   uint64_t address) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    return allocator->allocator->Unpin(DeviceAddress(address));
  });
}
