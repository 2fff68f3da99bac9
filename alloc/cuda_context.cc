#include "alloc/cuda_context.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "alloc/cuda_status.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<ScopedCudaContext> ScopedCudaContext::Enter(
    const CudaFunctionTable* cuda, CUcontext context) {
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(*cuda, "cuCtxPushCurrent", cuda->CtxPushCurrent(context)));
  return ScopedCudaContext(cuda);
}

ScopedCudaContext::~ScopedCudaContext() {
  if (cuda_ == nullptr) return;
  CUcontext popped = nullptr;
  (void)cuda_->CtxPopCurrent(&popped);
}

ScopedRelaxedCapture::ScopedRelaxedCapture(const CudaFunctionTable* cuda)
    : cuda_(cuda) {
  // A driver that refuses is one that has failed, and will say so again.
  if (cuda_->ThreadExchangeStreamCaptureMode(&mode_) != CUDA_SUCCESS) {
    cuda_ = nullptr;
  }
}

ScopedRelaxedCapture::~ScopedRelaxedCapture() {
  if (cuda_ != nullptr) (void)cuda_->ThreadExchangeStreamCaptureMode(&mode_);
}

CudaContexts::CudaContexts(const CudaFunctionTable* cuda,
                           std::vector<CUdevice> devices)
    : cuda_(cuda),
      devices_(std::move(devices)),
      contexts_(devices_.size(), nullptr) {}

CudaContexts::~CudaContexts() {
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < contexts_.size(); ++i) {
    if (contexts_[i] != nullptr) {
      (void)cuda_->DevicePrimaryCtxRelease(devices_[i]);
    }
  }
}

absl::StatusOr<ScopedCudaContext> CudaContexts::Enter(DeviceId device) {
  CUcontext context = nullptr;
  {
    MutexLock lock(&mutex_);
    CUcontext& retained = contexts_[device.value()];
    if (retained == nullptr) {
      QUIRE_RETURN_IF_ERROR(CudaStatus(
          *cuda_, "cuDevicePrimaryCtxRetain",
          cuda_->DevicePrimaryCtxRetain(&retained, devices_[device.value()]),
          absl::StrFormat("device %d", device.value())));
    }
    context = retained;
  }
  return ScopedCudaContext::Enter(cuda_, context);
}

absl::StatusOr<ScopedCudaContext> CudaContexts::EnterAny() {
  int32_t device = 0;
  {
    MutexLock lock(&mutex_);
    const auto retained =
        std::find_if(contexts_.begin(), contexts_.end(),
                     [](CUcontext context) { return context != nullptr; });
    if (retained != contexts_.end()) device = retained - contexts_.begin();
  }
  return Enter(DeviceId(device));
}

}  // namespace quire
