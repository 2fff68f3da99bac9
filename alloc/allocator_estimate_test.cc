// Verdicts that say what compaction would free, and compaction that frees it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

class AllocatorEstimateTest : public AllocatorFixture {
 protected:
  // Pages that hold several slots of a size that is meshed.
  static constexpr uint64_t kLargePage = MiB(1).value();
  static constexpr uint64_t kPages = 48;
  static constexpr uint64_t kSlot = KiB(32).value();

  AllocatorEstimateTest() {
    allocator_.reset();
    HostDriverOptions driver = DriverOptions();
    driver.memory_per_device = Bytes(kPages * kLargePage);
    MakeDriver(driver);
    DeviceMemoryOptions options = Options();
    options.page_size = Bytes(kLargePage);
    options.limit = driver.memory_per_device;
    options.address_space = Bytes(4 * kPages * kLargePage);
    MakeMemory(options);
    MakeAllocator();
  }
  ~AllocatorEstimateTest() override {
    for (const DeviceAddress address : live_) Free(address);
  }

  AllocateOptions Movable() const {
    AllocateOptions options;
    options.movable = true;
    return options;
  }
  // `slabs` slabs, of which one slot in `one_in` stays.
  void Sparse(uint64_t slabs, uint64_t one_in,
              const AllocateOptions& options = {}) {
    std::vector<DeviceAddress> all;
    for (uint64_t i = 0; i < slabs * kLargePage / kSlot; ++i) {
      const auto address = allocator_->Allocate(Bytes(kSlot), options);
      ASSERT_TRUE(address.ok()) << address.status();
      all.push_back(*address);
    }
    for (const DeviceAddress address : all) {
      if (random_() % one_in == 0) {
        live_.insert(address);
      } else {
        Free(address);
      }
    }
  }
  OutOfMemoryVerdict Verdict() {
    const auto verdict = OutOfMemoryVerdict::FromStatus(
        memory_->DescribeShortage(PageCount(kPages), kUnnamedOwner));
    EXPECT_TRUE(verdict.has_value());
    return verdict.value_or(OutOfMemoryVerdict());
  }
  uint64_t MeshFrees() { return Verdict().mesh_frees.value() / kLargePage; }
  uint64_t RelocationFrees() {
    return Verdict().relocation_frees.value() / kLargePage;
  }
  uint64_t MappedPages() { return Statistics().mapped_bytes / kLargePage; }
  uint64_t Mesh() {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    const auto report = allocator_->Mesh(*section);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? report->pages_freed.value() : 0;
  }
  uint64_t Relocate() {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    auto pass = allocator_->BeginRelocation(*section);
    EXPECT_TRUE(pass.ok()) << pass.status();
    if (!pass.ok()) return 0;
    EXPECT_EQ(pass->Copy(), absl::OkStatus());
    for (const RelocationMove& move : pass->moves()) {
      EXPECT_EQ(live_.erase(move.from), 1u);
      live_.insert(move.to);
    }
    return pass->End().pages_freed.value();
  }

  std::mt19937_64 random_{11};
  std::set<DeviceAddress> live_;
};

TEST_F(AllocatorEstimateTest, AMeshFreesWhatTheVerdictSays) {
  Sparse(20, 12);
  allocator_->Trim();
  const uint64_t told = MeshFrees();
  EXPECT_GT(told, 5u);
  EXPECT_EQ(RelocationFrees(), 0u);
  const uint64_t before = MappedPages();
  const uint64_t freed = Mesh();
  EXPECT_EQ(before - MappedPages(), freed);
  // The verdict plans in a hurry.
  EXPECT_GE(freed, told);
  EXPECT_LE(freed, told + told / 8);
  EXPECT_EQ(MeshFrees(), 0u);
}

TEST_F(AllocatorEstimateTest, MeshAndPassFreeWhatTheVerdictSays) {
  Sparse(20, 12, Movable());
  allocator_->Trim();
  const uint64_t told = MeshFrees() + RelocationFrees();
  EXPECT_GT(RelocationFrees(), 0u);
  const uint64_t freed = Mesh();
  EXPECT_EQ(freed + Relocate(), told);
}

