// A software device: CUDA's virtual memory management in host memory.
//
// Physical pages are ranges of one memfd, an address range is a PROT_NONE
// reservation, a mapping is mmap(MAP_FIXED | MAP_SHARED): aliases really alias
// and touching unbacked addresses really faults. Streams are ordered queues on
// threads, so use after free across streams is real too. It is as strict as the
// CUDA documentation (granularity, double map, unmap of part of a page, release
// order); what a real driver would only leak is found at teardown. Memory is
// taken from the machine at first touch and returns to it when a page is freed;
// a new page reads as zeros, which no GPU promises.
//
// The software devices are peers of each other, as those of one NVLink machine.
// A forked child shares the memory but has no streams: it must not use them.
//
// With Backing::kNone pages carry no memory, so a 141 GB device fits on a
// laptop: every call is checked and counted alike, copies and fills are checked
// and dropped, and reads of the device give zeros.

#ifndef QUIRE_ALLOC_HOST_DRIVER_H_
#define QUIRE_ALLOC_HOST_DRIVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/virtual_clock.h"

namespace quire {

struct HostDriverOptions {
  enum class Backing { kMemory, kNone };

  int device_count = 1;
  // Physical memory of each device.
  Bytes memory_per_device = GiB(8);
  // Sizes and addresses are multiples of this; a power of two from 4 KiB on.
  Bytes granularity = MiB(2);
  Backing backing = Backing::kMemory;
  // What each call adds to the virtual clock.
  DriverCostTable costs = DriverCostTable::A100();
  // Kernel mappings that this driver may use; the kernel allows 65,530 for the
  // whole process, and at its limit even unmapping fails. Pages created one
  // after the other and mapped side by side share one. Map stops at the limit,
  // Unmap (which may split a mapping) a sixteenth above it, both with
  // kResourceExhausted. Lowered to what the kernel allows.
  uint64_t mapping_limit = 60000;
};

class HostDriver : public Driver {
 public:
  static absl::StatusOr<std::unique_ptr<HostDriver>> Create(
      const HostDriverOptions& options);

  // What is still held, in words, empty where nothing is: the teardown check.
  // Call it when everything should have been given back.
  virtual std::vector<std::string> Leaks() const = 0;
  virtual VirtualClock* clock() = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_HOST_DRIVER_H_
