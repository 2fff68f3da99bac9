// Random strings of operations against a model: see allocator_operations.h.

#include "alloc/testing/allocator_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "alloc/testing/test_driver.h"

namespace quire {
namespace {

absl::Status RunOnFreshDriver(const std::vector<uint8_t>& bytes,
                              Bytes page = AllocatorOperations::kSmallPage) {
  auto driver = TestDriver::Create(AllocatorOperations::DriverOptions(page));
  if (!driver.ok()) return driver.status();
  absl::Status status = AllocatorOperations(driver->get(), bytes, page).Run();
  EXPECT_THAT((*driver)->Leaks(), ::testing::IsEmpty());
  return status;
}

class AllocatorOperationsTest : public ::testing::TestWithParam<uint64_t> {};

std::vector<uint8_t> RandomBytes(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(4000);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

TEST_P(AllocatorOperationsTest, AgreeWithTheModel) {
  EXPECT_EQ(RunOnFreshDriver(RandomBytes(GetParam())), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Seeds, AllocatorOperationsTest,
                         ::testing::Range<uint64_t>(0, 24));

class AllocatorOperationsInLargePagesTest : public AllocatorOperationsTest {};

TEST_P(AllocatorOperationsInLargePagesTest, AgreeWithTheModel) {
  EXPECT_EQ(RunOnFreshDriver(RandomBytes(GetParam()),
                             AllocatorOperations::kLargePage),
            absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Seeds, AllocatorOperationsInLargePagesTest,
                         ::testing::Range<uint64_t>(100, 108));

// What the fuzzer found, and where it begins.
TEST(AllocatorOperationsCorpusTest, EachInputAgreesWithTheModel) {
  const std::filesystem::path corpus =
      std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/fuzz/corpus/allocator";
  size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    SCOPED_TRACE(entry.path().filename());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(RunOnFreshDriver(bytes), absl::OkStatus());
    ++inputs;
  }
  EXPECT_GT(inputs, 0u);
}

}  // namespace
}  // namespace quire
