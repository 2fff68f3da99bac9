#include "alloc/host_stream.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"

namespace quire {
namespace {

thread_local bool on_stream_thread = false;

}  // namespace

void StreamMark::Reach() {
  MutexLock lock(&mutex_);
  reached_ = true;
  changed_.NotifyAll();
}

bool StreamMark::reached() const {
  MutexLock lock(&mutex_);
  return reached_;
}

void StreamMark::Wait() const {
  MutexLock lock(&mutex_);
  while (!reached_) changed_.Wait(&mutex_);
}

HostStream::~HostStream() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status HostStream::Enqueue(std::function<void()> work) {
  MutexLock lock(&mutex_);
  return EnqueueLocked(std::move(work));
}

absl::Status HostStream::EnqueueMark(std::shared_ptr<StreamMark> mark) {
  MutexLock lock(&mutex_);
  if (completed_ < enqueued_) {
    return EnqueueLocked([mark = std::move(mark)] { mark->Reach(); });
  }
  mark->Reach();
  return absl::OkStatus();
}

absl::Status HostStream::EnqueueLocked(std::function<void()> work) {
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread(&HostStream::Run, this);
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "the thread of a stream cannot be started: %s", error.what()));
    }
  }
  queue_.push_back(std::move(work));
  ++enqueued_;
  changed_.NotifyAll();
  return absl::OkStatus();
}

void HostStream::Synchronize() {
  MutexLock lock(&mutex_);
  const uint64_t target = enqueued_;
  while (completed_ < target) changed_.Wait(&mutex_);
}

bool HostStream::idle() {
  MutexLock lock(&mutex_);
  return completed_ == enqueued_;
}

bool HostStream::OnStreamThread() { return on_stream_thread; }

void HostStream::Run() {
  on_stream_thread = true;
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
    // What the work owns goes before anybody is told that it is done.
    work = nullptr;
    MutexLock lock(&mutex_);
    ++completed_;
    changed_.NotifyAll();
  }
}

}  // namespace quire
