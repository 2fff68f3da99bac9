// CudaDriver over a fake of libcuda. Whatever a test does, all goes back at its
// end.

#ifndef QUIRE_ALLOC_TESTING_CUDA_DRIVER_FIXTURE_H_
#define QUIRE_ALLOC_TESTING_CUDA_DRIVER_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "alloc/cuda_driver_impl.h"
#include "alloc/testing/fake_cuda.h"
#include "quire/alloc/driver.h"

namespace quire {

class CudaDriverFixture : public ::testing::Test {
 public:
  static constexpr Bytes kPage = MiB(2);
  static constexpr uint64_t kPageBytes = kPage.value();

 protected:
  CudaDriverFixture() { Start({}); }
  ~CudaDriverFixture() override { End(); }

  void Start(const FakeCudaOptions& options) {
    End();
    cuda_ = *FakeCuda::Create(options);
    auto driver = CreateCudaDriverOn(cuda_->Table());
    ASSERT_TRUE(driver.ok()) << driver.status();
    driver_ = *std::move(driver);
  }
  // Nothing may be left behind.
  void End() {
    driver_.reset();
    if (cuda_ == nullptr) return;
    EXPECT_THAT(cuda_->Leaks(), ::testing::IsEmpty());
    EXPECT_THAT(cuda_->ContextLeaks(), ::testing::IsEmpty());
  }
  std::map<CUdeviceptr, FakeCudaMemory::Mapping> Mappings() const {
    return cuda_->memory().mappings();
  }
  DeviceAddress Reserve(uint64_t pages) {
    return *driver_->ReserveAddress(Bytes(pages * kPageBytes), Bytes(0));
  }
  PageHandle CreatePage(DeviceId device = DeviceId(0)) {
    return *driver_->CreatePage(device, kPage);
  }
  std::vector<PageHandle> CreatePages(int count) {
    std::vector<PageHandle> pages;
    for (int i = 0; i < count; ++i) pages.push_back(CreatePage());
    return pages;
  }
  static DeviceAddress At(DeviceAddress base, uint64_t page) {
    return *CheckedAdd(base, Bytes(page * kPageBytes));
  }
  bool AllAccessible() const {
    for (const auto& [address, mapping] : Mappings()) {
      if (!mapping.Allows(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) return false;
    }
    return true;
  }

  std::unique_ptr<FakeCuda> cuda_;
  std::unique_ptr<Driver> driver_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_CUDA_DRIVER_FIXTURE_H_
