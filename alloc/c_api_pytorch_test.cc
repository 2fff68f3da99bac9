// PyTorch's pluggable allocator, called as PyTorch calls it: through pointers
// of its types, with streams that are pointers.

#include "quire/alloc/c_api_pytorch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "alloc/testing/c_api_fixture.h"
#include "alloc/testing/device_memory_fixture.h"

namespace {

using ::testing::HasSubstr;

struct CudaStream;  // behind cudaStream_t

class CApiPyTorchTest : public quire::CApiFixture {
 protected:
  CApiPyTorchTest() { EXPECT_EQ(quire_pytorch_use(runtime_), QUIRE_OK); }
  ~CApiPyTorchTest() override {
    EXPECT_EQ(quire_pytorch_use(nullptr), QUIRE_OK) << quire_last_error();
  }

  // As torch/csrc/cuda/CUDAPluggableAllocator.h has them, from addresses that
  // dlsym gave.
  using Allocate = void*(size_t, int, CudaStream*);
  using Free = void(void*, size_t, int, CudaStream*);
  const std::function<Allocate> alloc_ = reinterpret_cast<Allocate*>(
      reinterpret_cast<void*>(&quire_pytorch_alloc));
  const std::function<Free> free_ =
      reinterpret_cast<Free*>(reinterpret_cast<void*>(&quire_pytorch_free));
};

TEST_F(CApiPyTorchTest, MemoryIsTheRuntimesOwn) {
  void* const small = alloc_(1000, 0, nullptr);
  void* const large = alloc_(3 * kPage, 0, nullptr);
  std::memset(small, 1, 1000);
  std::memset(large, 2, 3 * kPage);
  EXPECT_EQ(Statistics().live_allocations, 2u);
  EXPECT_EQ(Statistics().requested_bytes, 1000 + 3 * kPage);
  free_(small, 1000, 0, nullptr);
  free_(large, 3 * kPage, 0, nullptr);
  free_(nullptr, 0, 0, nullptr);
  EXPECT_EQ(Statistics().live_allocations, 0u) << quire_last_error();
}

TEST_F(CApiPyTorchTest, WhatCannotBeHadIsAnExceptionWithTheVerdict) {
  try {
    (void)alloc_(33 * kPage, 0, nullptr);
    FAIL() << "more than there is";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("out of device memory"));
    EXPECT_EQ(std::string(error.what()), quire_last_error());
  }
  EXPECT_THROW((void)alloc_(SIZE_MAX, 0, nullptr), std::bad_alloc);
  EXPECT_THROW((void)alloc_(1, 1, nullptr), std::bad_alloc);
  EXPECT_THROW((void)alloc_(1, -1, nullptr), std::bad_alloc);
}

TEST_F(CApiPyTorchTest, WrongFreesAreToldAndChangeNothing) {
  void* const memory = alloc_(1000, 0, nullptr);
  free_(static_cast<char*>(memory) + 8, 1000, 0, nullptr);
  EXPECT_THAT(quire_last_error(), HasSubstr("not the start"));
  EXPECT_EQ(Statistics().live_allocations, 1u);
  free_(memory, 1000, 0, nullptr);
  free_(memory, 1000, 0, nullptr);
  EXPECT_THAT(quire_last_error(), HasSubstr("freed already"));
  int local = 0;
  quire_pytorch_record_stream(&local, nullptr);
  EXPECT_THAT(quire_last_error(), HasSubstr("never allocated"));
}

// Pointers stand for streams: what one freed, another has only when that one's
// work is done.
TEST_F(CApiPyTorchTest, StreamsAreToldApart) {
  int names[2] = {};
  const auto first = reinterpret_cast<CudaStream*>(&names[0]);
  const auto second = reinterpret_cast<CudaStream*>(&names[1]);
  void* const memory = alloc_(3 * kPage, 0, first);
  quire_allocation_info info = QUIRE_ALLOCATION_INFO_INIT;
  ASSERT_EQ(quire_allocator_find(allocator_, reinterpret_cast<uint64_t>(memory),
                                 &info),
            QUIRE_OK);
  {
    quire::Gate gate(driver_, quire::StreamId(info.stream));
    free_(memory, 3 * kPage, 0, first);
    void* const again = alloc_(3 * kPage, 0, first);
    EXPECT_EQ(again, memory);
    // Somebody else uses it until the gate opens.
    void* const other = alloc_(1000, 0, second);
    quire_pytorch_record_stream(other, first);
    free_(other, 1000, 0, second);
    free_(again, 3 * kPage, 0, second);
    EXPECT_GT(Statistics().cooling_bytes, 0u);
  }
  ASSERT_EQ(quire_stream_synchronize(runtime_, info.stream), QUIRE_OK);
}

TEST_F(CApiPyTorchTest, ServesOneRuntimeUntilNothingOfItIsLive) {
  void* const memory = alloc_(1000, 0, nullptr);
  EXPECT_EQ(quire_pytorch_use(nullptr), QUIRE_FAILED_PRECONDITION);
  EXPECT_THAT(quire_last_error(), HasSubstr("1 allocations"));
  quire_runtime* serving = nullptr;
  ASSERT_EQ(quire_pytorch_get_runtime(&serving), QUIRE_OK);
  uint32_t owner = 0;
  EXPECT_EQ(quire_owner_register(serving, "model", &owner), QUIRE_OK);
  quire_runtime_destroy(serving);
  free_(memory, 1000, 0, nullptr);
  ASSERT_EQ(quire_pytorch_use(nullptr), QUIRE_OK);
  EXPECT_EQ(quire_pytorch_get_runtime(&serving), QUIRE_FAILED_PRECONDITION);
  EXPECT_EQ(quire_pytorch_get_runtime(nullptr), QUIRE_INVALID_ARGUMENT);
  free_(memory, 1000, 0, nullptr);
  EXPECT_THAT(quire_last_error(), HasSubstr("no runtime serves PyTorch"));
}

TEST_F(CApiPyTorchTest, ManyThreadsMayAllocate) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        void* const memory = alloc_(1000 + round, 0, nullptr);
        std::memset(memory, round, 1000);
        free_(memory, 1000, 0, nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Statistics().live_allocations, 0u);
}

}  // namespace
