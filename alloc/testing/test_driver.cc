#include "alloc/testing/test_driver.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

#ifdef QUIRE_FAKE_CUDA
#include <gtest/gtest.h>

#include "alloc/cuda_driver_impl.h"
#include "alloc/testing/fake_cuda.h"
#endif

namespace quire {
namespace {

class HostDevice : public TestDriver::Device {
 public:
  explicit HostDevice(std::unique_ptr<HostDriver> driver)
      : driver_(std::move(driver)) {}

  Driver* driver() override { return driver_.get(); }
  std::vector<std::string> Leaks() const override { return driver_->Leaks(); }

 private:
  const std::unique_ptr<HostDriver> driver_;
};

#ifdef QUIRE_FAKE_CUDA
class FakeCudaDevice : public TestDriver::Device {
 public:
  FakeCudaDevice(std::unique_ptr<FakeCuda> cuda, std::unique_ptr<Driver> driver)
      : cuda_(std::move(cuda)), driver_(std::move(driver)) {}
  // Whatever the test left, CudaDriver must give back all that it holds.
  ~FakeCudaDevice() override {
    driver_.reset();
    for (const auto& leaks : {cuda_->Leaks(), cuda_->ContextLeaks()}) {
      for (const std::string& leak : leaks) {
        ADD_FAILURE() << "after the end of CudaDriver, " << leak;
      }
    }
  }

  Driver* driver() override { return driver_.get(); }
  std::vector<std::string> Leaks() const override { return cuda_->Leaks(); }

 private:
  const std::unique_ptr<FakeCuda> cuda_;
  std::unique_ptr<Driver> driver_;
};

absl::StatusOr<std::unique_ptr<TestDriver::Device>> CreateFakeCudaDevice(
    const HostDriverOptions& options) {
  FakeCudaOptions fake;
  fake.device_count = options.device_count;
  fake.memory_per_device = options.memory_per_device.value();
  fake.granularity = options.granularity.value();
  fake.backing = options.backing == HostDriverOptions::Backing::kMemory;
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<FakeCuda> cuda,
                         FakeCuda::Create(fake));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver,
                         CreateCudaDriverOn(cuda->Table()));
  return std::make_unique<FakeCudaDevice>(std::move(cuda), std::move(driver));
}
#endif

absl::StatusOr<std::unique_ptr<TestDriver::Device>> CreateDevice(
    std::string_view kind, const HostDriverOptions& options) {
  if (kind == "host") {
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostDriver> driver,
                           HostDriver::Create(options));
    return std::make_unique<HostDevice>(std::move(driver));
  }
#ifdef QUIRE_FAKE_CUDA
  if (kind == "cuda_fake") return CreateFakeCudaDevice(options);
#endif
  return absl::InvalidArgumentError(absl::StrFormat(
      "QUIRE_TEST_DRIVER names no driver of this build: \"%s\"", kind));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TestDriver>> TestDriver::Create(
    const HostDriverOptions& options) {
  const char* const kind = std::getenv("QUIRE_TEST_DRIVER");
  QUIRE_ASSIGN_OR_RETURN(
      std::unique_ptr<Device> device,
      CreateDevice(kind == nullptr ? "host" : kind, options));
  return absl::WrapUnique(new TestDriver(std::move(device)));
}

}  // namespace quire
