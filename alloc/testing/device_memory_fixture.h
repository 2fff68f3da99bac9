// A small DeviceMemory over the driver under test, and streams that wait on
// command.

#ifndef QUIRE_ALLOC_TESTING_DEVICE_MEMORY_FIXTURE_H_
#define QUIRE_ALLOC_TESTING_DEVICE_MEMORY_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/testing/test_driver.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/owner.h"

namespace quire {

// Holds up a stream until it is opened. Opens when it goes out of scope.
class Gate {
 public:
  Gate(Driver* driver, StreamId stream) {
    EXPECT_TRUE(
        driver
            ->LaunchHostFunction(
                stream,
                [opened = opened_.get_future().share()] { opened.wait(); })
            .ok());
  }
  ~Gate() {
    if (opener_.joinable()) opener_.join();
    Open();
  }
  void Open() {
    if (std::exchange(is_open_, true)) return;
    opened_.set_value();
  }
  // Opens from another thread: for calls that must wait for it.
  void OpenAfter(std::chrono::milliseconds delay) {
    opener_ = std::thread([this, delay] {
      std::this_thread::sleep_for(delay);
      Open();
    });
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
  std::thread opener_;
};

class DeviceMemoryFixture : public ::testing::Test {
 protected:
  static constexpr Bytes kPage = KiB(64);
  static constexpr uint64_t kPageBytes = kPage.value();
  static constexpr uint64_t kDevicePages = 48;
  static constexpr uint64_t kLimitPages = 32;
  static constexpr uint64_t kAddressPages = 128;
  static constexpr OwnerId kOwner{1};  // "weights"

  static HostDriverOptions DriverOptions() {
    HostDriverOptions options;
    options.granularity = kPage;
    options.memory_per_device = Bytes(kDevicePages * kPageBytes);
    return options;
  }
  static DeviceMemoryOptions Options() {
    DeviceMemoryOptions options;
    options.page_size = kPage;
    options.limit = Bytes(kLimitPages * kPageBytes);
    options.address_space = Bytes(kAddressPages * kPageBytes);
    return options;
  }

  DeviceMemoryFixture() {
    EXPECT_EQ(owners_.Register("weights"), kOwner);
    MakeDriver(DriverOptions());
    MakeMemory(Options());
  }
  // Whatever a test did, both equations hold and nothing is left behind.
  ~DeviceMemoryFixture() override {
    if (memory_ != nullptr) {
      EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    }
    memory_.reset();
    for (const StreamId stream : streams_) (void)driver_->DestroyStream(stream);
    EXPECT_THAT(driver_->Leaks(), ::testing::IsEmpty());
  }

  void MakeDriver(const HostDriverOptions& options) {
    memory_.reset();
    auto driver = TestDriver::Create(options);
    ASSERT_TRUE(driver.ok()) << driver.status();
    driver_ = *std::move(driver);
    faulty_ = std::make_unique<FaultyDriver>(driver_.get());
  }
  void MakeMemory(const DeviceMemoryOptions& options) {
    memory_.reset();
    auto memory = DeviceMemory::Create(faulty_.get(), &owners_, options);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }

  AddressRange* Reserve(uint64_t pages) {
    const auto range = memory_->ReserveRange(PageCount(pages), kOwner);
    EXPECT_TRUE(range.ok()) << range.status();
    return range.ok() ? *range : nullptr;
  }
  absl::Status Commit(AddressRange* range, uint64_t first, uint64_t count) {
    return memory_->Commit(range, PageCount(first), PageCount(count));
  }
  absl::Status Decommit(AddressRange* range, uint64_t first, uint64_t count,
                        const Fence& fence = Fence()) {
    return memory_->Decommit(range, PageCount(first), PageCount(count), fence);
  }
  uint64_t Committed(AddressRange* range, uint64_t first, uint64_t count) {
    return memory_->CommittedPages(range, PageCount(first), PageCount(count))
        .value();
  }
  // Pages move between addresses, so the compiler must not assume what it knows
  // of one address to hold.
  static volatile uint64_t& Word(AddressRange* range, uint64_t slot) {
    return *DeviceAddress(range->address().value() + slot * kPageBytes)
                .host_pointer<volatile uint64_t>();
  }
  static void Write(AddressRange* range, uint64_t slot, uint64_t value) {
    Word(range, slot) = value;
  }
  static uint64_t Read(AddressRange* range, uint64_t slot) {
    return Word(range, slot);
  }

  // Destroyed with the fixture.
  StreamId MakeStream() {
    const auto stream = driver_->CreateStream(DeviceId(0));
    EXPECT_TRUE(stream.ok()) << stream.status();
    streams_.push_back(*stream);
    return *stream;
  }
  Fence FenceOn(StreamId stream) {
    const auto fence = Fence::Record(faulty_.get(), DeviceId(0), {&stream, 1});
    EXPECT_TRUE(fence.ok()) << fence.status();
    return *fence;
  }
  uint64_t Calls(std::string_view name) const {
    return driver_->GetCallStatistics().CountOf(name);
  }

  OwnerRegistry owners_;
  std::unique_ptr<TestDriver> driver_;
  // Between the memory and the driver: passes everything on until told to fail.
  std::unique_ptr<FaultyDriver> faulty_;
  std::unique_ptr<DeviceMemory> memory_;
  std::vector<StreamId> streams_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_DEVICE_MEMORY_FIXTURE_H_
