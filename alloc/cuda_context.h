// What a call finds of the thread that makes it: the current context, and how
// it stands to captures. The primary contexts of the CUDA devices.
//
// Every call that needs a context makes its device's current for as long as the
// call lasts and then restores what the caller had: a null stream or a current
// context left by somebody else never decides where work goes. Primary contexts
// are shared with the CUDA runtime, hence with frameworks in the same process.
//
// Those frameworks also capture streams into graphs, and by default many calls
// of any thread, a query of an event among them, make a capture invalid that
// goes on elsewhere in the process. Ours are on streams of our own and never
// part of one.

#ifndef QUIRE_ALLOC_CUDA_CONTEXT_H_
#define QUIRE_ALLOC_CUDA_CONTEXT_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "alloc/cuda_function_table.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

// Current from its making until its end, on one thread.
class ScopedCudaContext {
 public:
  static absl::StatusOr<ScopedCudaContext> Enter(const CudaFunctionTable* cuda,
                                                 CUcontext context);
  ScopedCudaContext(ScopedCudaContext&& other) noexcept
      : cuda_(std::exchange(other.cuda_, nullptr)) {}
  ScopedCudaContext& operator=(ScopedCudaContext&&) = delete;
  ~ScopedCudaContext();

 private:
  explicit ScopedCudaContext(const CudaFunctionTable* cuda) : cuda_(cuda) {}

  const CudaFunctionTable* cuda_;
};

// From its making until its end, calls of this thread break nobody's capture.
class ScopedRelaxedCapture {
 public:
  explicit ScopedRelaxedCapture(const CudaFunctionTable* cuda);
  ~ScopedRelaxedCapture();
  ScopedRelaxedCapture(const ScopedRelaxedCapture&) = delete;
  ScopedRelaxedCapture& operator=(const ScopedRelaxedCapture&) = delete;

 private:
  const CudaFunctionTable* cuda_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Thread-safe.
class CudaContexts {
 public:
  // `cuda` must outlive the object.
  CudaContexts(const CudaFunctionTable* cuda, std::vector<CUdevice> devices);
  ~CudaContexts();
  CudaContexts(const CudaContexts&) = delete;
  CudaContexts& operator=(const CudaContexts&) = delete;

  // Retained at first use: a context takes some hundred MB of its device, and a
  // process that sees eight devices often uses one. REQUIRES: the device
  // exists.
  absl::StatusOr<ScopedCudaContext> Enter(DeviceId device);
  // For calls that need a context, whatever its device: one that is retained.
  absl::StatusOr<ScopedCudaContext> EnterAny();

 private:
  const CudaFunctionTable* const cuda_;
  const std::vector<CUdevice> devices_;
  Mutex mutex_;
  // By device; null where not retained.
  std::vector<CUcontext> contexts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_ALLOC_CUDA_CONTEXT_H_
