// One loop at a time is open; workers join it under the lock and take ranges
// from an atomic counter. The caller works too, then closes the loop, so a
// worker that wakes up late finds it closed and never delays the caller.
//
// A decode step is hundreds of loops of some ten to a hundred microseconds, so
// a worker looks for the next loop for a short while before it sleeps: waking a
// sleeping thread costs about as much as the loop itself. An idle pool sleeps.

#include "quire/model/thread_pool.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

#include "quire/alloc/mutex.h"

namespace quire {
namespace {

// About 30 us: longer than the serial part between two loops of a decode step,
// shorter than anything a user would see as load.
constexpr int kSpins = 1000;

int UsableCores() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Runs `body` over what is left of a loop. Ranges are counted, not elements:
// no sum can overflow.
struct Loop {
  const std::function<void(size_t, size_t)>* body = nullptr;
  size_t count = 0;
  size_t grain = 0;
  size_t ranges = 0;
};

}  // namespace

class ThreadPool::Impl {
 public:
  explicit Impl(int threads)
      : threads_(threads > 0 ? threads : UsableCores()) {}

  ~Impl() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      // Ends the spinning of workers, too.
      published_.fetch_add(1, std::memory_order_release);
      wake_workers_.NotifyAll();
    }
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return threads_; }

  void ParallelFor(size_t count, size_t grain,
                   const std::function<void(size_t, size_t)>& body) {
    if (count == 0) return;
    grain = std::clamp<size_t>(grain, 1, count);
    const size_t ranges = (count - 1) / grain + 1;
    if (threads_ == 1 || ranges == 1) {
      body(0, count);
      return;
    }
    const Loop loop = {&body, count, grain, ranges};
    Open(loop);
    Run(loop);
    Close();
  }

 private:
  void Open(const Loop& loop) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    // Tickets, not the lock's own order: std::mutex lets one caller overtake
    // another for ever.
    const uint64_t ticket = next_ticket_++;
    while (serving_ != ticket) next_turn_.Wait(&mutex_);
    StartWorkers();
    loop_ = loop;
    open_ = true;
    next_range_.store(0, std::memory_order_relaxed);
    published_.fetch_add(1, std::memory_order_release);
    if (sleeping_ > 0) wake_workers_.NotifyAll();
  }

  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    for (int i = 0; i < kSpins && busy_.load(std::memory_order_acquire) > 0;
         ++i)
      hwy::Pause();
    MutexLock lock(&mutex_);
    open_ = false;
    while (busy_.load(std::memory_order_acquire) > 0) all_left_.Wait(&mutex_);
    ++serving_;
    next_turn_.NotifyAll();
  }

  void Run(const Loop& loop) {
    for (;;) {
      const size_t range = next_range_.fetch_add(1, std::memory_order_relaxed);
      if (range >= loop.ranges) return;
      const size_t begin = range * loop.grain;
      (*loop.body)(begin, begin + std::min(loop.grain, loop.count - begin));
    }
  }

  void StartWorkers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (started_) return;
    started_ = true;
    workers_.reserve(threads_ - 1);
    for (int i = 1; i < threads_; ++i) {
      // A process at its limit of threads still computes, with fewer.
      try {
        workers_.emplace_back([this] { Work(); });
      } catch (const std::system_error&) {
        return;
      }
    }
  }

  void Work() ABSL_LOCKS_EXCLUDED(mutex_) {
    uint64_t seen = 0;
    for (;;) {
      for (int i = 0;
           i < kSpins && published_.load(std::memory_order_acquire) == seen;
           ++i)
        hwy::Pause();
      Loop loop;
      {
        MutexLock lock(&mutex_);
        while (published_.load(std::memory_order_relaxed) == seen) {
          ++sleeping_;
          wake_workers_.Wait(&mutex_);
          --sleeping_;
        }
        if (stopping_) return;
        seen = published_.load(std::memory_order_relaxed);
        if (!open_) continue;
        loop = loop_;
        busy_.fetch_add(1, std::memory_order_relaxed);
      }
      Run(loop);
      // Under the lock, so that the caller cannot miss the notice between its
      // look at busy_ and its wait.
      MutexLock lock(&mutex_);
      if (busy_.fetch_sub(1, std::memory_order_release) == 1)
        all_left_.NotifyOne();
    }
  }

  const int threads_;
  Mutex mutex_;
  CondVar wake_workers_;
  CondVar all_left_;
  CondVar next_turn_;

  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  int sleeping_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t serving_ ABSL_GUARDED_BY(mutex_) = 0;
  Loop loop_ ABSL_GUARDED_BY(mutex_);
  // Written under the lock by the first loop, read by the destructor only.
  std::vector<std::thread> workers_;

  // Changes of these are made under the lock; they are atomic so that spinning
  // threads can look at them without it.
  std::atomic<uint64_t> published_{0};  // loops opened so far
  std::atomic<int> busy_{0};            // workers inside the open loop

  // Taken from without the lock; apart from the rest, since every thread writes
  // it.
  alignas(64) std::atomic<size_t> next_range_{0};
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(threads)) {}
ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return impl_->threads(); }

void ThreadPool::ParallelFor(size_t count, size_t grain,
                             const std::function<void(size_t, size_t)>& body) {
  impl_->ParallelFor(count, grain, body);
}

}  // namespace quire
