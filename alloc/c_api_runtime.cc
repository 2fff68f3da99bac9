// The C interface of the runtime: devices, streams, owners.

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "alloc/c_api_internal.h"
#include "alloc/c_api_listener.h"
#include "quire/alloc/cuda_driver.h"
#include "quire/alloc/host_driver.h"

namespace quire::c_api {
namespace {

constexpr int32_t kMaxHostDevices = 64;

absl::StatusOr<std::unique_ptr<Driver>> CreateDriver(
    const quire_runtime_options& options) {
  HostDriverOptions host;
  switch (options.driver) {
    case QUIRE_DRIVER_CUDA:
      return CreateCudaDriver();
    case QUIRE_DRIVER_HOST:
      break;
    case QUIRE_DRIVER_HOST_WITHOUT_MEMORY:
      host.backing = HostDriverOptions::Backing::kNone;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          options.driver, " is not one of the values of quire_driver_kind"));
  }
  if (options.host_device_count < 0 ||
      options.host_device_count > kMaxHostDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("host_device_count ", options.host_device_count,
                     " is not between 1 and ", kMaxHostDevices));
  }
  if (options.host_device_count != 0) {
    host.device_count = options.host_device_count;
  }
  if (options.host_memory_per_device != 0) {
    host.memory_per_device = Bytes(options.host_memory_per_device);
  }
  return HostDriver::Create(host);
}

RuntimeOptions RuntimeOptionsFrom(const quire_runtime_options& from) {
  RuntimeOptions options;
  if (from.page_size != 0) options.page_size = Bytes(from.page_size);
  options.limit = Bytes(from.limit);
  options.headroom = Bytes(from.headroom);
  options.prepare_ahead = PageCount(from.prepare_ahead);
  if (from.trace_capacity != 0) options.trace_capacity = from.trace_capacity;
  if (from.disable_trace != 0) options.trace_capacity = 0;
  options.sample_interval = Bytes(from.sample_interval);
  if (from.pressure_high != 0) options.pressure.high = from.pressure_high;
  if (from.pressure_critical != 0) {
    options.pressure.critical = from.pressure_critical;
  }
  if (from.pressure_hysteresis != 0) {
    options.pressure.hysteresis = from.pressure_hysteresis;
  }
  options.soft_limit = Bytes(from.soft_limit);
  if (from.seed != 0) options.seed = from.seed;
  if (from.on_leaks != nullptr) {
    options.on_leaks = [on_leaks = from.on_leaks, context = from.leak_context](
                           const std::vector<LeakReport>& leaks) {
      const quire_leak_totals totals = TotalsOf(leaks);
      on_leaks(context, &totals, FormatLeaks(leaks).c_str());
    };
  }
  return options;
}

// What a runtime stands on; destroyed from the bottom up.
struct CreatedRuntime {
  std::unique_ptr<CompactionListener> listener;
  std::unique_ptr<Runtime> runtime;
};

}  // namespace

absl::StatusOr<std::unique_ptr<quire_runtime>> CreateRuntime(
    const quire_runtime_options& options, std::unique_ptr<Driver> driver) {
  auto created = std::make_shared<CreatedRuntime>();
  QUIRE_ASSIGN_OR_RETURN(created->listener, CreateListener(options.listener));
  RuntimeOptions runtime_options = RuntimeOptionsFrom(options);
  runtime_options.listener = created->listener.get();
  QUIRE_ASSIGN_OR_RETURN(created->runtime,
                         Runtime::Create(std::move(driver), runtime_options));
  Runtime* const face = created->runtime.get();
  auto runtime = std::make_unique<quire_runtime>();
  runtime->runtime = std::shared_ptr<Runtime>(std::move(created), face);
  return runtime;
}

}  // namespace quire::c_api

using quire::DeviceId;
using quire::OwnerId;
using quire::StreamId;
using quire::c_api::Call;
using quire::c_api::CheckArguments;
using quire::c_api::CheckDevice;
using quire::c_api::WriteText;

quire_status quire_runtime_create(const quire_runtime_options* options,
                                  quire_runtime** runtime) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"runtime", runtime}}));
    QUIRE_ASSIGN_OR_RETURN(
        const quire_runtime_options known,
        quire::c_api::ReadOptions("quire_runtime_options", options));
    QUIRE_ASSIGN_OR_RETURN(auto driver, quire::c_api::CreateDriver(known));
    QUIRE_ASSIGN_OR_RETURN(
        auto created, quire::c_api::CreateRuntime(known, std::move(driver)));
    *runtime = created.release();
    return absl::OkStatus();
  });
}

void quire_runtime_destroy(quire_runtime* runtime) noexcept { delete runtime; }

quire_status quire_runtime_get_device_count(const quire_runtime* runtime,
                                            int32_t* count) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"runtime", runtime}, {"count", count}}));
    *count = runtime->runtime->device_count();
    return absl::OkStatus();
  });
}

// ---- Streams ----------------------------------------------------------------

quire_status quire_stream_create(quire_runtime* runtime, int32_t device,
                                 uint64_t* stream) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"runtime", runtime}, {"stream", stream}}));
    QUIRE_RETURN_IF_ERROR(CheckDevice(*runtime->runtime, device));
    QUIRE_ASSIGN_OR_RETURN(
        const StreamId created,
        runtime->runtime->driver()->CreateStream(DeviceId(device)));
    *stream = created.value();
    return absl::OkStatus();
  });
}

quire_status quire_stream_adopt(quire_runtime* runtime, int32_t device,
                                void* cuda_stream, uint64_t* stream) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"runtime", runtime}, {"stream", stream}}));
    QUIRE_RETURN_IF_ERROR(CheckDevice(*runtime->runtime, device));
    QUIRE_ASSIGN_OR_RETURN(
        const StreamId adopted,
        runtime->runtime->driver()->AdoptStream(DeviceId(device), cuda_stream));
    *stream = adopted.value();
    return absl::OkStatus();
  });
}

quire_status quire_stream_destroy(quire_runtime* runtime,
                                  uint64_t stream) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"runtime", runtime}}));
    return runtime->runtime->driver()->DestroyStream(StreamId(stream));
  });
}

quire_status quire_stream_synchronize(quire_runtime* runtime,
                                      uint64_t stream) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"runtime", runtime}}));
    return runtime->runtime->driver()->SynchronizeStream(StreamId(stream));
  });
}

// ---- Owners -----------------------------------------------------------------

quire_status quire_owner_register(quire_runtime* runtime, const char* name,
                                  uint32_t* owner) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments(
        {{"runtime", runtime}, {"name", name}, {"owner", owner}}));
    *owner = runtime->runtime->owners()->Register(name).value();
    return absl::OkStatus();
  });
}

quire_status quire_owner_get_name(quire_runtime* runtime, uint32_t owner,
                                  char** name) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"runtime", runtime}, {"name", name}}));
    return WriteText(runtime->runtime->owners()->Name(OwnerId(owner)), name);
  });
}
