#include "quire/alloc/faulty_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quire/alloc/host_driver.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Bytes kPage = KiB(64);

std::unique_ptr<HostDriver> MakeHostDriver() {
  HostDriverOptions options;
  options.memory_per_device = MiB(4);
  options.granularity = kPage;
  return *HostDriver::Create(options);
}

class FaultyDriverTest : public ::testing::Test {
 protected:
  std::unique_ptr<HostDriver> host_ = MakeHostDriver();
  FaultyDriver driver_{host_.get()};
};

// Backs a range and gives all of it back, whatever fails on the way.
absl::Status BackOneRange(Driver* driver) {
  QUIRE_ASSIGN_OR_RETURN(const PageHandle page,
                         driver->CreatePage(DeviceId(0), kPage));
  const auto address = driver->ReserveAddress(kPage, Bytes(0));
  absl::Status status = address.status();
  if (status.ok()) {
    status = driver->Map(*address, {&page, 1});
    if (status.ok()) status = driver->Unmap(*address, kPage);
    if (!status.ok()) (void)driver->Unmap(*address, kPage);
    const absl::Status released = driver->ReleaseAddress(*address, kPage);
    if (!released.ok()) (void)driver->ReleaseAddress(*address, kPage);
    if (status.ok()) status = released;
  }
  const absl::Status released = driver->ReleasePage(page);
  if (!released.ok()) (void)driver->ReleasePage(page);
  return status.ok() ? released : status;
}

TEST_F(FaultyDriverTest, WithoutFaultsItIsTheDriverUnderneath) {
  EXPECT_EQ(driver_.name(), "host");
  EXPECT_EQ(driver_.device_count(), 1);
  EXPECT_TRUE(driver_.device_memory_is_host_memory());
  EXPECT_TRUE(BackOneRange(&driver_).ok());
  EXPECT_EQ(driver_.calls(), 6u);
  EXPECT_EQ(driver_.faults_fired(), 0u);
  EXPECT_EQ(driver_.GetCallStatistics().total_count(), 6u);
  EXPECT_THAT(host_->Leaks(), IsEmpty());
}

// The loop of the header's comment.
TEST_F(FaultyDriverTest, FailsEveryCallOfAnOperationInTurn) {
  uint64_t n = 1;
  for (;; ++n) {
    driver_.FailCall(n, absl::StatusCode::kUnavailable);
    const absl::Status status = BackOneRange(&driver_);
    if (driver_.faults_fired() < n) {
      driver_.ClearFaults();
      EXPECT_TRUE(status.ok()) << status;
      break;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("fault injected"));
    EXPECT_THAT(host_->Leaks(), IsEmpty());
  }
  EXPECT_EQ(n, 7u);
  EXPECT_TRUE(BackOneRange(&driver_).ok());
}

