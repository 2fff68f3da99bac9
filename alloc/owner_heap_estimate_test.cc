// What is told of a heap is what is then found to be so: each estimate is
// compared with a mesh, or a pass, that is carried out.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "alloc/owner_heap.h"
#include "alloc/testing/device_memory_fixture.h"

namespace quire {
namespace {

class OwnerHeapEstimateTest : public DeviceMemoryFixture {
 protected:
  static constexpr uint64_t kPages = 400;
  static constexpr Bytes kSmallestSlot = KiB(1);

  OwnerHeapEstimateTest() : classes_(kPage) {
    HostDriverOptions driver = DriverOptions();
    driver.memory_per_device = Bytes(kPages * kPageBytes);
    MakeDriver(driver);
    DeviceMemoryOptions options = Options();
    options.limit = driver.memory_per_device;
    options.address_space = Bytes(4 * kPages * kPageBytes);
    MakeMemory(options);
    auto spans = SpanTable::Create(memory_->first_address(),
                                   options.address_space, kPage);
    EXPECT_TRUE(spans.ok());
    spans_ = *std::move(spans);
    heap_ = std::make_unique<OwnerHeap>(kOwner, memory_.get(), &classes_,
                                        spans_.get(), &total_, /*seed=*/7);
    EXPECT_EQ(memory_->Prepare(PageCount(kPages)), absl::OkStatus());
  }
  ~OwnerHeapEstimateTest() override {
    EXPECT_EQ(heap_->CheckInvariants(), absl::OkStatus());
    for (const Block& block : live_) Free(block);
    heap_->ReleaseFree(UINT64_MAX);
    EXPECT_EQ(heap_->accounts().mapped_bytes, 0u);
  }

  void Free(Block block) {
    block.record().store(block.record().load().Freed());
    heap_->Free(block);
  }
  // `slabs` slabs of the class, of which one slot in `one_in` stays.
  void Sparse(uint64_t size, uint64_t slabs, uint64_t one_in) {
    const int size_class = classes_.ClassOf(Bytes(size));
    std::vector<Block> blocks;
    for (uint64_t i = 0; i < slabs; ++i) {
      ASSERT_EQ(
          heap_->AddSlab(size_class, classes_.slab_pages(size_class).value()),
          absl::OkStatus());
      for (uint32_t slot = 0; slot < classes_.slots_per_slab(size_class);
           ++slot) {
        blocks.push_back(*heap_->TakeSlot(size_class));
        blocks.back().record().store(SlotRecord::Live(0, 0, false));
      }
    }
    for (const Block& block : blocks) {
      if (random_() % one_in == 0) {
        live_.push_back(block);
      } else {
        Free(block);
      }
    }
    heap_->ReleaseFree(UINT64_MAX);
  }
  uint64_t MappedPages() const {
    return heap_->accounts().mapped_bytes / kPageBytes;
  }
  OwnerHeap::MeshEstimate EstimateMesh() const {
    return heap_->EstimateMesh(kSmallestSlot, is_pinned_, is_movable_);
  }
  uint64_t Mesh() {
    const StreamId stream = *driver_->CreateStream(DeviceId(0));
    CompactionReport report;
    EXPECT_EQ(heap_->Mesh(kSmallestSlot, stream, is_pinned_, &report),
              absl::OkStatus());
    EXPECT_EQ(driver_->DestroyStream(stream), absl::OkStatus());
    return report.pages_freed.value();
  }
  // A pass that moves all it can: the pages that it frees.
  uint64_t Relocate() {
    const uint64_t before = MappedPages();
    for (const OwnerHeap::Move& move : heap_->PlanRelocation({}, is_movable_)) {
      const auto moved =
          std::find_if(live_.begin(), live_.end(), [&](const Block& block) {
            return block.span == move.from.span && block.slot == move.from.slot;
          });
      if (moved == live_.end()) {
        ADD_FAILURE() << "what was moved is not live";
        continue;
      }
      *moved = move.to;
      move.to.record().store(move.from.record().load());
      Free(move.from);
    }
    heap_->ReleaseFree(UINT64_MAX);
    return before - MappedPages();
  }
  uint64_t Prepared() const {
    return memory_->GetStatistics().cached.value() / kPageBytes;
  }

