// The streams and events of the fake of NVIDIA's driver.
//
// A stream is an ordered queue on a thread of its own, so nothing that is
// submitted is done when the call returns, and nothing orders two streams but
// events. Not modelled, and refused: the null stream and streams that wait for
// it, since whoever uses them depends on what other code in the process does.
//
// Work that fails on a device ends all work: what is queued behind it on any
// stream is dropped, marks of events apart, and calls return its error.
//
// Capture. A capturing stream executes nothing; it counts what was captured.
// Joining a capture through an event is not modelled and refused.
//
// [names] of rules: docs/driver_rules.md, which quotes the documentation.
//
// Thread-safe. No lock is held while work runs or is waited for.

#ifndef QUIRE_ALLOC_TESTING_FAKE_CUDA_STREAMS_H_
#define QUIRE_ALLOC_TESTING_FAKE_CUDA_STREAMS_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "alloc/host_stream.h"
#include "quire/alloc/mutex.h"

namespace quire {

class FakeCudaStreams {
 public:
  // `id` tells the fakes of a process apart.
  explicit FakeCudaStreams(uint64_t id) : id_(id) {}
  // Waits for all work.
  ~FakeCudaStreams();
  FakeCudaStreams(const FakeCudaStreams&) = delete;
  FakeCudaStreams& operator=(const FakeCudaStreams&) = delete;

  // ---- The calls of the driver. `current` is the device of the calling
  // thread's context. ----
  CUresult CreateStream(CUdevice current, CUstream* stream, unsigned flags);
  CUresult DestroyStream(CUstream stream);
  CUresult Synchronize(CUstream stream);
  // Queues work of the stream's device.
  CUresult Submit(CUdevice current, CUstream stream,
                  std::function<void()> work);
  CUresult CreateEvent(CUdevice current, CUevent* event, unsigned flags);
  CUresult DestroyEvent(CUevent event);
  CUresult Record(CUevent event, CUstream stream);
  CUresult Query(CUevent event);
  CUresult SynchronizeEvent(CUevent event);
  CUresult WaitEvent(CUstream stream, CUevent event, unsigned flags);

  // The context of the device was reset: its streams and events are gone.
  void Reset(CUdevice device);

  // ---- The error that ended all work ----
  void Fail(CUresult result);
  CUresult failure() const { return failure_; }

  // ---- Capture ----
  CUresult BeginCapture(CUstream stream, CUstreamCaptureMode mode);
  // `nodes`: how many operations were captured.
  CUresult EndCapture(CUstream stream, size_t* nodes);
  CUresult GetCaptureStatus(CUstream stream, CUstreamCaptureStatus* status);
  CUresult ExchangeCaptureMode(CUstreamCaptureMode* mode);
  // For calls that a capture would not see.
  CUresult CheckUnsafeCall();

  // ---- For tests ----
  size_t stream_count() const;
  size_t event_count() const;
  void AppendLeaks(std::vector<std::string>* leaks) const;

 private:
  struct Capture {
    CUstreamCaptureMode mode;
    std::thread::id origin;
    bool invalidated = false;
    size_t nodes = 0;
  };
  struct Stream {
    CUdevice device;
    std::shared_ptr<HostStream> queue;
    std::optional<Capture> capture;
  };
  struct Event {
    CUdevice device;
    std::shared_ptr<StreamMark> mark;  // null: nothing to wait for
    bool captured = false;
  };

  // The stream, where it may be given work or waited for.
  CUresult FindStream(CUstream stream, Stream** found)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CUresult FindEvent(CUevent event, Event** found)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CUresult FindBoth(CUevent event, CUstream stream, Event** found,
                    Stream** target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The mark to wait for, null where there is none.
  CUresult FindMark(CUevent event, std::shared_ptr<StreamMark>* mark);
  uintptr_t NewHandle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the streams of the past whose work is done.
  void Reap();

  const uint64_t id_;
  std::atomic<CUresult> failure_{CUDA_SUCCESS};
  mutable Mutex mutex_;
  uintptr_t handles_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<CUstream, Stream> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<CUevent, Event> events_ ABSL_GUARDED_BY(mutex_);
  // Destroyed with work still queued.
  std::vector<std::shared_ptr<HostStream>> past_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_CUDA_STREAMS_H_
