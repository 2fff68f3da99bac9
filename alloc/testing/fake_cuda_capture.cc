// Stream capture: the part of FakeCudaStreams that keeps calls from breaking
// what somebody is capturing.

#include <map>

#include "alloc/testing/fake_cuda_streams.h"

namespace quire {
namespace {

// How a thread wants to be held back, by the number of the fake. The default,
// CU_STREAM_CAPTURE_MODE_GLOBAL, is not kept.
thread_local std::map<uint64_t, CUstreamCaptureMode> thread_modes;

bool IsMode(CUstreamCaptureMode mode) {
  return mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
         mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
         mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

CUstreamCaptureMode ModeOf(uint64_t id) {
  const auto mode = thread_modes.find(id);
  return mode == thread_modes.end() ? CU_STREAM_CAPTURE_MODE_GLOBAL
                                    : mode->second;
}

}  // namespace

CUresult FakeCudaStreams::BeginCapture(CUstream stream,
                                       CUstreamCaptureMode mode) {
  MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  // [capture-begin]
  if (found == streams_.end() || found->second.capture || !IsMode(mode)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->second.capture = {mode, std::this_thread::get_id()};
  return CUDA_SUCCESS;
}

CUresult FakeCudaStreams::EndCapture(CUstream stream, size_t* nodes) {
  MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end() || !found->second.capture) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Capture capture = *found->second.capture;
  // [capture-thread]
  if (capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture.origin != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  found->second.capture.reset();
  // [capture-invalidated]
  *nodes = capture.invalidated ? 0 : capture.nodes;
  return capture.invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                             : CUDA_SUCCESS;
}

CUresult FakeCudaStreams::GetCaptureStatus(CUstream stream,
                                           CUstreamCaptureStatus* status) {
  MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return CUDA_ERROR_INVALID_VALUE;
  const std::optional<Capture>& capture = found->second.capture;
  *status = !capture               ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult FakeCudaStreams::ExchangeCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || !IsMode(*mode)) return CUDA_ERROR_INVALID_VALUE;
  const CUstreamCaptureMode wanted = *mode;
  *mode = ModeOf(id_);
  if (wanted == CU_STREAM_CAPTURE_MODE_GLOBAL) {
    thread_modes.erase(id_);
  } else {
    thread_modes[id_] = wanted;
  }
  return CUDA_SUCCESS;
}

CUresult FakeCudaStreams::CheckUnsafeCall() {
  const CUstreamCaptureMode mode = ModeOf(id_);
  // [capture-relaxed]
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  MutexLock lock(&mutex_);
  for (auto& [handle, stream] : streams_) {
    if (!stream.capture) continue;
    const bool is_own = stream.capture->origin == std::this_thread::get_id();
    // [capture-global] [capture-thread-local]
    const bool prohibits =
        is_own ? stream.capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
               : mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                     stream.capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!prohibits) continue;
    stream.capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

}  // namespace quire
