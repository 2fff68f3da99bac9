// Sparse slabs in one physical page: nothing moves that a caller can see, and
// the pages come back.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/pattern.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

class AllocatorMeshTest : public AllocatorFixture {
 protected:
  // Small enough for the pages of the fixture.
  static constexpr uint64_t kSlot = kPageBytes / 16;

  CompactionReport Mesh() {
    auto section = QuiescentSection::Begin(memory_.get(), {});
    EXPECT_TRUE(section.ok()) << section.status();
    MeshOptions options;
    options.smallest_slot = Bytes(256);
    const auto report = allocator_->Mesh(*section, options);
    EXPECT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    EXPECT_EQ(memory_->CheckInvariants(), absl::OkStatus());
    return report.value_or(CompactionReport());
  }
  // Physical pages that somebody has mapped.
  uint64_t LivePages() {
    std::set<uint64_t> pages;
    for (const auto& entry : memory_->CalculatePageMap()) {
      pages.insert(entry.page.value());
    }
    return pages.size();
  }
  void Fill(uint64_t generation, DeviceAddress address) {
    live_[address] = Pattern{address, kSlot, generation};
    live_[address].Write();
  }
  void ExpectIntact() {
    for (const auto& [address, pattern] : live_) {
      EXPECT_TRUE(pattern.Holds()) << address.value();
    }
  }
  // `slabs` slabs, of which about one slot in `one_in` stays.
  void Sparse(uint64_t slabs, uint64_t one_in, uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    std::vector<DeviceAddress> all;
    for (uint64_t i = 0; i < slabs * 16; ++i) all.push_back(Allocate(kSlot));
    for (const DeviceAddress address : all) {
      if (random() % one_in == 0) {
        Fill(random(), address);
      } else {
        Free(address);
      }
    }
    allocator_->Trim();
  }

  std::map<DeviceAddress, Pattern> live_;
};

TEST_F(AllocatorMeshTest, SparseSlabsShareAPageAndKeepTheirContents) {
  Sparse(12, 10);
  const uint64_t before = Statistics().mapped_bytes;
  const CompactionReport report = Mesh();
  const uint64_t after = Statistics().mapped_bytes;
  EXPECT_LT(after, before);
  EXPECT_EQ(report.pages_freed.value() * kPageBytes, before - after);
  EXPECT_EQ(LivePages() * kPageBytes, after);
  EXPECT_GT(report.moves, 0u);
  EXPECT_GE(report.bytes_moved.value(), report.moves * kSlot);
  EXPECT_GT(report.driver_calls, 0u);
  ExpectIntact();
  for (const auto& [address, pattern] : live_) {
    const auto info = allocator_->Find(address);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->address, address);
  }
}

TEST_F(AllocatorMeshTest, NewSlotsDoNotOverlapThoseOfGuests) {
  Sparse(8, 8);
  Mesh();
  const uint64_t mapped = Statistics().mapped_bytes;
  // All room of the pages that are left.
  while (Statistics().mapped_bytes == mapped) {
    Fill(live_.size(), Allocate(kSlot));
  }
  ExpectIntact();
  for (const auto& [address, pattern] : live_) {
    Free(address);
    EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  }
  allocator_->Trim();
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
  EXPECT_EQ(LivePages(), 0u);
}

TEST_F(AllocatorMeshTest, MeshedSlabsAreMeshedAgain) {
  std::mt19937_64 random(5);
  Sparse(12, 4);
  for (int round = 0; round < 4; ++round) {
    Mesh();
    ExpectIntact();
    std::vector<DeviceAddress> freed;
    for (const auto& [address, pattern] : live_) {
      if (random() % 2 == 0) freed.push_back(address);
    }
    for (const DeviceAddress address : freed) {
      live_.erase(address);
      Free(address);
    }
    allocator_->Trim();
  }
  Mesh();
  ExpectIntact();
}

