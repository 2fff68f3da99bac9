// The C interface of a device's pool of pages.

#include <vector>

#include "alloc/c_api_internal.h"

using quire::PageCount;
using quire::c_api::Call;
using quire::c_api::CheckArguments;

namespace {

uint64_t ValueOf(uint64_t count) { return count; }
uint64_t ValueOf(quire::Bytes bytes) { return bytes.value(); }

}  // namespace

quire_status quire_runtime_get_memory(quire_runtime* runtime, int32_t device,
                                      quire_memory** memory) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"runtime", runtime}, {"memory", memory}}));
    QUIRE_RETURN_IF_ERROR(quire::c_api::CheckDevice(*runtime->runtime, device));
    *memory = new quire_memory{
        runtime->runtime, runtime->runtime->memory(quire::DeviceId(device))};
    return absl::OkStatus();
  });
}

void quire_memory_destroy(quire_memory* memory) noexcept { delete memory; }

quire_status quire_memory_get_statistics(
    const quire_memory* memory, quire_memory_statistics* statistics) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"memory", memory}, {"statistics", statistics}}));
    const quire::DeviceMemoryStatistics from = memory->memory->GetStatistics();
    quire_memory_statistics values{};
    values.version = QUIRE_MEMORY_STATISTICS_VERSION;
    // A statistic without a field does not compile: add it at the end of the
    // struct, and raise the version.
#define QUIRE_COPY_STATISTIC(type, name, help) values.name = ValueOf(from.name);
    QUIRE_DEVICE_MEMORY_STATISTICS(QUIRE_COPY_STATISTIC)
#undef QUIRE_COPY_STATISTIC
    return quire::c_api::WriteResult("quire_memory_statistics", values,
                                     statistics);
  });
}

quire_status quire_memory_get_owner_live_bytes(const quire_memory* memory,
                                               uint32_t owner,
                                               uint64_t* bytes) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"memory", memory}, {"bytes", bytes}}));
    const std::vector<quire::Bytes> live = memory->memory->GetLiveByOwner();
    *bytes = owner < live.size() ? live[owner].value() : 0;
    return absl::OkStatus();
  });
}

quire_status quire_memory_prepare(quire_memory* memory,
                                  uint64_t pages) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"memory", memory}}));
    return memory->memory->Prepare(PageCount(pages));
  });
}

quire_status quire_memory_trim(quire_memory* memory, uint64_t keep_pages,
                               uint64_t* pages_given_back) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"memory", memory}}));
    const PageCount given_back = memory->memory->Trim(PageCount(keep_pages));
    if (pages_given_back != nullptr) *pages_given_back = given_back.value();
    return absl::OkStatus();
  });
}

quire_status quire_memory_check_health(const quire_memory* memory) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"memory", memory}}));
    return memory->memory->Health();
  });
}
