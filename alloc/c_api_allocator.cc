// The C interface of the allocator.

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/c_api_internal.h"
#include "alloc/c_api_listener.h"
#include "quire/alloc/leak_report.h"

using quire::Bytes;
using quire::DeviceAddress;
using quire::OwnerId;
using quire::StreamId;
using quire::c_api::Call;
using quire::c_api::CheckArguments;
using quire::c_api::ReadOptions;
using quire::c_api::WriteResult;

namespace {

// What an allocator stands on; destroyed from the bottom up.
struct CreatedAllocator {
  CreatedAllocator() = default;
  CreatedAllocator(const CreatedAllocator&) = delete;
  CreatedAllocator& operator=(const CreatedAllocator&) = delete;
  ~CreatedAllocator() {
    if (on_leaks == nullptr || allocator == nullptr) return;
    // There is nobody to return an error to: a report is lost where the host
    // has no memory for it.
    (void)Call([&] {
      const auto leaks = quire::FindLeaks(*allocator);
      if (leaks.empty()) return absl::OkStatus();
      const quire_leak_totals totals = quire::c_api::TotalsOf(leaks);
      on_leaks(leak_context, &totals, quire::FormatLeaks(leaks).c_str());
      return absl::OkStatus();
    });
  }

  std::shared_ptr<quire::DeviceMemory> memory;
  std::unique_ptr<quire::CompactionListener> listener;
  std::unique_ptr<quire::DeviceAllocator> allocator;
  decltype(quire_allocator_options::on_leaks) on_leaks = nullptr;
  void* leak_context = nullptr;
};

}  // namespace

quire_status quire_runtime_get_allocator(quire_runtime* runtime, int32_t device,
                                         quire_allocator** allocator) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"runtime", runtime}, {"allocator", allocator}}));
    QUIRE_RETURN_IF_ERROR(quire::c_api::CheckDevice(*runtime->runtime, device));
    *allocator = new quire_allocator{std::shared_ptr<quire::DeviceAllocator>(
        runtime->runtime,
        runtime->runtime->allocator(quire::DeviceId(device)))};
    return absl::OkStatus();
  });
}

quire_status quire_allocator_create(quire_memory* memory,
                                    const quire_allocator_options* options,
                                    quire_allocator** allocator) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"memory", memory}, {"allocator", allocator}}));
    QUIRE_ASSIGN_OR_RETURN(const quire_allocator_options known,
                           ReadOptions("quire_allocator_options", options));
    quire::DeviceAllocatorOptions allocator_options;
    if (known.seed != 0) allocator_options.seed = known.seed;
    if (known.fence_batch != 0) {
      allocator_options.fence_batch = Bytes(known.fence_batch);
    }
    if (known.thread_cache != 0) {
      allocator_options.thread_cache = Bytes(known.thread_cache);
    }
    auto created = std::make_shared<CreatedAllocator>();
    created->memory = memory->memory;
    created->on_leaks = known.on_leaks;
    created->leak_context = known.leak_context;
    QUIRE_ASSIGN_OR_RETURN(created->listener,
                           quire::c_api::CreateListener(known.listener));
    allocator_options.listener = created->listener.get();
    created->allocator =
        quire::DeviceAllocator::Create(memory->memory.get(), allocator_options);
    quire::DeviceAllocator* const face = created->allocator.get();
    *allocator = new quire_allocator{
        std::shared_ptr<quire::DeviceAllocator>(std::move(created), face)};
    return absl::OkStatus();
  });
}

void quire_allocator_destroy(quire_allocator* allocator) noexcept {
  delete allocator;
}

quire_status quire_allocator_allocate(quire_allocator* allocator,
                                      uint64_t bytes,
                                      const quire_allocate_options* options,
                                      uint64_t* address) noexcept {
  quire::AllocateOptions allocate_options;
  allocate_options.caller = __builtin_return_address(0);
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"address", address}}));
    if (options != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(const quire_allocate_options known,
                             ReadOptions("quire_allocate_options", options));
      allocate_options.stream = StreamId(known.stream);
      allocate_options.owner = OwnerId(known.owner);
      if (known.alignment != 0) {
        allocate_options.alignment = Bytes(known.alignment);
      }
      allocate_options.movable = known.movable != 0;
    }
    QUIRE_ASSIGN_OR_RETURN(
        const DeviceAddress allocated,
        allocator->allocator->Allocate(Bytes(bytes), allocate_options));
    *address = allocated.value();
    return absl::OkStatus();
  });
}

