// Objects of callers that are called without a lock held.
//
// One that is being called cannot go away: Remove waits for the calls.
// Thread-safe.

#ifndef QUIRE_ALLOC_CALLBACK_LIST_H_
#define QUIRE_ALLOC_CALLBACK_LIST_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "quire/alloc/mutex.h"

namespace quire {

template <typename T>
class CallbackList {
 public:
  void Add(T* callee) ABSL_LOCKS_EXCLUDED(mutex_) {
    auto entry = std::make_shared<Entry>();
    entry->callee = callee;
    MutexLock lock(&mutex_);
    entries_.push_back(std::move(entry));
  }

  // Returns when no thread is inside `callee`: not to be called from there.
  void Remove(T* callee) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    const auto found = std::find_if(
        entries_.begin(), entries_.end(),
        [&](const auto& entry) { return entry->callee == callee; });
    if (found == entries_.end()) return;
    const std::shared_ptr<Entry> entry = *found;
    entry->removed = true;
    entries_.erase(found);
    while (entry->calls > 0) call_ended_.Wait(&mutex_);
  }

  bool empty() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return entries_.empty();
  }

  // Calls `function(callee)` for each, in the order of Add, until it returns
  // false. Those removed meanwhile are left out.
  template <typename Function>
  void ForEach(Function function) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<std::shared_ptr<Entry>> entries;
    {
      MutexLock lock(&mutex_);
      entries = entries_;
    }
    for (const auto& entry : entries) {
      {
        MutexLock lock(&mutex_);
        if (entry->removed) continue;
        ++entry->calls;
      }
      const bool go_on = function(entry->callee);
      {
        MutexLock lock(&mutex_);
        --entry->calls;
        call_ended_.NotifyAll();
      }
      if (!go_on) return;
    }
  }

 private:
  // Guarded by mutex_.
  struct Entry {
    T* callee;
    int calls = 0;  // threads inside it
    bool removed = false;
  };

  mutable Mutex mutex_;
  CondVar call_ended_;
  std::vector<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_ALLOC_CALLBACK_LIST_H_