TEST_F(AllocatorEstimateTest, APassAloneFreesWhatTheVerdictSays) {
  Sparse(20, 12, Movable());
  allocator_->Trim();
  const uint64_t told = MeshFrees() + RelocationFrees();
  EXPECT_EQ(Relocate(), told);
}

// A request that fails for want of pages says which level would have helped,
// and after that level it succeeds.
TEST_F(AllocatorEstimateTest, WhatTheVerdictAdvisesHelps) {
  Sparse(kPages, 12);
  allocator_->Trim();
  const uint64_t wanted = kPages - MappedPages() + MeshFrees();
  ASSERT_GT(MeshFrees(), 0u);
  const OutOfMemoryVerdict verdict = ExpectOutOfMemory(wanted * kLargePage);
  EXPECT_EQ(verdict.kind, ShortageKind::kFragmentation);
  EXPECT_THAT(verdict.advice, ::testing::HasSubstr("mesh in a quiescent"));
  EXPECT_EQ(verdict.held_as_slack, Bytes(0));
  Mesh();
  Free(Allocate(wanted * kLargePage));
}

TEST_F(AllocatorEstimateTest, WhatIsPinnedStays) {
  Sparse(12, 12, Movable());
  allocator_->Trim();
  for (const DeviceAddress address : live_) {
    EXPECT_EQ(allocator_->Pin(address), absl::OkStatus());
  }
  EXPECT_EQ(MeshFrees(), 0u);
  EXPECT_EQ(RelocationFrees(), 0u);
  for (const DeviceAddress address : live_) {
    EXPECT_EQ(allocator_->Unpin(address), absl::OkStatus());
  }
  EXPECT_GT(MeshFrees(), 0u);
}

TEST_F(AllocatorEstimateTest, WhatCoolsStays) {
  const StreamId stream = MakeStream();
  Sparse(12, 12);
  allocator_->Trim();
  // One slot of every slab.
  std::vector<DeviceAddress> cooling;
  std::set<uint64_t> pages;
  for (const DeviceAddress address : live_) {
    if (pages.insert(address.value() / kLargePage).second) {
      cooling.push_back(address);
    }
  }
  Gate gate(driver_.get(), stream);
  for (const DeviceAddress address : cooling) {
    live_.erase(address);
    Free(address, stream);
  }
  EXPECT_EQ(MeshFrees(), 0u);
  gate.Open();
  EXPECT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  allocator_->Trim();
  EXPECT_GT(MeshFrees(), 0u);
}

TEST_F(AllocatorEstimateTest, WhatSleepsStays) {
  AllocateOptions options = Movable();
  options.owner = kOwner;
  Sparse(12, 12, options);
  allocator_->Trim();
  EXPECT_GT(MeshFrees(), 0u);
  {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    ASSERT_TRUE(allocator_->Sleep(*section, kOwner, {}).ok());
  }
  EXPECT_EQ(MeshFrees(), 0u);
  EXPECT_EQ(RelocationFrees(), 0u);
  ASSERT_TRUE(allocator_->Wake(kOwner, {}).ok());
  EXPECT_GT(MeshFrees(), 0u);
}

TEST_F(AllocatorEstimateTest, WhatGraphsKeepStays) {
  const StreamId stream = MakeStream();
  const auto pool = allocator_->CreateGraphPool();
  ASSERT_TRUE(pool.ok());
  ASSERT_EQ(allocator_->BeginGraphCapture(*pool, stream), absl::OkStatus());
  AllocateOptions options;
  options.stream = stream;
  Sparse(12, 12, options);
  ASSERT_EQ(allocator_->EndGraphCapture(stream), absl::OkStatus());
  EXPECT_EQ(MeshFrees(), 0u);
  ASSERT_EQ(allocator_->ReleaseGraphPool(*pool, {}), absl::OkStatus());
  allocator_->Trim();
  EXPECT_GT(MeshFrees(), 0u);
}

// Nothing is told of a pass that could not begin.
TEST_F(AllocatorEstimateTest, AnOpenPassLeavesNothingToRelocate) {
  Sparse(12, 12, Movable());
  allocator_->Trim();
  const auto section = QuiescentSection::Begin(memory_.get(), {});
  const auto pass = allocator_->BeginRelocation(*section);
  ASSERT_TRUE(pass.ok());
  EXPECT_EQ(RelocationFrees(), 0u);
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
}

}  // namespace
}  // namespace quire
