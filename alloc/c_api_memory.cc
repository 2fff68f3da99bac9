// The C interface of a device's pool of pages.

#include "alloc/c_api_internal.h"
#include "quire/alloc/memory_limits.h"

using quire::Bytes;
using quire::OwnerId;
using quire::PageCount;
using quire::c_api::Call;
using quire::c_api::CheckArguments;

namespace {

uint64_t ValueOf(uint64_t count) { return count; }
uint64_t ValueOf(Bytes bytes) { return bytes.value(); }

}  // namespace

quire_status quire_runtime_get_memory(quire_runtime* runtime, int32_t device,
                                      quire_memory** memory) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"runtime", runtime}, {"memory", memory}}));
    QUIRE_RETURN_IF_ERROR(quire::c_api::CheckDevice(*runtime->runtime, device));
    *memory = new quire_memory{std::shared_ptr<quire::DeviceMemory>(
        runtime->runtime, runtime->runtime->memory(quire::DeviceId(device)))};
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
    static_assert(QUIRE_MEMORY_STATISTICS_VERSION ==
                  quire::DeviceMemoryStatistics::kVersion);
    // A statistic without a field does not compile: add it at the end of the
    // struct, and raise the version.
#define QUIRE_COPY_STATISTIC(type, name, help) values.name = ValueOf(from.name);
    QUIRE_DEVICE_MEMORY_STATISTICS(QUIRE_COPY_STATISTIC)
#undef QUIRE_COPY_STATISTIC
    return quire::c_api::WriteResult("quire_memory_statistics", values,
                                     statistics);
  });
}

quire_status quire_memory_set_limit(quire_memory* memory,
                                    uint64_t limit) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"memory", memory}}));
    return memory->memory->SetLimit(Bytes(limit));
  });
}

quire_status quire_memory_set_soft_limit(quire_memory* memory,
                                         uint64_t limit) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"memory", memory}}));
    return memory->memory->SetSoftLimit(Bytes(limit));
  });
}

quire_status quire_memory_limit_from_utilization(const quire_memory* memory,
                                                 double fraction,
                                                 uint64_t headroom,
                                                 uint64_t* limit) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"memory", memory}, {"limit", limit}}));
    QUIRE_ASSIGN_OR_RETURN(
        const quire::DeviceMemoryInfo info,
        memory->memory->driver()->GetMemoryInfo(memory->memory->device()));
    QUIRE_ASSIGN_OR_RETURN(
        const Bytes computed,
        quire::LimitFromUtilization(info, fraction, Bytes(headroom),
                                    memory->memory->GetStatistics().in_use));
    *limit = computed.value();
    return absl::OkStatus();
  });
}

quire_status quire_memory_set_owner_limits(
    quire_memory* memory, uint32_t owner,
    const quire_owner_limits* limits) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"memory", memory}, {"limits", limits}}));
    QUIRE_ASSIGN_OR_RETURN(
        const quire_owner_limits known,
        quire::c_api::ReadOptions("quire_owner_limits", limits));
    return memory->memory->SetOwnerLimits(
        OwnerId(owner), {.soft = Bytes(known.soft),
                         .hard = Bytes(known.hard),
                         .reserved_minimum = Bytes(known.reserved_minimum)});
  });
}

quire_status quire_memory_get_owner_statistics(
    const quire_memory* memory, uint32_t owner,
    quire_owner_statistics* statistics) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"memory", memory}, {"statistics", statistics}}));
    const quire::OwnerStatistics from =
        memory->memory->GetOwnerStatistics(OwnerId(owner));
    quire_owner_statistics values{};
    values.version = QUIRE_OWNER_STATISTICS_VERSION;
    values.owner = owner;
    values.own_live = from.own_live.value();
    values.live = from.live.value();
    values.peak_live = from.peak_live.value();
    values.soft_limit = from.limits.soft.value();
    values.hard_limit = from.limits.hard.value();
    values.reserved_minimum = from.limits.reserved_minimum.value();
    values.hard_room = from.hard_room.value();
    values.allowance = from.allowance.value();
    values.over_soft = from.over_soft.value();
    values.over_hard = from.over_hard.value();
    values.asleep = from.asleep.value();
    values.pressure = quire::c_api::PressureOf(from.pressure);
    return quire::c_api::WriteResult("quire_owner_statistics", values,
                                     statistics);
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
    const quire::CompactionReport report =
        memory->memory->Trim(PageCount(keep_pages));
    if (pages_given_back != nullptr) {
      *pages_given_back = report.pages_freed.value();
    }
    return absl::OkStatus();
  });
}

quire_status quire_memory_check_health(const quire_memory* memory) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"memory", memory}}));
    return memory->memory->Health();
  });
}
