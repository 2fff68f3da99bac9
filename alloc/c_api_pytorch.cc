// What PyTorch's pluggable allocator calls.
//
// The functions have no handle, so there is one runtime for the process, and a
// table of the streams that PyTorch names. A lock guards both; no allocation
// and no free runs under it. Forked children, as those of data loaders, are
// refused before they take it.

#include "quire/alloc/c_api_pytorch.h"

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "alloc/c_api_internal.h"
#include "quire/alloc/allocation_error.h"
#include "quire/alloc/cuda_driver.h"
#include "quire/alloc/mutex.h"

namespace quire::c_api {
namespace {

class PyTorchServer {
 public:
  // Never destroyed: PyTorch frees memory after everything static is gone.
  static PyTorchServer& Get() {
    static auto* const server = new PyTorchServer();
    return *server;
  }

  absl::StatusOr<DeviceAddress> Allocate(ssize_t size, int device, void* stream,
                                         const void* caller)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    QUIRE_RETURN_IF_ERROR(guard_.Check());
    if (size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("an allocation of ", size, " bytes"));
    }
    AllocateOptions options;
    options.caller = caller;
    std::shared_ptr<Runtime> runtime;
    {
      MutexLock lock(&mutex_);
      if (runtime_ == nullptr) {
        QUIRE_ASSIGN_OR_RETURN(auto driver, CreateCudaDriver());
        QUIRE_ASSIGN_OR_RETURN(runtime_,
                               Runtime::Create(std::move(driver), {}));
      }
      QUIRE_RETURN_IF_ERROR(CheckDevice(*runtime_, device));
      QUIRE_ASSIGN_OR_RETURN(options.stream, StreamOf(device, stream));
      runtime = runtime_;
      ++live_;
    }
    const absl::StatusOr<DeviceAddress> address =
        runtime->allocator(DeviceId(device))
            ->Allocate(Bytes(static_cast<uint64_t>(size)), options);
    if (!address.ok()) {
      MutexLock lock(&mutex_);
      --live_;
    }
    return address;
  }

  absl::Status Free(DeviceAddress address, int device, void* stream)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    QUIRE_RETURN_IF_ERROR(guard_.Check());
    std::shared_ptr<Runtime> runtime;
    StreamId on;
    {
      MutexLock lock(&mutex_);
      QUIRE_RETURN_IF_ERROR(CheckServes());
      QUIRE_RETURN_IF_ERROR(CheckDevice(*runtime_, device));
      QUIRE_ASSIGN_OR_RETURN(on, StreamOf(device, stream));
      runtime = runtime_;
    }
    QUIRE_RETURN_IF_ERROR(
        runtime->allocator(DeviceId(device))->Free(address, on));
    MutexLock lock(&mutex_);
    // What the program allocated elsewhere was not counted.
    if (live_ > 0) --live_;
    return absl::OkStatus();
  }

  absl::Status RecordStream(DeviceAddress address, void* stream)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    QUIRE_RETURN_IF_ERROR(guard_.Check());
    MutexLock lock(&mutex_);
    QUIRE_RETURN_IF_ERROR(CheckServes());
    for (int device = 0; device < runtime_->device_count(); ++device) {
      DeviceAllocator* const allocator = runtime_->allocator(DeviceId(device));
      if (!allocator->Manages(address)) continue;
      QUIRE_ASSIGN_OR_RETURN(const StreamId on, StreamOf(device, stream));
      return allocator->RecordStream(address, on);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "0x", absl::Hex(address.value()), " was never allocated here"));
  }

  absl::Status Use(std::shared_ptr<Runtime> runtime)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    QUIRE_RETURN_IF_ERROR(guard_.Check());
    std::shared_ptr<Runtime> last;  // may end, without the lock
    MutexLock lock(&mutex_);
    if (live_ > 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          live_, " allocations of PyTorch are live: free them first"));
    }
    for (const auto& [name, stream] : streams_) {
      (void)runtime_->driver()->DestroyStream(stream);
    }
    streams_.clear();
    last = std::exchange(runtime_, std::move(runtime));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Runtime>> runtime()
      ABSL_LOCKS_EXCLUDED(mutex_) {
    QUIRE_RETURN_IF_ERROR(guard_.Check());
    MutexLock lock(&mutex_);
    QUIRE_RETURN_IF_ERROR(CheckServes());
    return runtime_;
  }

 private:
  absl::Status CheckServes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (runtime_ != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError("no runtime serves PyTorch yet");
  }

  absl::StatusOr<StreamId> StreamOf(int device, void* stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::pair<int, void*> name(device, stream);
    const auto found = streams_.find(name);
    if (found != streams_.end()) return found->second;
    Driver* const driver = runtime_->driver();
    absl::StatusOr<StreamId> made =
        driver->AdoptStream(DeviceId(device), stream);
    // A software device has no streams but its own.
    if (absl::IsUnavailable(made.status())) {
      made = driver->CreateStream(DeviceId(device));
    }
    if (made.ok()) streams_[name] = *made;
    return made;
  }

  const ForkGuard guard_;
  Mutex mutex_;
  std::shared_ptr<Runtime> runtime_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int, void*>, StreamId> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t live_ ABSL_GUARDED_BY(mutex_) = 0;
};

DeviceAddress AddressOf(const void* memory) {
  return DeviceAddress(reinterpret_cast<uint64_t>(memory));
}

}  // namespace
}  // namespace quire::c_api

using quire::c_api::AddressOf;
using quire::c_api::Call;
using quire::c_api::CheckArguments;
using quire::c_api::PyTorchServer;

void* quire_pytorch_alloc(ssize_t size, int device, void* stream) {
  const auto address = PyTorchServer::Get().Allocate(
      size, device, stream, __builtin_return_address(0));
  if (!address.ok()) {
    (void)quire::c_api::KeepError(address.status());
    throw quire::AllocationError(address.status());
  }
  return reinterpret_cast<void*>(address->value());
}

void quire_pytorch_free(void* memory, ssize_t /*size*/, int device,
                        void* stream) noexcept {
  if (memory == nullptr) return;
  (void)Call([&] {
    return PyTorchServer::Get().Free(AddressOf(memory), device, stream);
  });
}

void quire_pytorch_record_stream(void* memory, void* stream) noexcept {
  (void)Call([&] {
    return PyTorchServer::Get().RecordStream(AddressOf(memory), stream);
  });
}

quire_status quire_pytorch_use(quire_runtime* runtime) noexcept {
  return Call([&] {
    return PyTorchServer::Get().Use(runtime == nullptr ? nullptr
                                                       : runtime->runtime);
  });
}

quire_status quire_pytorch_get_runtime(quire_runtime** runtime) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"runtime", runtime}}));
    QUIRE_ASSIGN_OR_RETURN(auto serving, PyTorchServer::Get().runtime());
    *runtime = new quire_runtime{std::move(serving)};
    return absl::OkStatus();
  });
}
