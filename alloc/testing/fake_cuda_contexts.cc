#include "alloc/testing/fake_cuda_contexts.h"

#include <map>

#include "absl/strings/str_format.h"

namespace quire {
namespace {

// Handles are opaque; these are no addresses of anything.
constexpr uintptr_t kFirstContext = 0x1000;

// The stacks of a thread by the number of the fake; empty ones are not kept.
thread_local std::map<uint64_t, std::vector<CUcontext>> stacks;

CUdevice DeviceOf(CUcontext context) {
  return static_cast<CUdevice>(reinterpret_cast<uintptr_t>(context) -
                               kFirstContext);
}

}  // namespace

CUcontext FakeCudaContexts::ContextOf(CUdevice device) {
  return reinterpret_cast<CUcontext>(kFirstContext + device);
}

CUresult FakeCudaContexts::Retain(CUdevice device, CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&mutex_);
  ++retained_[device];
  // [context-not-pushed]
  *context = ContextOf(device);
  return CUDA_SUCCESS;
}

CUresult FakeCudaContexts::Release(CUdevice device, bool* is_reset) {
  MutexLock lock(&mutex_);
  // [context-release]
  if (retained_[device] == 0) return CUDA_ERROR_INVALID_CONTEXT;
  // [context-reset] Stacks stay as they are.
  *is_reset = --retained_[device] == 0;
  return CUDA_SUCCESS;
}

CUresult FakeCudaContexts::Push(CUcontext context) {
  const CUdevice device = DeviceOf(context);
  MutexLock lock(&mutex_);
  // [context-valid]
  if (device < 0 || device >= static_cast<CUdevice>(retained_.size()) ||
      retained_[device] == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  stacks[id_].push_back(context);
  ++pushed_;
  return CUDA_SUCCESS;
}

CUresult FakeCudaContexts::Pop(CUcontext* context) {
  const auto stack = stacks.find(id_);
  // [context-pop]
  if (stack == stacks.end()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = stack->second.back();
  stack->second.pop_back();
  --pushed_;
  if (stack->second.empty()) stacks.erase(stack);
  return CUDA_SUCCESS;
}

CUresult FakeCudaContexts::FindCurrent(CUdevice* device) const {
  const auto stack = stacks.find(id_);
  // [context-current]
  if (stack == stacks.end()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = DeviceOf(stack->second.back());
  MutexLock lock(&mutex_);
  // [context-destroyed]
  return retained_[*device] > 0 ? CUDA_SUCCESS
                                : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

int FakeCudaContexts::retained(CUdevice device) const {
  MutexLock lock(&mutex_);
  return retained_[device];
}

std::vector<CUcontext> FakeCudaContexts::stack() const {
  const auto stack = stacks.find(id_);
  return stack == stacks.end() ? std::vector<CUcontext>() : stack->second;
}

void FakeCudaContexts::AppendLeaks(std::vector<std::string>* leaks) const {
  MutexLock lock(&mutex_);
  for (size_t device = 0; device < retained_.size(); ++device) {
    if (retained_[device] == 0) continue;
    leaks->push_back(
        absl::StrFormat("the primary context of device %d is retained %d times",
                        device, retained_[device]));
  }
  if (pushed_ != 0) {
    leaks->push_back(
        absl::StrFormat("%d contexts are still current", pushed_.load()));
  }
}

}  // namespace quire
