// The physical memory of a software device, page by page: for tools that show
// or check where memory lies, whatever its users say.

#ifndef QUIRE_ALLOC_HOST_PAGES_H_
#define QUIRE_ALLOC_HOST_PAGES_H_

#include <vector>

#include "quire/alloc/host_driver.h"
#include "quire/alloc/units.h"

namespace quire {

struct HostPage {
  DeviceId device;
  // Where it lies in the memory of its device. Offsets are handed out from the
  // lowest free one on and may exceed the device's memory: only the sum of the
  // sizes counts.
  Bytes offset;
  Bytes size;
  // Where it is mapped, in order: none where it is kept, several where it is
  // shared.
  std::vector<DeviceAddress> addresses;
};

// All pages that are held, by device and offset. REQUIRES: the driver was made
// by HostDriver::Create. O(n log n) of pages and mappings, under the lock of
// both.
std::vector<HostPage> ListHostPages(const HostDriver& driver);

}  // namespace quire

#endif  // QUIRE_ALLOC_HOST_PAGES_H_
