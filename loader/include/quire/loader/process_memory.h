// How much memory this process has, and had at its worst.
//
// Anonymous memory is what a process really takes from a machine: it cannot be
// dropped under pressure, only swapped. File pages can be, and pages of
// HostDriver's devices are shared memory that stands for a GPU's; neither is
// part of it. The loader's pinned ring is.

#ifndef QUIRE_LOADER_PROCESS_MEMORY_H_
#define QUIRE_LOADER_PROCESS_MEMORY_H_

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

struct ProcessMemory {
  Bytes anonymous;      // RssAnon, now
  Bytes resident;       // VmRSS, now: anonymous, file and shared memory
  Bytes peak_resident;  // VmHWM, since the process started
};

// From /proc/self/status. The kernel counts in batches of a few dozen pages per
// thread, so the figures are good to a fraction of a MiB.
absl::StatusOr<ProcessMemory> ReadProcessMemory();

// What the machine could still give to programs without swapping, from
// /proc/meminfo.
absl::StatusOr<Bytes> ReadAvailableMemory();

// The most anonymous memory seen between Start and Stop. The kernel keeps no
// such peak (VmHWM counts all kinds), so a thread looks every `interval`; what
// was taken and given back in between is missed.
class AnonymousPeakSampler {
 public:
  static absl::StatusOr<std::unique_ptr<AnonymousPeakSampler>> Start(
      std::chrono::microseconds interval = std::chrono::milliseconds(2));
  ~AnonymousPeakSampler();

  // Looks once more and ends the sampling; later calls return the same.
  Bytes Stop();

 private:
  class Impl;
  explicit AnonymousPeakSampler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_PROCESS_MEMORY_H_
