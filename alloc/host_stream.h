// Streams and events of a software device.
//
// A stream is a queue and a thread that works through it in order; the thread
// starts with the first work. An event is a place in a stream's queue: the mark
// that the latest RecordEvent put there. Waiting for an event waits for that
// mark, whatever is recorded later, as CUDA does. Every mark is queued before
// anything can wait for it, so that waits cannot form a circle.

#ifndef QUIRE_ALLOC_HOST_STREAM_H_
#define QUIRE_ALLOC_HOST_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

// One recording of an event. Thread-safe.
class StreamMark {
 public:
  void Reach();
  bool reached() const;
  void Wait() const;

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool reached_ ABSL_GUARDED_BY(mutex_) = false;
};

// Thread-safe.
class HostStream {
 public:
  explicit HostStream(DeviceId device) : device_(device) {}
  // Waits for the work queued.
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  DeviceId device() const { return device_; }
  // kResourceExhausted where the thread cannot be started.
  absl::Status Enqueue(std::function<void()> work);
  // The mark is reached when all work queued before it is done: at once where
  // there is none, as on a device that has nothing to do.
  absl::Status EnqueueMark(std::shared_ptr<StreamMark> mark);
  // Waits for all work queued before the call.
  void Synchronize();
  // True where all work queued is done.
  bool idle();

  // True on the thread of any stream: there, waiting could never end.
  static bool OnStreamThread();

 private:
  void Run();
  absl::Status EnqueueLocked(std::function<void()> work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const DeviceId device_;
  std::thread thread_;  // guarded by mutex_ until the destructor
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t enqueued_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t completed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_HOST_STREAM_H_
