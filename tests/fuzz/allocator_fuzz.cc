// Whatever the operations, a DeviceAllocator agrees with the model of
// alloc/testing/allocator_operations.h.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "alloc/testing/allocator_operations.h"
#include "quire/alloc/host_driver.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto driver =
      quire::HostDriver::Create(quire::AllocatorOperations::DriverOptions());
  if (!driver.ok()) std::abort();
  const absl::Status status =
      quire::AllocatorOperations(driver->get(), {data, size}).Run();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::abort();
  }
  if (!(*driver)->Leaks().empty()) std::abort();
  return 0;
}
