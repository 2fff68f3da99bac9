#include "alloc/testing/fake_cuda_streams.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace quire {
namespace {

// Handles are opaque; these are no addresses of anything.
constexpr uintptr_t kFirstHandle = 0x100000;
constexpr uintptr_t kHandleStep = 16;

}  // namespace

FakeCudaStreams::~FakeCudaStreams() {
  // The work of one stream may wait for that of another, so all keep running
  // until the last has been waited for.
  std::vector<std::shared_ptr<HostStream>> queues;
  {
    MutexLock lock(&mutex_);
    queues = past_;
    for (const auto& [handle, stream] : streams_)
      queues.push_back(stream.queue);
  }
  for (const auto& queue : queues) queue->Synchronize();
}

uintptr_t FakeCudaStreams::NewHandle() {
  return kFirstHandle + kHandleStep * handles_++;
}

void FakeCudaStreams::Fail(CUresult result) {
  CUresult none = CUDA_SUCCESS;
  failure_.compare_exchange_strong(none, result);
}

// ---- Streams ----------------------------------------------------------------

CUresult FakeCudaStreams::CreateStream(CUdevice current, CUstream* stream,
                                       unsigned flags) {
  // [stream-flags]
  if (stream == nullptr ||
      (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == CU_STREAM_DEFAULT) return CUDA_ERROR_NOT_SUPPORTED;
  Reap();
  MutexLock lock(&mutex_);
  *stream = reinterpret_cast<CUstream>(NewHandle());
  streams_[*stream] = {
      current, std::make_shared<HostStream>(DeviceId(current)), {}};
  return CUDA_SUCCESS;
}

CUresult FakeCudaStreams::FindStream(CUstream stream, Stream** found) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY ||
      stream == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const auto entry = streams_.find(stream);
  // [stream-valid]
  if (entry == streams_.end()) return CUDA_ERROR_INVALID_HANDLE;
  // [capture-invalidated]
  if (entry->second.capture && entry->second.capture->invalidated) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *found = &entry->second;
  return CUDA_SUCCESS;
}

CUresult FakeCudaStreams::DestroyStream(CUstream stream) {
  Reap();
  MutexLock lock(&mutex_);
  Stream* found = nullptr;
  if (const CUresult result = FindStream(stream, &found);
      result != CUDA_SUCCESS) {
    return result;
  }
  // [stream-destroy]
  past_.push_back(std::move(found->queue));
  streams_.erase(stream);
  return CUDA_SUCCESS;
}

void FakeCudaStreams::Reap() {
  std::vector<std::shared_ptr<HostStream>> done;
  MutexLock lock(&mutex_);
  std::erase_if(past_, [&](const std::shared_ptr<HostStream>& queue) {
    if (!queue->idle()) return false;
    done.push_back(queue);
    return true;
  });
}

