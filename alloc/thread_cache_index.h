// The way from a thread to its caches.
//
// A thread has few of them, one for each stream and owner that it works with at
// a time, and nearly always wants the one it wanted last. That one is found by
// comparing; the others by a walk.
//
// When a thread ends, its caches go back to their allocators. When an allocator
// ends first, what the thread still knows of it is void: allocators have
// numbers that are never used again, and their *anchor* says whether they are
// there.

#ifndef QUIRE_ALLOC_THREAD_CACHE_INDEX_H_
#define QUIRE_ALLOC_THREAD_CACHE_INDEX_H_

#include <cstdint>
#include <memory>

#include "alloc/thread_cache.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

class ThreadCacheHome {
 public:
  // The thread that the cache belongs to has ended, or wants it no more. Called
  // without a lock; hooks may run inside.
  virtual void TakeCacheBack(ThreadCache* cache) = 0;

 protected:
  ~ThreadCacheHome() = default;
};

// Shared by an allocator and every thread that has a cache of it. Thread-safe.
class ThreadCacheAnchor {
 public:
  explicit ThreadCacheAnchor(ThreadCacheHome* allocator) : home_(allocator) {}

  // Nothing where the allocator is gone.
  void GiveBack(ThreadCache* cache) ABSL_LOCKS_EXCLUDED(mutex_);
  // The allocator goes: returns when no thread is giving back to it any more.
  // Call it without a lock that the allocator or a hook takes.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  bool closed() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  CondVar given_back_;
  ThreadCacheHome* home_ ABSL_GUARDED_BY(mutex_);  // null once closed
  int giving_ ABSL_GUARDED_BY(mutex_) = 0;         // threads inside of it
};

struct ThreadCacheRef {
  uint64_t allocator = 0;  // its number; 0 is nobody's
  StreamId stream;
  OwnerId owner;
  OwnerHeap* heap = nullptr;
  ThreadCache* cache = nullptr;
};

// The calling thread's. No constructor and no destructor, so that it is read
// without a call.
struct ThreadCacheIndex {
  ThreadCacheRef recent;
  const ThreadCacheRef* refs = nullptr;
  uint32_t count = 0;
  // The thread ends: it gets no cache any more.
  bool ended = false;

  // The cache of this thread for allocations of an owner, or null.
  ThreadCache* Find(uint64_t allocator, StreamId stream, OwnerId owner) {
    return FindIf([=](const ThreadCacheRef& ref) {
      return ref.allocator == allocator && ref.stream == stream &&
             ref.owner == owner;
    });
  }
  // The same for frees, which know the heap. Heaps are distinct, whatever their
  // allocator, while their allocator lives.
  ThreadCache* Find(uint64_t allocator, StreamId stream,
                    const OwnerHeap* heap) {
    return FindIf([=](const ThreadCacheRef& ref) {
      return ref.allocator == allocator && ref.stream == stream &&
             ref.heap == heap;
    });
  }
  template <typename Predicate>
  ThreadCache* FindIf(Predicate is_wanted) {
    if (is_wanted(recent)) [[likely]]
      return recent.cache;
    for (uint32_t i = 0; i < count; ++i) {
      if (!is_wanted(refs[i])) continue;
      recent = refs[i];
      return recent.cache;
    }
    return nullptr;
  }
};

// "initial-exec": found at a fixed offset from the thread's register, also in a
// shared library.
extern thread_local constinit ThreadCacheIndex thread_cache_index
    __attribute__((tls_model("initial-exec")));

// Enters a cache of the calling thread; where it has too many of one allocator,
// the oldest goes back. REQUIRES: the thread has not ended. Call without the
// anchor's and the allocator's locks.
void AddToThreadCacheIndex(const std::shared_ptr<ThreadCacheAnchor>& anchor,
                           const ThreadCacheRef& ref);

}  // namespace quire

#endif  // QUIRE_ALLOC_THREAD_CACHE_INDEX_H_
