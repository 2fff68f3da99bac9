// What a cache, or what sizes its memory, answers in a forked child, where a
// thread that is not there may hold its locks.

#ifndef QUIRE_PAGING_PROCESS_CHECK_H_
#define QUIRE_PAGING_PROCESS_CHECK_H_

#include "absl/status/status.h"
#include "quire/alloc/device_memory.h"

namespace quire {

inline absl::Status CheckProcess(const DeviceMemory& memory) {
  if (!memory.in_forked_child()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked from the one whose KV memory this is: only that "
      "one can use it");
}

}  // namespace quire

#endif  // QUIRE_PAGING_PROCESS_CHECK_H_
