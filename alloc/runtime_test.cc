#include "quire/alloc/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "alloc/testing/test_driver.h"
#include "quire/alloc/faulty_driver.h"

namespace quire {
namespace {

std::unique_ptr<TestDriver> MakeDriver(int devices) {
  HostDriverOptions options;
  options.device_count = devices;
  options.memory_per_device = MiB(16);
  options.granularity = KiB(64);
  auto driver = TestDriver::Create(options);
  EXPECT_TRUE(driver.ok()) << driver.status();
  return *std::move(driver);
}

RuntimeOptions Options() {
  RuntimeOptions options;
  options.page_size = KiB(64);
  options.limit = MiB(8);
  return options;
}

TEST(RuntimeTest, EveryDeviceHasAPoolAndAnAllocatorOfItsOwn) {
  auto runtime = Runtime::Create(MakeDriver(2), Options());
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  ASSERT_EQ((*runtime)->device_count(), 2);
  for (int id = 0; id < 2; ++id) {
    DeviceMemory* const memory = (*runtime)->memory(DeviceId(id));
    EXPECT_EQ(memory->device(), DeviceId(id));
    EXPECT_EQ(memory->GetStatistics().limit, MiB(8));
    const auto address = (*runtime)->allocator(DeviceId(id))->Allocate(KiB(1));
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_TRUE(memory->Contains(*address));
    EXPECT_FALSE((*runtime)->memory(DeviceId(1 - id))->Contains(*address));
  }
}

TEST(RuntimeTest, TheTraceHearsOfBothLayersUnlessItIsOff) {
  for (const size_t capacity : {size_t{0}, size_t{16}}) {
    RuntimeOptions options = Options();
    options.trace_capacity = capacity;
    auto runtime = Runtime::Create(MakeDriver(1), options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    ASSERT_TRUE((*runtime)->allocator()->Allocate(KiB(1)).ok());
    bool commit = false;
    bool allocate = false;
    for (const TraceEvent& event : (*runtime)->trace()->Events()) {
      commit |= event.action == TraceAction::kCommit;
      allocate |= event.action == TraceAction::kAllocate;
    }
    EXPECT_EQ(commit, capacity > 0);
    EXPECT_EQ(allocate, capacity > 0);
  }
}

TEST(RuntimeTest, ATraceOfMoreThanAnybodyHasMemoryForIsRefused) {
  for (const size_t capacity : {kMostTraceEvents + 1, SIZE_MAX}) {
    RuntimeOptions options = Options();
    options.trace_capacity = capacity;
    const auto runtime = Runtime::Create(MakeDriver(1), options);
    EXPECT_EQ(runtime.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(runtime.status().message()),
                ::testing::HasSubstr("trace_capacity"));
  }
}

TEST(RuntimeTest, ACreateThatFailsAnywhereLeavesNothing) {
  const std::unique_ptr<TestDriver> host = MakeDriver(2);
  RuntimeOptions options = Options();
  options.limit = Bytes(0);
  for (uint64_t n = 1;; ++n) {
    auto driver = std::make_unique<FaultyDriver>(host.get());
    FaultyDriver* const faulty = driver.get();
    faulty->FailCall(n, absl::StatusCode::kInternal);
    auto runtime = Runtime::Create(std::move(driver), options);
    if (runtime.ok()) {
      EXPECT_EQ(faulty->faults_fired(), 0u);
      break;
    }
    EXPECT_THAT(host->Leaks(), ::testing::IsEmpty()) << n;
  }
}

TEST(RuntimeTest, ViewsHaveTheDevicesAndOwnersOfTheirOwn) {
  auto runtime = Runtime::Create(MakeDriver(2), Options());
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_FALSE((*runtime)->owner());
  const auto a = Runtime::CreateView(runtime->get(), "a");
  const auto b = Runtime::CreateView(runtime->get(), "b");
  for (const auto* view : {&a, &b}) {
    EXPECT_EQ((*view)->driver(), (*runtime)->driver());
    EXPECT_EQ((*view)->device_count(), 2);
    for (int id = 0; id < 2; ++id) {
      EXPECT_EQ((*view)->memory(DeviceId(id)),
                (*runtime)->memory(DeviceId(id)));
      EXPECT_EQ((*view)->allocator(DeviceId(id)),
                (*runtime)->allocator(DeviceId(id)));
    }
    EXPECT_EQ((*view)->trace(), (*runtime)->trace());
  }
  OwnerRegistry* const owners = (*runtime)->owners();
  EXPECT_EQ(a->owners(), owners);
  ASSERT_TRUE(a->owner());
  EXPECT_EQ(owners->Name(*a->owner()), "a");
  EXPECT_EQ(owners->Name(a->RegisterOwner("weights")), "a/weights");
  EXPECT_EQ(owners->Name(b->RegisterOwner("weights")), "b/weights");
  EXPECT_EQ(owners->Name((*runtime)->RegisterOwner("weights")), "weights");
  const auto draft = Runtime::CreateView(a.get(), "draft");
  EXPECT_EQ(owners->Name(draft->RegisterOwner("kv")), "a/draft/kv");
  EXPECT_EQ(draft->memory(), (*runtime)->memory());
}

TEST(RuntimeTest, PressureBeginsWhereTheOptionsSay) {
  RuntimeOptions options = Options();
  options.pressure = {.high = 0.5, .critical = 0.75, .hysteresis = 0.25};
  options.soft_limit = MiB(2);
  auto runtime = Runtime::Create(MakeDriver(2), options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  for (int id = 0; id < 2; ++id) {
    DeviceMemory* const memory = (*runtime)->memory(DeviceId(id));
    EXPECT_EQ(memory->GetStatistics().soft_limit, MiB(2));
    const auto range = memory->ReserveRange(PageCount(128), kUnnamedOwner);
    ASSERT_TRUE(range.ok()) << range.status();
    uint64_t committed = 0;
    // Of 128 pages of 64 KiB.
    const auto level_at = [&](uint64_t pages) {
      EXPECT_TRUE(memory
                      ->Commit(*range, PageCount(committed),
                               PageCount(pages - committed))
                      .ok());
      committed = pages;
      return memory->pressure();
    };
    EXPECT_EQ(level_at(32), PressureLevel::kNone);
    EXPECT_EQ(level_at(33), PressureLevel::kHigh);
    ASSERT_TRUE(memory->SetSoftLimit(Bytes(0)).ok());
    EXPECT_EQ(level_at(63), PressureLevel::kHigh);  // until it is below a 4th
    EXPECT_EQ(level_at(95), PressureLevel::kHigh);
    EXPECT_EQ(level_at(96), PressureLevel::kCritical);
    memory->ReleaseRange(*range, Fence());
    EXPECT_EQ(memory->pressure(), PressureLevel::kNone);
  }
}

TEST(RuntimeTest, RefusesThresholdsThatContradictEachOther) {
  RuntimeOptions options = Options();
  options.pressure.high = 0.99;
  EXPECT_EQ(Runtime::Create(MakeDriver(1), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options = Options();
  options.soft_limit = Bytes(1);
  EXPECT_EQ(Runtime::Create(MakeDriver(1), options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire
