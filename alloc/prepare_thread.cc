#include "quire/alloc/prepare_thread.h"

#include <chrono>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

// What refused is a device that others fill, and that gives no notice when they
// stop: often enough for them, too rare to be felt.
constexpr std::chrono::milliseconds kRetryInterval(100);

}  // namespace

absl::StatusOr<std::unique_ptr<PrepareThread>> PrepareThread::Start(Step step) {
  std::unique_ptr<PrepareThread> result(new PrepareThread(std::move(step)));
  try {
    result->thread_ = std::thread([thread = result.get()] { thread->Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot start a thread that prepares pages: ", error.what()));
  }
  return result;
}

PrepareThread::~PrepareThread() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void PrepareThread::Wake() {
  MutexLock lock(&mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void PrepareThread::Run() {
  Progress progress = Progress::kEnough;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      while (!stopped_ && !woken_ && progress != Progress::kMade) {
        if (progress == Progress::kEnough) {
          changed_.Wait(&mutex_);
        } else if (!changed_.WaitFor(&mutex_, kRetryInterval)) {
          break;
        }
      }
      if (stopped_) return;
      woken_ = false;
    }
    progress = step_();
    // Those who want pages now come first.
    std::this_thread::yield();
  }
}

}  // namespace quire