CUresult FakeCudaStreams::Synchronize(CUstream stream) {
  std::shared_ptr<HostStream> queue;
  {
    MutexLock lock(&mutex_);
    Stream* found = nullptr;
    if (const CUresult result = FindStream(stream, &found);
        result != CUDA_SUCCESS) {
      return result;
    }
    // [capture-synchronize]
    if (found->capture) {
      found->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    queue = found->queue;
  }
  // [stream-synchronize]
  queue->Synchronize();
  return failure_;
}

CUresult FakeCudaStreams::Submit(CUdevice current, CUstream stream,
                                 std::function<void()> work) {
  MutexLock lock(&mutex_);
  Stream* found = nullptr;
  if (const CUresult result = FindStream(stream, &found);
      result != CUDA_SUCCESS) {
    return result;
  }
  // [stream-context]
  if (found->device != current) return CUDA_ERROR_INVALID_CONTEXT;
  // [capture-executes-nothing]
  if (found->capture) {
    ++found->capture->nodes;
    return CUDA_SUCCESS;
  }
  // [stream-order]
  const absl::Status queued =
      found->queue->Enqueue([this, work = std::move(work)] {
        if (failure_ == CUDA_SUCCESS) work();
      });
  return queued.ok() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// ---- Events -----------------------------------------------------------------

CUresult FakeCudaStreams::CreateEvent(CUdevice current, CUevent* event,
                                      unsigned flags) {
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  // [event-flags]
  if (event == nullptr || (flags & ~kKnown) != 0 ||
      ((flags & CU_EVENT_INTERPROCESS) != 0 &&
       (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  MutexLock lock(&mutex_);
  *event = reinterpret_cast<CUevent>(NewHandle());
  // [event-unrecorded]
  events_[*event] = {current, nullptr};
  return CUDA_SUCCESS;
}

CUresult FakeCudaStreams::FindEvent(CUevent event, Event** found) {
  const auto entry = events_.find(event);
  // [event-valid]
  if (entry == events_.end()) return CUDA_ERROR_INVALID_HANDLE;
  *found = &entry->second;
  return CUDA_SUCCESS;
}

CUresult FakeCudaStreams::FindBoth(CUevent event, CUstream stream,
                                   Event** found, Stream** target) {
  const CUresult result = FindEvent(event, found);
  return result == CUDA_SUCCESS ? FindStream(stream, target) : result;
}

CUresult FakeCudaStreams::DestroyEvent(CUevent event) {
  MutexLock lock(&mutex_);
  // [event-destroy] Whoever waits for the mark keeps it.
  return events_.erase(event) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult FakeCudaStreams::Record(CUevent event, CUstream stream) {
  MutexLock lock(&mutex_);
  Event* found = nullptr;
  Stream* target = nullptr;
  if (const CUresult result = FindBoth(event, stream, &found, &target);
      result != CUDA_SUCCESS) {
    return result;
  }
  // [event-context]
  if (found->device != target->device) return CUDA_ERROR_INVALID_HANDLE;
  if (target->capture) {
    ++target->capture->nodes;
    *found = {found->device, nullptr, /*captured=*/true};
    return CUDA_SUCCESS;
  }
  auto mark = std::make_shared<StreamMark>();
  if (!target->queue->EnqueueMark(mark).ok()) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // [event-record-again]
  *found = {found->device, std::move(mark)};
  return CUDA_SUCCESS;
}

CUresult FakeCudaStreams::FindMark(CUevent event,
                                   std::shared_ptr<StreamMark>* mark) {
  MutexLock lock(&mutex_);
  Event* found = nullptr;
  if (const CUresult result = FindEvent(event, &found);
      result != CUDA_SUCCESS) {
    return result;
  }
  // [capture-event]
  if (found->captured) return CUDA_ERROR_CAPTURED_EVENT;
  *mark = found->mark;
  return CUDA_SUCCESS;
}

CUresult FakeCudaStreams::Query(CUevent event) {
  std::shared_ptr<StreamMark> mark;
  if (const CUresult result = FindMark(event, &mark); result != CUDA_SUCCESS) {
    return result;
  }
  // [event-query]
  if (mark != nullptr && !mark->reached()) return CUDA_ERROR_NOT_READY;
  return failure_;
}

CUresult FakeCudaStreams::SynchronizeEvent(CUevent event) {
  std::shared_ptr<StreamMark> mark;
  if (const CUresult result = FindMark(event, &mark); result != CUDA_SUCCESS) {
    return result;
  }
  // [event-synchronize]
  if (mark != nullptr) mark->Wait();
  return failure_;
}

CUresult FakeCudaStreams::WaitEvent(CUstream stream, CUevent event,
                                    unsigned flags) {
  MutexLock lock(&mutex_);
  Event* found = nullptr;
  Stream* target = nullptr;
  if (const CUresult result = FindBoth(event, stream, &found, &target);
      result != CUDA_SUCCESS) {
    return result;
  }
  // [wait-flags]
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  if (target->capture) {
    // [capture-isolation]
    if (!found->captured) {
      target->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    ++target->capture->nodes;
    return CUDA_SUCCESS;
  }
  if (found->captured) return CUDA_ERROR_NOT_SUPPORTED;
  // [wait-most-recent] [wait-context] For the mark of now, whatever its device.
  if (found->mark == nullptr) return CUDA_SUCCESS;
  return target->queue->Enqueue([mark = found->mark] { mark->Wait(); }).ok()
             ? CUDA_SUCCESS
             : CUDA_ERROR_OUT_OF_MEMORY;
}

void FakeCudaStreams::Reset(CUdevice device) {
  MutexLock lock(&mutex_);
  for (auto& [handle, stream] : streams_) {
    if (stream.device == device) past_.push_back(stream.queue);
  }
  std::erase_if(streams_, [&](const auto& entry) {
    return entry.second.device == device;
  });
  std::erase_if(events_, [&](const auto& entry) {
    return entry.second.device == device;
  });
}

// ---- For tests --------------------------------------------------------------

size_t FakeCudaStreams::stream_count() const {
  MutexLock lock(&mutex_);
  return streams_.size();
}

size_t FakeCudaStreams::event_count() const {
  MutexLock lock(&mutex_);
  return events_.size();
}

void FakeCudaStreams::AppendLeaks(std::vector<std::string>* leaks) const {
  MutexLock lock(&mutex_);
  for (const auto& [handle, stream] : streams_) {
    leaks->push_back(absl::StrFormat("stream %p of device %d is not destroyed",
                                     handle, stream.device));
  }
  for (const auto& [handle, event] : events_) {
    leaks->push_back(absl::StrFormat("event %p of device %d is not destroyed",
                                     handle, event.device));
  }
}

}  // namespace quire
