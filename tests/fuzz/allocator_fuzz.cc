// Whatever the operations, a DeviceAllocator agrees with the model of
// alloc/testing/allocator_operations.h.

#include <cstdint>
#include <memory>

#include "alloc/testing/allocator_operations.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/status_macros.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {

absl::Status FuzzAllocator(std::string_view input) {
  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<HostDriver> driver,
      HostDriver::Create(AllocatorOperations::DriverOptions()));
  QUIRE_RETURN_IF_ERROR(
      AllocatorOperations(
          driver.get(),
          {reinterpret_cast<const uint8_t*>(input.data()), input.size()})
          .Run());
  return Property(driver->Leaks().empty(), "the driver has everything back");
}

}  // namespace quire
