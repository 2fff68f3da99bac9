// A fixed set of threads that run one parallel loop at a time.

#ifndef QUIRE_MODEL_THREAD_POOL_H_
#define QUIRE_MODEL_THREAD_POOL_H_

#include <cstddef>
#include <functional>
#include <memory>

namespace quire {

class ThreadPool {
 public:
  // `threads` work on a loop, the calling one among them; 0: one per core that
  // this process may run on.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(begin, end) for disjoint ranges that cover [0, count), each a
  // multiple of `grain` but for the last, and returns when all are done. Ranges
  // are taken dynamically, so no result may depend on how [0, count) is cut.
  // Not reentrant: body must not call ParallelFor. Thread-safe: concurrent
  // callers take turns.
  void ParallelFor(size_t count, size_t grain,
                   const std::function<void(size_t, size_t)>& body);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_THREAD_POOL_H_