TEST_F(FaultyDriverTest, FailsTheNthCallOfAKindOnce) {
  driver_.FailCall(DriverCall::kCreatePage, 2,
                   absl::StatusCode::kResourceExhausted);
  const auto first = driver_.CreatePage(DeviceId(0), kPage);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(driver_.GetMemoryInfo(DeviceId(0)).ok());
  const uint64_t before = host_->GetCallStatistics().total_count();
  EXPECT_EQ(driver_.CreatePage(DeviceId(0), kPage).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(host_->GetCallStatistics().total_count(), before)
      << "a call made to fail must not reach the driver";
  EXPECT_TRUE(driver_.CreatePage(DeviceId(0), kPage).ok());
}

TEST_F(FaultyDriverTest, FailsAllCallsOfAKindFromTheNth) {
  driver_.FailCallsFrom(DriverCall::kCreatePage, 2,
                        absl::StatusCode::kInternal);
  EXPECT_TRUE(driver_.CreatePage(DeviceId(0), kPage).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(driver_.CreatePage(DeviceId(0), kPage).status().code(),
              absl::StatusCode::kInternal);
  }
  driver_.ClearFaults();
  EXPECT_TRUE(driver_.CreatePage(DeviceId(0), kPage).ok());
  EXPECT_EQ(driver_.faults_fired(), 3u);
}

TEST_F(FaultyDriverTest, EveryCallCanBeMadeToFail) {
  const StreamId stream = *host_->CreateStream(DeviceId(0));
  const EventId event = *host_->CreateEvent(DeviceId(0));
  const DeviceAddress address = *host_->ReserveAddress(kPage, Bytes(0));
  const PageHandle page = *host_->CreatePage(DeviceId(0), kPage);
  uint8_t byte = 0;
  const std::vector<std::function<absl::Status()>> calls = {
      [&] { return driver_.GetDeviceInfo(DeviceId(0)).status(); },
      [&] { return driver_.GetMemoryInfo(DeviceId(0)).status(); },
      [&] { return driver_.ReserveAddress(kPage, Bytes(0)).status(); },
      [&] { return driver_.ReleaseAddress(address, kPage); },
      [&] { return driver_.CreatePage(DeviceId(0), kPage).status(); },
      [&] { return driver_.ReleasePage(page); },
      [&] {
        return driver_.Map(address, {&page, 1});
      },
      [&] { return driver_.Unmap(address, kPage); },
      [&] { return driver_.CreateStream(DeviceId(0)).status(); },
      [&] { return driver_.DestroyStream(stream); },
      [&] { return driver_.SynchronizeStream(stream); },
      [&] { return driver_.CreateEvent(DeviceId(0)).status(); },
      [&] { return driver_.DestroyEvent(event); },
      [&] { return driver_.RecordEvent(event, stream); },
      [&] { return driver_.QueryEvent(event).status(); },
      [&] { return driver_.SynchronizeEvent(event); },
      [&] { return driver_.WaitEvent(stream, event); },
      [&] { return driver_.CopyToDevice(address, &byte, Bytes(1), stream); },
      [&] { return driver_.CopyToHost(&byte, address, Bytes(1), stream); },
      [&] { return driver_.CopyOnDevice(address, address, Bytes(1), stream); },
      [&] { return driver_.Fill(address, 0, Bytes(1), stream); },
      [&] { return driver_.LaunchHostFunction(stream, [] {}); },
      [&] { return driver_.AllocatePinned(Bytes(1)).status(); },
      [&] { return driver_.FreePinned(&byte); },
      [&] { return driver_.PinMemory(&byte, Bytes(1)); },
      [&] { return driver_.UnpinMemory(&byte); },
  };
  ASSERT_EQ(calls.size(), kDriverCallCount);
  const uint64_t before = host_->GetCallStatistics().total_count();
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto call = static_cast<DriverCall>(i);
    driver_.FailCall(call, 1, absl::StatusCode::kAborted);
    const absl::Status status = calls[i]();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(DriverCallName(call)));
  }
  EXPECT_EQ(host_->GetCallStatistics().total_count(), before);
}

TEST_F(FaultyDriverTest, LimitsTheMemoryOfADevice) {
  driver_.LimitMemory(DeviceId(0), KiB(128));
  EXPECT_EQ(driver_.GetDeviceInfo(DeviceId(0))->total_memory, KiB(128));
  const PageHandle first = *driver_.CreatePage(DeviceId(0), kPage);
  EXPECT_EQ(driver_.GetMemoryInfo(DeviceId(0))->free, kPage);
  EXPECT_EQ(driver_.GetMemoryInfo(DeviceId(0))->total, KiB(128));
  ASSERT_TRUE(driver_.CreatePage(DeviceId(0), kPage).ok());
  const absl::Status status = driver_.CreatePage(DeviceId(0), kPage).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("physical memory"));
  ASSERT_TRUE(driver_.ReleasePage(first).ok());
  EXPECT_TRUE(driver_.CreatePage(DeviceId(0), kPage).ok());

  driver_.LimitMemory(DeviceId(0), kPage);
  EXPECT_EQ(driver_.GetMemoryInfo(DeviceId(0))->free, Bytes(0));
  driver_.LimitMemory(DeviceId(0), GiB(1));
  EXPECT_EQ(driver_.GetMemoryInfo(DeviceId(0))->total, MiB(4));
  EXPECT_TRUE(driver_.CreatePage(DeviceId(0), kPage).ok());
}

TEST_F(FaultyDriverTest, DelaysCallsOfAKind) {
  constexpr auto kDelay = std::chrono::milliseconds(5);
  driver_.DelayCalls(DriverCall::kCreatePage, kDelay);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(driver_.CreatePage(DeviceId(0), kPage).ok());
  // A lower bound only: a sleep is never shorter.
  EXPECT_GE(std::chrono::steady_clock::now() - start, kDelay);
}

TEST(FaultyDriverOwnershipTest, MayOwnTheDriverUnderneath) {
  FaultyDriver driver(MakeHostDriver());
  EXPECT_TRUE(driver.CreatePage(DeviceId(0), kPage).ok());
}

}  // namespace
}  // namespace quire
