// What the tests of the KV cache share: a small software device that must be
// given back whole, and a stream that can be held.

#ifndef QUIRE_PAGING_KV_CACHE_TESTING_H_
#define QUIRE_PAGING_KV_CACHE_TESTING_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "alloc/testing/test_driver.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/faulty_driver.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/owner.h"
#include "quire/paging/kv_cache.h"

namespace quire {

// 5 layers of 64-byte sides: 128-byte rows and 32 tokens in a page of 4 KiB at
// one layer per row; 640-byte rows, which straddle pages, at all layers per
// row.
inline constexpr KvShape kTestShape = {5, 2, 8, KvDType::kF32};
inline constexpr uint32_t kTestElements = 16;  // of K, or V, in one layer

inline KvLayout TestLayout(uint32_t layers_per_row, bool values_apart = false) {
  return *KvLayout::Create(kTestShape, {layers_per_row, values_apart});
}

// Four layers, every second one with a window: two groups of 256-byte rows, 16
// tokens a page. The first group has the layers with the window.
inline KvLayout WindowTestLayout(uint64_t window, uint64_t sinks) {
  const KvLayerKind full = {2, 8, 8, KvDType::kF32};
  KvLayerKind windowed = full;
  windowed.window = window;
  windowed.sinks = sinks;
  KvModelShape shape;
  shape.layers = {windowed, full, windowed, full};
  return *KvLayout::Create(shape, 2);
}

// A device with `pages` pages of memory.
class TestDevice {
 public:
  explicit TestDevice(uint64_t pages, Bytes page_size = KiB(4),
                      Bytes address_space = MiB(64)) {
    HostDriverOptions options;
    options.memory_per_device = Bytes(pages * page_size.value());
    options.granularity = page_size;
    host_ = *TestDriver::Create(options);
    driver_ = std::make_unique<FaultyDriver>(host_.get());
    DeviceMemoryOptions memory;
    memory.page_size = page_size;
    memory.address_space = address_space;
    memory_ = *DeviceMemory::Create(driver_.get(), &owners_, memory);
  }
  // Everything must have gone back to the driver.
  ~TestDevice() {
    driver_->ClearFaults();
    EXPECT_TRUE(memory_->CheckInvariants().ok()) << memory_->CheckInvariants();
    memory_.reset();
    for (const std::string& leak : host_->Leaks()) ADD_FAILURE() << leak;
  }

  FaultyDriver* driver() { return driver_.get(); }
  DeviceMemory* memory() { return memory_.get(); }
  uint64_t live_pages() const {
    return memory_->GetStatistics().live.value() / memory_->page_size().value();
  }
  uint64_t cooling_pages() const {
    return memory_->GetStatistics().cooling.value() /
           memory_->page_size().value();
  }
  // Queues a kernel that runs on for `wait`, then calls `kernel`. Its fence.
  template <typename Kernel>
  Fence LaunchLate(StreamId stream, std::chrono::microseconds wait,
                   Kernel kernel) {
    EXPECT_TRUE(driver_
                    ->LaunchHostFunction(stream,
                                         [kernel, wait] {
                                           std::this_thread::sleep_for(wait);
                                           kernel();
                                         })
                    .ok());
    return *Fence::Record(driver_.get(), DeviceId(0), std::span(&stream, 1));
  }
  // Calls that change pages or addresses.
  uint64_t mapping_calls() const {
    const DriverCallStatistics calls = host_->GetCallStatistics();
    uint64_t count = 0;
    for (const char* name : {"ReserveAddress", "ReleaseAddress", "CreatePage",
                             "ReleasePage", "Map", "Unmap"})
      count += calls.CountOf(name);
    return count;
  }

 private:
  std::unique_ptr<TestDriver> host_;
  std::unique_ptr<FaultyDriver> driver_;
  OwnerRegistry owners_;
  std::unique_ptr<DeviceMemory> memory_;
};

inline std::unique_ptr<KvCache> MakeCache(TestDevice* device,
                                          const KvLayout& layout,
                                          KvCacheOptions options) {
  auto cache = KvCache::Create(device->memory(), layout, options);
  EXPECT_TRUE(cache.ok()) << cache.status();
  return *std::move(cache);
}

inline std::unique_ptr<KvCache> MakeCache(TestDevice* device,
                                          uint32_t layers_per_row,
                                          KvCacheOptions options) {
  return MakeCache(device, TestLayout(layers_per_row), options);
}

inline KvCacheOptions CacheOptions(uint64_t max_tokens) {
  KvCacheOptions options;
  options.max_sequence_length = max_tokens;
  options.max_sequences = 8;
  return options;
}

inline SequenceId Admit(KvCache* cache, uint64_t tokens) {
  const auto sequence = cache->Admit(tokens);
  EXPECT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  return sequence.value_or(SequenceId());
}

inline absl::Status Step(KvCache* cache, SequenceId sequence, uint64_t length) {
  const SequenceStep step{sequence, length};
  const absl::Status status = cache->Step(std::span(&step, 1));
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  return status;
}

inline void Release(KvCache* cache, SequenceId sequence,
                    const Fence& fence = Fence()) {
  EXPECT_TRUE(cache->Release(sequence, fence).ok());
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
}

inline DeviceAddress Base(const KvCache& cache, SequenceId sequence) {
  return cache.View(sequence, 0)->keys;
}

// Somebody who takes what memory there is.
class Taker {
 public:
  Taker(TestDevice* device, uint64_t pages)
      : device_(device),
        range_(
            *device->memory()->ReserveRange(PageCount(pages), kUnnamedOwner)) {}
  ~Taker() { device_->memory()->ReleaseRange(range_, Fence()); }
  absl::Status Take(uint64_t pages) {
    return device_->memory()->Commit(range_, PageCount(0), PageCount(pages));
  }
  void GiveBack() {
    EXPECT_TRUE(device_->memory()
                    ->Decommit(range_, PageCount(0), range_->pages(), Fence())
                    .ok());
  }

 private:
  TestDevice* const device_;
  AddressRange* const range_;
};

// A stream that stands still until it is let go.
class BlockedStream {
 public:
  explicit BlockedStream(Driver* driver) : driver_(driver) {
    stream_ = *driver->CreateStream(DeviceId(0));
    EXPECT_TRUE(
        driver
            ->LaunchHostFunction(stream_, [gate = gate_] { gate->wait(false); })
            .ok());
  }
  ~BlockedStream() {
    Unblock();
    EXPECT_TRUE(driver_->DestroyStream(stream_).ok());
  }
  StreamId stream() const { return stream_; }
  // After what is queued now.
  Fence Record() {
    return *Fence::Record(driver_, DeviceId(0), std::span(&stream_, 1));
  }
  void Unblock() {
    gate_->store(true);
    gate_->notify_all();
    EXPECT_TRUE(driver_->SynchronizeStream(stream_).ok());
  }

 private:
  Driver* const driver_;
  StreamId stream_;
  std::shared_ptr<std::atomic<bool>> gate_ =
      std::make_shared<std::atomic<bool>>(false);
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_CACHE_TESTING_H_
