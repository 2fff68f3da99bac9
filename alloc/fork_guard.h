// Tells a forked child that it is one.
//
// A child has the parent's memory and none of its threads: locks may be held by
// threads that do not exist, and a driver's state belongs to the parent.
// Objects that a child must not use keep a ForkGuard and ask it before they
// take a lock or call the driver. One load: no system call.
//
// Children of vfork and of clone are not noticed; they have to exec.

#ifndef QUIRE_ALLOC_FORK_GUARD_H_
#define QUIRE_ALLOC_FORK_GUARD_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace quire {

class ForkGuard {
 public:
  // Belongs to the process that makes it.
  ForkGuard();

  bool in_child() const {
    return generation_ != process_generation.load(std::memory_order_relaxed);
  }
  // kFailedPrecondition in a child.
  absl::Status Check() const;

 private:
  // Counts the forks between the first guard's process and this one.
  static std::atomic<uint64_t> process_generation;

  const uint64_t generation_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_FORK_GUARD_H_
