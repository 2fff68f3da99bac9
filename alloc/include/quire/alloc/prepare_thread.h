// A thread that makes pages ahead of those who will want them.
//
// It knows nothing of pages: it calls `step` until that says that there are
// enough, and again when it is woken.

#ifndef QUIRE_ALLOC_PREPARE_THREAD_H_
#define QUIRE_ALLOC_PREPARE_THREAD_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "quire/alloc/mutex.h"

namespace quire {

class PrepareThread {
 public:
  enum class Progress {
    kMade,     // one page; there may be more to make
    kEnough,   // nothing to do until somebody calls Wake
    kRefused,  // not now: tried again after a while, or when woken
  };
  // Makes at most one page. Called without a lock.
  using Step = std::function<Progress()>;

  // Begins with a step. kResourceExhausted where the system has no thread.
  static absl::StatusOr<std::unique_ptr<PrepareThread>> Start(Step step);
  // Waits for the step that runs. REQUIRES: not called from a step.
  ~PrepareThread();
  PrepareThread(const PrepareThread&) = delete;
  PrepareThread& operator=(const PrepareThread&) = delete;

  // May be called under a lock that the step takes.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit PrepareThread(Step step) : step_(std::move(step)) {}
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const Step step_;
  Mutex mutex_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PREPARE_THREAD_H_
