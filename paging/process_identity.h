// Which process it is, beyond its number: numbers are used again.

#ifndef QUIRE_PAGING_PROCESS_IDENTITY_H_
#define QUIRE_PAGING_PROCESS_IDENTITY_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace quire {

struct ProcessIdentity {
  int32_t pid = 0;
  // Since boot, in ticks of the kernel: field 22 of /proc/PID/stat.
  uint64_t start_time = 0;
  friend bool operator==(const ProcessIdentity&,
                         const ProcessIdentity&) = default;
};

absl::StatusOr<ProcessIdentity> CurrentProcess();

// False where it has ended, also where nobody has waited for it yet: a process
// becomes a zombie after its memory and its files are gone. True where the
// kernel does not tell: a claim is rather kept than taken from the living. A
// few system calls.
bool IsAlive(const ProcessIdentity& process);

// Numbers of processes mean something within one of these only; 0 where the
// kernel has none.
uint64_t PidNamespace();

}  // namespace quire

#endif  // QUIRE_PAGING_PROCESS_IDENTITY_H_