quire_status quire_allocator_free(quire_allocator* allocator, uint64_t address,
                                  uint64_t stream) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    if (address == 0) return absl::OkStatus();
    return allocator->allocator->Free(DeviceAddress(address), StreamId(stream));
  });
}

quire_status quire_allocator_record_stream(quire_allocator* allocator,
                                           uint64_t address,
                                           uint64_t stream) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    return allocator->allocator->RecordStream(DeviceAddress(address),
                                              StreamId(stream));
  });
}

quire_status quire_allocator_find(const quire_allocator* allocator,
                                  uint64_t address,
                                  quire_allocation_info* info) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"info", info}}));
    const std::optional<quire::AllocationInfo> found =
        allocator->allocator->Find(DeviceAddress(address));
    if (!found) {
      return absl::NotFoundError(
          absl::StrFormat("0x%x lies in no live allocation", address));
    }
    quire_allocation_info values{};
    values.address = found->address.value();
    values.requested = found->requested.value();
    values.allocated = found->allocated.value();
    values.stream = found->stream.value();
    values.owner = found->owner.value();
    return WriteResult("quire_allocation_info", values, info);
  });
}

quire_status quire_allocator_get_owner_of(const quire_allocator* allocator,
                                          uint64_t address,
                                          uint32_t* owner) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"owner", owner}}));
    const std::optional<OwnerId> found =
        allocator->allocator->OwnerOf(DeviceAddress(address));
    if (!found) {
      return absl::NotFoundError(
          absl::StrFormat("0x%x is not of this allocator", address));
    }
    *owner = found->value();
    return absl::OkStatus();
  });
}

quire_status quire_allocator_trim(quire_allocator* allocator, uint64_t keep,
                                  uint64_t* bytes_given_back) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    const quire::CompactionReport report =
        allocator->allocator->Trim(Bytes(keep));
    if (bytes_given_back != nullptr) {
      *bytes_given_back = report.pages_freed.value() *
                          allocator->allocator->memory()->page_size().value();
    }
    return absl::OkStatus();
  });
}

quire_status quire_allocator_get_statistics(
    const quire_allocator* allocator,
    quire_allocator_statistics* statistics) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"statistics", statistics}}));
    const quire::AllocatorStatistics from =
        allocator->allocator->GetStatistics();
    quire_allocator_statistics values{};
    values.version = QUIRE_ALLOCATOR_STATISTICS_VERSION;
    static_assert(QUIRE_ALLOCATOR_STATISTICS_VERSION ==
                  quire::AllocatorStatistics::kVersion);
    // A statistic without a field does not compile: add it at the end of the
    // struct, and raise the version.
#define QUIRE_COPY_STATISTIC(name, help) values.name = from.name;
    QUIRE_ALLOCATOR_STATISTICS(QUIRE_COPY_STATISTIC)
#undef QUIRE_COPY_STATISTIC
    return WriteResult("quire_allocator_statistics", values, statistics);
  });
}

quire_status quire_allocator_get_largest_possible(
    const quire_allocator* allocator, uint64_t* bytes) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"bytes", bytes}}));
    *bytes = allocator->allocator->GetLargestPossible().value();
    return absl::OkStatus();
  });
}

quire_status quire_allocator_get_largest_possible_for(
    const quire_allocator* allocator, uint32_t owner,
    uint64_t* bytes) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"bytes", bytes}}));
    QUIRE_RETURN_IF_ERROR(quire::CheckOwner(OwnerId(owner)));
    *bytes = allocator->allocator->GetLargestPossible(OwnerId(owner)).value();
    return absl::OkStatus();
  });
}

quire_status quire_allocator_check_invariants(
    const quire_allocator* allocator) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    return allocator->allocator->CheckInvariants();
  });
}
