#include "alloc/cuda_host_functions.h"

#include <iterator>
#include <utility>

namespace quire {

absl::Status CudaHostFunctions::Add(std::function<void()> function,
                                    const Launch& launch) {
  Entry* entry = nullptr;
  {
    MutexLock lock(&mutex_);
    entry = &entries_.emplace_back(Entry{this, std::move(function), {}});
    entry->self = std::prev(entries_.end());
  }
  // Once it is queued it may run, and be gone, at any time.
  absl::Status status = launch(&Run, entry);
  if (!status.ok()) (void)Take(entry);
  return status;
}

void CUDA_CB CudaHostFunctions::Run(void* argument) {
  auto* const entry = static_cast<Entry*>(argument);
  const std::function<void()> function = entry->owner->Take(entry);
  function();
}

std::function<void()> CudaHostFunctions::Take(Entry* entry) {
  MutexLock lock(&mutex_);
  std::function<void()> function = std::move(entry->function);
  entries_.erase(entry->self);
  return function;
}

}  // namespace quire
