#include "alloc/stream_free_list.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"
#include "alloc/testing/fake_span.h"

namespace quire {
namespace {

constexpr int kClasses = 3;

class StreamFreeListTest : public DeviceMemoryFixture {
 protected:
  StreamFreeListTest() : stream_(MakeStream()) {
    list_ = std::make_unique<StreamFreeList>(driver_.get(), DeviceId(0),
                                             stream_, kClasses);
    for (int i = 0; i < kClasses; ++i) {
      slabs_.emplace_back(uint64_t{0x100000} * (i + 1), i, Bytes(256), 256);
    }
  }
  ~StreamFreeListTest() override {
    EXPECT_EQ(list_->CheckInvariants(), absl::OkStatus());
    list_.reset();
  }

  Block Push(int size_class) {
    const Block block = slabs_[size_class].CoolingBlock();
    list_->Push(block);
    return block;
  }
  std::vector<Block> Poll() { return list_->Poll().slots; }
  // The list keeps the order of the stream, so this makes all that is closed
  // free.
  void Synchronize() {
    EXPECT_EQ(driver_->SynchronizeStream(stream_), absl::OkStatus());
  }

  const StreamId stream_;
  std::deque<FakeSpan> slabs_;
  std::unique_ptr<StreamFreeList> list_;
};

TEST_F(StreamFreeListTest, GivesItsStreamTheNewestFirstWithoutADriverCall) {
  const uint64_t before = driver_->GetCallStatistics().total_count();
  const Block first = Push(0);
  const Block second = Push(0);
  Push(1);
  EXPECT_EQ(list_->PopSlot(0)->slot, second.slot);
  EXPECT_EQ(list_->PopSlot(0)->slot, first.slot);
  EXPECT_FALSE(list_->PopSlot(0).has_value());
  EXPECT_EQ(driver_->GetCallStatistics().total_count(), before);
}

TEST_F(StreamFreeListTest, NothingIsFreeBeforeItsFence) {
  Gate gate(driver_.get(), stream_);
  Push(0);
  EXPECT_EQ(list_->CloseBatch(), absl::OkStatus());
  Push(0);
  EXPECT_TRUE(Poll().empty());
  EXPECT_EQ(list_->progress(), StreamFreeList::Progress::kWaiting);
  gate.Open();
  Synchronize();
  // The second free has no fence yet.
  EXPECT_EQ(Poll().size(), 1u);
  EXPECT_EQ(list_->progress(), StreamFreeList::Progress::kIdle);
  EXPECT_FALSE(list_->empty());
}

TEST_F(StreamFreeListTest, WorkQueuedAfterTheFenceHoldsNothingUp) {
  Push(0);
  EXPECT_EQ(list_->CloseBatch(), absl::OkStatus());
  Synchronize();
  Gate gate(driver_.get(), stream_);
  Push(1);
  EXPECT_EQ(list_->CloseBatch(), absl::OkStatus());
  EXPECT_EQ(Poll().size(), 1u);
  EXPECT_EQ(list_->progress(), StreamFreeList::Progress::kWaiting);
  EXPECT_TRUE(list_->HoldsSlots(1));
  EXPECT_FALSE(list_->HoldsSlots(2));
}

TEST_F(StreamFreeListTest, AStreamThatStandsStillGathersNoEvents) {
  Gate gate(driver_.get(), stream_);
  const Piece large = {0x800000, 4 * kPageBytes};
  const auto events = [this] {
    return Calls("CreateEvent") - Calls("DestroyEvent");
  };
  for (int round = 0; round < 1000; ++round) {
    list_->PushRun(large);
    EXPECT_EQ(list_->open_bytes(), 4 * kPageBytes);
    EXPECT_EQ(list_->CloseBatch(), absl::OkStatus());
    EXPECT_EQ(list_->open_bytes(), 0u);
    EXPECT_LE(events(), 1u);
    ASSERT_EQ(list_->runs().FindFit(4 * kPageBytes, Bytes(256)), large.begin);
    list_->TakeRun(large);
    ASSERT_TRUE(list_->empty());
  }
  EXPECT_EQ(events(), 0u);
}

TEST_F(StreamFreeListTest, WhatItsStreamUsesAgainIsNotOpen) {
  Push(0);
  Push(0);
  Push(1);
  EXPECT_EQ(list_->open_bytes(), 3 * 256u);
  list_->PopSlot(0);
  EXPECT_EQ(list_->open_bytes(), 2 * 256u);
  EXPECT_EQ(list_->RemoveSlab(slabs_[1].span()), 1u);
  EXPECT_EQ(list_->open_bytes(), 256u);
}

TEST_F(StreamFreeListTest, ADestroyedStreamHasNothingToWaitFor) {
  const StreamId gone = *driver_->CreateStream(DeviceId(0));
  StreamFreeList list(driver_.get(), DeviceId(0), gone, kClasses);
  list.Push(slabs_[0].CoolingBlock());
  EXPECT_EQ(driver_->DestroyStream(gone), absl::OkStatus());
  EXPECT_EQ(list.CloseBatch(), absl::OkStatus());
  EXPECT_EQ(list.Poll().slots.size(), 1u);

  const StreamId both[] = {gone, stream_};
  const auto fence = RecordOnLiveStreams(driver_.get(), DeviceId(0), both);
  ASSERT_TRUE(fence.ok()) << fence.status();
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
}

TEST_F(StreamFreeListTest, ASlabLeavesWithTheFenceOfItsNewestSlot) {
  Push(0);
  EXPECT_EQ(list_->CloseBatch(), absl::OkStatus());
  Synchronize();
  Gate gate(driver_.get(), stream_);
  Push(0);
  Push(1);
  const auto fence = list_->FenceOf(slabs_[0].span());
  ASSERT_TRUE(fence.has_value());
  EXPECT_FALSE(*fence->IsComplete());
  EXPECT_EQ(list_->RemoveSlab(slabs_[0].span()), 2u);
  EXPECT_EQ(list_->CountSlots(slabs_[0].span()), 0u);
  EXPECT_EQ(list_->CheckInvariants(), absl::OkStatus());
  gate.Open();
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
  EXPECT_EQ(Poll().size(), 1u);
}

TEST_F(StreamFreeListTest, BytesThatTouchAreFreeWithTheLastOfThem) {
  list_->PushRun({0x800000, kPageBytes});
  EXPECT_EQ(list_->CloseBatch(), absl::OkStatus());
  Synchronize();
  Gate gate(driver_.get(), stream_);
  list_->PushRun({0x800000 + kPageBytes, kPageBytes});
  EXPECT_EQ(list_->CloseBatch(), absl::OkStatus());
  EXPECT_TRUE(list_->Poll().runs.empty());
  EXPECT_EQ(list_->runs().largest(), 2 * kPageBytes);
  gate.Open();
  Synchronize();
  const std::vector<ByteRun> runs = list_->Poll().runs;
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs.front().length, 2 * kPageBytes);
  EXPECT_TRUE(list_->empty());
}

TEST_F(StreamFreeListTest, WhatIsLeftOfARunKeepsItsBatch) {
  list_->PushRun({0x800000, 3 * kPageBytes});
  EXPECT_EQ(list_->CloseBatch(), absl::OkStatus());
  list_->TakeRun({0x800000 + kPageBytes, kPageBytes});
  EXPECT_EQ(list_->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(list_->open_bytes(), 0u);
  Synchronize();
  EXPECT_EQ(list_->Poll().runs.size(), 2u);
  EXPECT_TRUE(list_->empty());
}

TEST_F(StreamFreeListTest, RemembersWhatLayThereUntilTheBytesAreTaken) {
  for (const uint64_t begin : {0x800000u, 0x900000u}) {
    const Piece piece = {begin, KiB(4).value()};
    list_->PushRun(piece);
    list_->Note({piece, DeviceAddress(begin), Bytes(4000)});
  }
  list_->TakeRun({0x900000, 512});
  EXPECT_EQ(list_->CloseBatch(), absl::OkStatus());
  Synchronize();
  const StreamFreeList::Freed freed = list_->Poll();
  ASSERT_EQ(freed.blocks.size(), 1u);
  EXPECT_EQ(freed.blocks.front().address, DeviceAddress(0x800000));
  EXPECT_EQ(freed.blocks.front().requested, Bytes(4000));
  EXPECT_EQ(freed.runs.size(), 2u);
}

// The truth: each class is a stack of blocks for the stream, and what is below
// the last closed batch is free after a synchronisation.
TEST_F(StreamFreeListTest, AgreesWithAModel) {
  struct Pushed {
    Block block;
    bool closed = false;
  };
  std::vector<std::vector<Pushed>> model(kClasses);
  std::mt19937 random(17);
  for (int step = 0; step < 20000; ++step) {
    const int size_class = static_cast<int>(random() % kClasses);
    std::vector<Pushed>& stack = model[size_class];
    switch (random() % 8) {
      default:
        if (slabs_[size_class].span()->free_slots.free_count() > 0) {
          stack.push_back({Push(size_class)});
        }
        break;
      case 3:
      case 4:
      case 5: {
        const auto block = list_->PopSlot(size_class);
        ASSERT_EQ(block.has_value(), !stack.empty());
        if (!block) break;
        ASSERT_EQ(block->slot, stack.back().block.slot);
        stack.pop_back();
        FakeSpan::Free(*block);
        break;
      }
      case 6:
        ASSERT_EQ(list_->CloseBatch(), absl::OkStatus());
        for (auto& other : model) {
          for (Pushed& pushed : other) pushed.closed = true;
        }
        break;
      case 7: {
        if (random() % 8 != 0) break;
        Synchronize();
        const std::vector<Block> freed = Poll();
        size_t closed = 0;
        for (auto& other : model) {
          closed += std::erase_if(
              other, [](const Pushed& pushed) { return pushed.closed; });
        }
        ASSERT_EQ(freed.size(), closed);
        for (const Block& block : freed) FakeSpan::Free(block);
        break;
      }
    }
    ASSERT_EQ(list_->CheckInvariants(), absl::OkStatus());
    for (int i = 0; i < kClasses; ++i) {
      ASSERT_EQ(list_->CountSlots(slabs_[i].span()), model[i].size());
    }
  }
}

}  // namespace
}  // namespace quire
