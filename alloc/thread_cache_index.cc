#include "alloc/thread_cache_index.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace quire {

thread_local constinit ThreadCacheIndex thread_cache_index
    __attribute__((tls_model("initial-exec")));

namespace {

// Caches of one allocator in one thread. Programs that make a stream for each
// request must not gather caches for streams that are gone.
constexpr std::ptrdiff_t kCachesPerAllocator = 64;

// What the index of the thread shows, and the end of it.
struct ThreadCaches {
  ~ThreadCaches() {
    // Frees that other thread-local objects make later find no cache, and make
    // none.
    thread_cache_index = ThreadCacheIndex();
    thread_cache_index.ended = true;
    for (size_t i = 0; i < refs.size(); ++i) {
      anchors[i]->GiveBack(refs[i].cache);
    }
  }
  void Erase(size_t i) {
    refs.erase(refs.begin() + static_cast<std::ptrdiff_t>(i));
    anchors.erase(anchors.begin() + static_cast<std::ptrdiff_t>(i));
  }

  std::vector<ThreadCacheRef> refs;  // in order of their making
  std::vector<std::shared_ptr<ThreadCacheAnchor>> anchors;
};

thread_local ThreadCaches thread_caches;

// In a forked child the caches are the parent's, and so are the allocators:
// locks of theirs may be held by threads that are not there.
void ForgetCaches() {
  thread_cache_index = ThreadCacheIndex();
  thread_caches.refs.clear();
  thread_caches.anchors.clear();
}

}  // namespace

void ThreadCacheAnchor::GiveBack(ThreadCache* cache) {
  ThreadCacheHome* home = nullptr;
  {
    MutexLock lock(&mutex_);
    if (home_ == nullptr) return;
    home = home_;
    ++giving_;
  }
  home->TakeCacheBack(cache);
  MutexLock lock(&mutex_);
  if (--giving_ == 0) given_back_.NotifyAll();
}

void ThreadCacheAnchor::Close() {
  MutexLock lock(&mutex_);
  home_ = nullptr;
  while (giving_ > 0) given_back_.Wait(&mutex_);
}

bool ThreadCacheAnchor::closed() const {
  MutexLock lock(&mutex_);
  return home_ == nullptr;
}

void AddToThreadCacheIndex(const std::shared_ptr<ThreadCacheAnchor>& anchor,
                           const ThreadCacheRef& ref) {
  static const int registered = pthread_atfork(nullptr, nullptr, &ForgetCaches);
  (void)registered;
  ThreadCaches& mine = thread_caches;
  for (size_t i = mine.refs.size(); i-- > 0;) {
    if (mine.anchors[i]->closed()) mine.Erase(i);
  }
  const auto of_allocator = [&](const ThreadCacheRef& other) {
    return other.allocator == ref.allocator;
  };
  if (std::count_if(mine.refs.begin(), mine.refs.end(), of_allocator) >=
      kCachesPerAllocator) {
    const auto oldest =
        std::find_if(mine.refs.begin(), mine.refs.end(), of_allocator);
    ThreadCache* const cache = oldest->cache;
    mine.Erase(static_cast<size_t>(oldest - mine.refs.begin()));
    anchor->GiveBack(cache);
  }
  mine.refs.push_back(ref);
  mine.anchors.push_back(anchor);
  thread_cache_index.recent = ref;
  thread_cache_index.refs = mine.refs.data();
  thread_cache_index.count = static_cast<uint32_t>(mine.refs.size());
}

}  // namespace quire
