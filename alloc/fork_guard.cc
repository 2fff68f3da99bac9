#include "alloc/fork_guard.h"

#include <pthread.h>

namespace quire {

std::atomic<uint64_t> ForkGuard::process_generation{0};

ForkGuard::ForkGuard()
    : generation_(process_generation.load(std::memory_order_relaxed)) {
  // It fails only where there is no memory for an entry of a list; a child is
  // then not noticed, as without any guard.
  [[maybe_unused]] static const int registered = pthread_atfork(
      /*prepare=*/nullptr, /*parent=*/nullptr,
      [] { process_generation.fetch_add(1, std::memory_order_relaxed); });
}

absl::Status ForkGuard::Check() const {
  if (!in_child()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked from the one whose device memory this is: only "
      "that one can use it");
}

}  // namespace quire
