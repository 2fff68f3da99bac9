// The driver that tests above the driver seam run on.
//
// Every such test runs once on HostDriver and once on CudaDriver: the same
// program, told which by the environment variable QUIRE_TEST_DRIVER ("host", as
// where it is not set, or "cuda_fake"). quire_test(... DRIVERS) registers both
// runs. Behind CudaDriver is a strict fake of NVIDIA's driver (fake_cuda.h)
// with memory at the addresses that it hands out, so that a test may play the
// device and read and write through them on both. What only one driver does is
// skipped on the other by its name().

#ifndef QUIRE_ALLOC_TESTING_TEST_DRIVER_H_
#define QUIRE_ALLOC_TESTING_TEST_DRIVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/host_driver.h"

namespace quire {

// A FaultyDriver, because that passes everything on until it is told to fail.
class TestDriver : public FaultyDriver {
 public:
  // A driver on a device that keeps its own books.
  class Device {
   public:
    virtual ~Device() = default;
    virtual Driver* driver() = 0;
    virtual std::vector<std::string> Leaks() const = 0;
  };

  // The options mean the same to both; costs and mapping_limit are HostDriver's
  // alone.
  static absl::StatusOr<std::unique_ptr<TestDriver>> Create(
      const HostDriverOptions& options);

  // What is still held, in words, from the books of the device: empty where
  // everything was given back.
  std::vector<std::string> Leaks() const { return device_->Leaks(); }

 private:
  explicit TestDriver(std::unique_ptr<Device> device)
      : FaultyDriver(device->driver()), device_(std::move(device)) {}

  const std::unique_ptr<Device> device_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_TEST_DRIVER_H_