TEST_F(AllocatorMeshTest, WhatCoolsStaysWhereItIs) {
  const StreamId stream = MakeStream();
  Sparse(2, 3);
  const DeviceAddress cooling = Allocate(kSlot, stream);
  Gate gate(driver_.get(), stream);
  Free(cooling, stream);
  Mesh();
  const auto* const range = memory_->Find(cooling);
  ASSERT_NE(range, nullptr);
  EXPECT_EQ(memory_->CommittedPages(range, PageCount(0), PageCount(1)),
            PageCount(1));
  gate.Open();
  EXPECT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  Mesh();
  ExpectIntact();
}

TEST_F(AllocatorMeshTest, FreesOfGuestsCoolAndComeBack) {
  const StreamId a = MakeStream();
  const StreamId b = MakeStream();
  Sparse(6, 8);
  Mesh();
  std::vector<DeviceAddress> freed;
  {
    Gate gate(driver_.get(), a);
    int i = 0;
    for (const auto& [address, pattern] : live_) {
      if (i++ % 2 == 0) {
        EXPECT_EQ(allocator_->RecordStream(address, b), absl::OkStatus());
      }
      Free(address, a);
      freed.push_back(address);
    }
    allocator_->Trim();
    EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    // Nobody has them yet.
    for (int n = 0; n < 20; ++n) Free(Allocate(kSlot, b), b);
    for (const DeviceAddress address : freed) {
      EXPECT_EQ(allocator_->Free(address).code(),
                absl::StatusCode::kFailedPrecondition);
    }
  }
  EXPECT_EQ(driver_->SynchronizeStream(a), absl::OkStatus());
  EXPECT_EQ(driver_->SynchronizeStream(b), absl::OkStatus());
  allocator_->Trim();
  EXPECT_EQ(Statistics().live_bytes, 0u);
}

TEST_F(AllocatorMeshTest, NeedsAnOpenSectionOfThisMemory) {
  Sparse(4, 8);
  auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok());
  section->End();
  EXPECT_EQ(allocator_->Mesh(*section).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ExpectIntact();
}

TEST_F(AllocatorMeshTest, OneOwnerAtATimeWhereAsked) {
  AllocateOptions mine;
  mine.owner = OwnerId(1);
  std::vector<DeviceAddress> all;
  for (int i = 0; i < 64; ++i) {
    all.push_back(*allocator_->Allocate(Bytes(kSlot), mine));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 9 != 0) Free(all[i]);
  }
  Sparse(4, 9);
  auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok());
  MeshOptions options;
  options.smallest_slot = Bytes(256);
  options.owner = OwnerId(2);
  EXPECT_EQ(allocator_->Mesh(*section, options)->moves, 0u);
  options.owner = OwnerId(1);
  EXPECT_GT(allocator_->Mesh(*section, options)->moves, 0u);
}

// Slabs that share a page are waited for like any other.
TEST_F(AllocatorMeshTest, WhatCoolsInMeshedSlabsIsToBeHad) {
  std::map<uint64_t, std::vector<DeviceAddress>> slabs;
  for (int i = 0; i < 4; ++i) {
    const DeviceAddress address = Allocate(kPageBytes / 2);
    slabs[address.value() / kPageBytes].push_back(address);
  }
  ASSERT_EQ(slabs.size(), 2u);
  // Of one slab the first slot is live, of the other one the second.
  std::vector<DeviceAddress> live;
  for (auto& [page, slots] : slabs) {
    ASSERT_EQ(slots.size(), 2u);
    std::sort(slots.begin(), slots.end());
    Free(slots[1 - live.size()]);
    live.push_back(slots[live.size()]);
  }
  {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    MeshOptions options;
    options.smallest_slot = Bytes(256);
    const auto report = allocator_->Mesh(*section, options);
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_EQ(report->pages_freed, PageCount(1));
  }
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  for (const DeviceAddress address : live) Free(address, stream);
  gate.OpenAfter(std::chrono::milliseconds(30));
  Free(AllocatePages(kLimitPages));
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
}

}  // namespace
}  // namespace quire
