// The reclaimers of one DeviceMemory, called without a lock held.
//
// A reclaimer that is being called cannot go away: Remove waits for the calls.
// Thread-safe.

#ifndef QUIRE_ALLOC_RECLAIMER_LIST_H_
#define QUIRE_ALLOC_RECLAIMER_LIST_H_

#include <functional>
#include <memory>
#include <vector>

#include "quire/alloc/device_memory.h"
#include "quire/alloc/mutex.h"

namespace quire {

class ReclaimerList {
 public:
  void Add(PageReclaimer* reclaimer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns when no thread is inside `reclaimer`.
  void Remove(PageReclaimer* reclaimer) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `function` for each, in the order of Add, until it returns false.
  // Those removed meanwhile are left out.
  void ForEach(const std::function<bool(PageReclaimer*)>& function)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What all of them could give, in sum.
  PageCount Reclaimable() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    PageReclaimer* reclaimer;
    int calls = 0;  // threads inside it
    bool removed = false;
  };

  Mutex mutex_;
  CondVar call_ended_;
  std::vector<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_ALLOC_RECLAIMER_LIST_H_
