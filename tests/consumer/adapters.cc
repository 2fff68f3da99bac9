// Device memory behind interfaces of others: std::pmr.
#include <quire/alloc/allocation_error.h>
#include <quire/alloc/host_driver.h>
#include <quire/alloc/memory_resource.h>
#include <quire/alloc/runtime.h>

#include <cstdio>
#include <memory_resource>
#include <utility>
#include <vector>

int main() {
  auto driver =
      quire::HostDriver::Create({.memory_per_device = quire::MiB(64)});
  auto runtime = quire::Runtime::Create(*std::move(driver), {});
  quire::DeviceMemoryResource resource((*runtime)->allocator());
  std::pmr::vector<int> numbers(1'000'000, 7, &resource);
  try {
    (void)resource.allocate(size_t{1} << 40);
    return 1;
  } catch (const std::bad_alloc& error) {
    std::printf("%d: %s\n", numbers.back(), error.what());
  }
  return 0;
}