  std::mt19937_64 random_{3};
  SizeClasses classes_;
  std::unique_ptr<SpanTable> spans_;
  MappedTotal total_;
  std::unique_ptr<OwnerHeap> heap_;
  std::vector<Block> live_;
  std::function<bool(Block)> is_pinned_ = [](Block) { return false; };
  std::function<bool(Block)> is_movable_ = [](Block) { return true; };
};

TEST_F(OwnerHeapEstimateTest, NothingHeldIsNothingToGain) {
  const OwnerHeap::MeshEstimate estimate = EstimateMesh();
  EXPECT_EQ(estimate.pages, 0u);
  uint64_t prepared = 10;
  EXPECT_EQ(heap_->EstimateRelocation(estimate, &prepared), 0u);
  EXPECT_EQ(prepared, 10u);
}

TEST_F(OwnerHeapEstimateTest, ARelocationPassFreesWhatWasTold) {
  for (const uint64_t one_in : {2, 5, 20}) {
    Sparse(4096, 20, one_in);
    Sparse(1280, 10, one_in);
    Sparse(20480, 12, one_in);
    // No slab to mesh: what is estimated is a pass alone.
    const OwnerHeap::MeshEstimate unmeshed =
        heap_->EstimateMesh(Bytes(UINT64_MAX), is_pinned_, is_movable_);
    EXPECT_EQ(unmeshed.pages, 0u);
    uint64_t prepared = Prepared();
    const uint64_t told = heap_->EstimateRelocation(unmeshed, &prepared);
    EXPECT_GT(told, 0u);
    EXPECT_EQ(Relocate(), told) << "one in " << one_in;
    // And then there is nothing more to be had.
    prepared = Prepared();
    EXPECT_EQ(
        heap_->EstimateRelocation(
            heap_->EstimateMesh(Bytes(UINT64_MAX), is_pinned_, is_movable_),
            &prepared),
        0u);
  }
}

TEST_F(OwnerHeapEstimateTest, AMeshFreesWhatWasToldOrLittleMore) {
  uint64_t told = 0;
  uint64_t freed = 0;
  for (const uint64_t size : {1024, 2048, 4096, 8192, 32768}) {
    Sparse(size, 24, 10);
    const OwnerHeap::MeshEstimate estimate = EstimateMesh();
    const uint64_t meshed = Mesh();
    EXPECT_LE(estimate.pages, meshed) << size;
    told += estimate.pages;
    freed += meshed;
  }
  EXPECT_GE(static_cast<double>(told), 0.9 * static_cast<double>(freed));
}

// Together they come to the same, whatever the mesh did: what one has freed the
// other has not to.
TEST_F(OwnerHeapEstimateTest, MeshAndPassTogetherFreeWhatWasTold) {
  Sparse(4096, 30, 7);
  Sparse(8192, 30, 5);
  Mesh();
  Sparse(4096, 20, 6);
  const OwnerHeap::MeshEstimate estimate = EstimateMesh();
  uint64_t prepared = Prepared() + estimate.pages;
  const uint64_t told =
      estimate.pages + heap_->EstimateRelocation(estimate, &prepared);
  const uint64_t meshed = Mesh();
  EXPECT_EQ(meshed + Relocate(), told);
}

// What may not be moved keeps its slab; what is pinned is not meshed either.
TEST_F(OwnerHeapEstimateTest, WhatMustStayIsLeftOut) {
  Sparse(4096, 30, 8);
  std::set<DeviceAddress> staying;
  for (const Block& block : live_) {
    if (random_() % 3 == 0) staying.insert(block.address());
  }
  is_movable_ = [&](Block block) { return !staying.contains(block.address()); };
  is_pinned_ = [&](Block block) {
    return staying.contains(block.address()) &&
           block.address().value() % 3 == 0;
  };
  const OwnerHeap::MeshEstimate estimate = EstimateMesh();
  EXPECT_LE(estimate.pages, Mesh());
  const OwnerHeap::MeshEstimate left = EstimateMesh();
  uint64_t prepared = Prepared();
  const uint64_t told = heap_->EstimateRelocation(left, &prepared);
  EXPECT_EQ(Relocate(), told);
  is_movable_ = [](Block) { return false; };
  is_pinned_ = [](Block) { return true; };
  prepared = Prepared();
  const OwnerHeap::MeshEstimate nothing = EstimateMesh();
  EXPECT_EQ(nothing.pages, 0u);
  EXPECT_EQ(heap_->EstimateRelocation(nothing, &prepared), 0u);
}

TEST_F(OwnerHeapEstimateTest, WithoutAPageForWhatIsLeftItStays) {
  Sparse(4096, 1, 4);
  ASSERT_FALSE(live_.empty());
  Sparse(4096, 1, 4);
  memory_->Trim(PageCount(0));
  const OwnerHeap::MeshEstimate unmeshed =
      heap_->EstimateMesh(Bytes(UINT64_MAX), is_pinned_, is_movable_);
  uint64_t prepared = Prepared();
  ASSERT_EQ(prepared, 0u);
  const uint64_t told = heap_->EstimateRelocation(unmeshed, &prepared);
  EXPECT_EQ(told, 1u);
  EXPECT_EQ(Relocate(), told);
}

TEST_F(OwnerHeapEstimateTest, ChangesNothingAndAsksTheDriverNothing) {
  Sparse(4096, 30, 7);
  const HeapAccounts before = heap_->accounts();
  const uint64_t calls = driver_->GetCallStatistics().total_count();
  const OwnerHeap::MeshEstimate estimate = EstimateMesh();
  uint64_t prepared = 100;
  heap_->EstimateRelocation(estimate, &prepared);
  EXPECT_EQ(driver_->GetCallStatistics().total_count(), calls);
  EXPECT_EQ(heap_->accounts().mapped_bytes, before.mapped_bytes);
  EXPECT_EQ(heap_->accounts().free_bytes, before.free_bytes);
  EXPECT_EQ(heap_->CheckInvariants(), absl::OkStatus());
}

// Each live slot is asked about once, and slabs that cannot be emptied once in
// all: what makes an estimate cheap where nothing is movable.
TEST_F(OwnerHeapEstimateTest, AsksAboutEachSlotOnceAtMost) {
  Sparse(256, 20, 2);
  Sparse(4096, 30, 7);
  uint64_t pin_questions = 0;
  uint64_t move_questions = 0;
  is_pinned_ = [&](Block) {
    ++pin_questions;
    return false;
  };
  is_movable_ = [&](Block) {
    ++move_questions;
    return true;
  };
  EstimateMesh();
  EXPECT_EQ(move_questions, live_.size());
  const auto large_enough = static_cast<uint64_t>(
      std::count_if(live_.begin(), live_.end(), [](const Block& block) {
        return block.size() >= kSmallestSlot.value();
      }));
  EXPECT_LE(pin_questions, large_enough);
  move_questions = 0;
  is_movable_ = [&](Block) {
    ++move_questions;
    return false;
  };
  EstimateMesh();
  EXPECT_LE(move_questions, heap_->accounts().slabs);
}

}  // namespace
}  // namespace quire
