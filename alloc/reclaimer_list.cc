#include "alloc/reclaimer_list.h"

#include <algorithm>

namespace quire {

void ReclaimerList::Add(PageReclaimer* reclaimer) {
  auto entry = std::make_shared<Entry>();
  entry->reclaimer = reclaimer;
  MutexLock lock(&mutex_);
  entries_.push_back(std::move(entry));
}

void ReclaimerList::Remove(PageReclaimer* reclaimer) {
  MutexLock lock(&mutex_);
  const auto found = std::find_if(
      entries_.begin(), entries_.end(),
      [&](const auto& entry) { return entry->reclaimer == reclaimer; });
  if (found == entries_.end()) return;
  const std::shared_ptr<Entry> entry = *found;
  entry->removed = true;
  entries_.erase(found);
  while (entry->calls > 0) call_ended_.Wait(&mutex_);
}

void ReclaimerList::ForEach(
    const std::function<bool(PageReclaimer*)>& function) {
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
    const bool go_on = function(entry->reclaimer);
    {
      MutexLock lock(&mutex_);
      --entry->calls;
      call_ended_.NotifyAll();
    }
    if (!go_on) return;
  }
}

PageCount ReclaimerList::Reclaimable() {
  uint64_t sum = 0;
  ForEach([&](PageReclaimer* reclaimer) {
    sum =
        CheckedAdd(sum, reclaimer->Reclaimable().value()).value_or(UINT64_MAX);
    return true;
  });
  return PageCount(sum);
}

}  // namespace quire
