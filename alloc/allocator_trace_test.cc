// What an allocator tells its trace, against what was asked of it.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/event_trace.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

class AllocatorTraceTest : public AllocatorFixture {
 protected:
  static constexpr uint64_t kSlot = kPageBytes / 16;

  AllocatorTraceTest() { Remake(DeviceAllocatorOptions()); }
  ~AllocatorTraceTest() override {
    for (const DeviceAddress address : live_) Free(address);
    allocator_.reset();
  }

  void Remake(DeviceAllocatorOptions options) {
    options.trace = &trace_;
    MakeAllocator(options);
  }
  std::vector<TraceEvent> EventsOf(TraceAction action) const {
    std::vector<TraceEvent> events = trace_.Events();
    std::erase_if(events, [action](const TraceEvent& event) {
      return event.action != action;
    });
    return events;
  }
  // Slabs of `owner` with about one live slot in ten.
  void Sparse(OwnerId owner, bool movable) {
    std::mt19937_64 random(1);
    AllocateOptions options;
    options.owner = owner;
    options.movable = movable;
    std::vector<DeviceAddress> all;
    for (int i = 0; i < 12 * 16; ++i) {
      all.push_back(*allocator_->Allocate(Bytes(kSlot), options));
    }
    for (const DeviceAddress address : all) {
      if (random() % 10 == 0) {
        live_.insert(address);
      } else {
        Free(address);
      }
    }
    allocator_->Trim();
  }
  // What the trace says is live, by address.
  std::map<DeviceAddress, Bytes> LiveByTrace() const {
    std::map<DeviceAddress, Bytes> live;
    for (const TraceEvent& event : trace_.Events()) {
      if (event.action == TraceAction::kAllocate) {
        EXPECT_TRUE(live.emplace(event.address, event.size).second);
      } else if (event.action == TraceAction::kFree) {
        const auto freed = live.find(event.address);
        if (freed == live.end()) {
          ADD_FAILURE() << "freed, and was not live";
          continue;
        }
        EXPECT_EQ(freed->second, event.size);
        live.erase(freed);
      }
    }
    return live;
  }
  void ExpectTheTraceKnowsWhatLives() const {
    std::map<DeviceAddress, Bytes> live;
    for (const auto& info : allocator_->CalculateLiveAllocations()) {
      live[info.address] = info.requested;
    }
    EXPECT_EQ(LiveByTrace(), live);
  }

  EventTrace trace_{1 << 14};
  std::set<DeviceAddress> live_;
};

TEST_F(AllocatorTraceTest, AFreeIsCompleteWhenItsStreamIsDone) {
  const StreamId stream = MakeStream();
  const StreamId other = MakeStream();
  for (const uint64_t size : {uint64_t{1000}, 2 * kPageBytes}) {
    AllocateOptions options;
    options.stream = stream;
    options.owner = kOwner;
    const DeviceAddress alone = *allocator_->Allocate(Bytes(size), options);
    const DeviceAddress shared = *allocator_->Allocate(Bytes(size), options);
    EXPECT_EQ(allocator_->RecordStream(shared, other), absl::OkStatus());
    const size_t before = EventsOf(TraceAction::kFreeCompleted).size();
    {
      Gate gate(driver_.get(), stream);
      Free(alone, stream);
      Free(shared, stream);
      allocator_->Trim();
      EXPECT_EQ(EventsOf(TraceAction::kFreeCompleted).size(), before);
    }
    EXPECT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
    EXPECT_EQ(driver_->SynchronizeStream(other), absl::OkStatus());
    allocator_->Trim();
    const auto completed = EventsOf(TraceAction::kFreeCompleted);
    ASSERT_EQ(completed.size(), before + 2);
    std::map<DeviceAddress, StreamId> streams;
    for (size_t i = before; i < completed.size(); ++i) {
      EXPECT_EQ(completed[i].owner, kOwner);
      EXPECT_EQ(completed[i].size, Bytes(size));
      streams[completed[i].address] = completed[i].stream;
    }
    EXPECT_EQ(streams, (std::map<DeviceAddress, StreamId>{
                           {alone, stream}, {shared, StreamId()}}));
  }
}

// The stream has it again first, or nothing is to be waited for: nobody needs
// to be told.
TEST_F(AllocatorTraceTest, WhatIsNotWaitedForIsNotCompleted) {
  const StreamId stream = MakeStream();
  const DeviceAddress again = AllocatePages(2, stream);
  Free(again, stream);
  EXPECT_EQ(AllocatePages(2, stream), again);
  const DeviceAddress at_once = AllocatePages(3);
  Free(at_once);
  allocator_->Trim();
  EXPECT_TRUE(EventsOf(TraceAction::kFreeCompleted).empty());
  // What the stream had before is waited for, whatever the free says.
  Free(again);
  EXPECT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  allocator_->Trim();
  const std::vector<TraceEvent> completed =
      EventsOf(TraceAction::kFreeCompleted);
  ASSERT_EQ(completed.size(), 1u);
  EXPECT_EQ(completed[0].address, again);
  EXPECT_EQ(completed[0].stream, stream);
}

TEST_F(AllocatorTraceTest, AMeshSaysWhatItFreed) {
  Sparse(kOwner, /*movable=*/false);
  MeshOptions options;
  options.smallest_slot = Bytes(256);
  options.owner = kOwner;
  const auto section = QuiescentSection::Begin(memory_.get(), {});
  const auto report = allocator_->Mesh(*section, options);
  ASSERT_TRUE(report.ok()) << report.status();
  const std::vector<TraceEvent> meshes = EventsOf(TraceAction::kMesh);
  ASSERT_EQ(meshes.size(), 1u);
  EXPECT_GT(meshes[0].size, Bytes(0));
  EXPECT_EQ(meshes[0].size.value(), report->pages_freed.value() * kPageBytes);
  EXPECT_EQ(meshes[0].owner, kOwner);
  EXPECT_TRUE(memory_->Contains(meshes[0].address));
  ExpectTheTraceKnowsWhatLives();
}

// A trace that knows allocations by their addresses goes on knowing them.
TEST_F(AllocatorTraceTest, APassSaysWhatItMovedAndFreed) {
  Sparse(kOwner, /*movable=*/true);
  const auto section = QuiescentSection::Begin(memory_.get(), {});
  auto pass = allocator_->BeginRelocation(*section);
  ASSERT_TRUE(pass.ok()) << pass.status();
  ASSERT_GE(pass->moves().size(), 3u);
  pass->SetAction(0, MoveAction::kIgnore);
  pass->SetAction(1, MoveAction::kDestroy);
  for (size_t i = 1; i < pass->moves().size(); ++i) {
    EXPECT_EQ(live_.erase(pass->moves()[i].from), 1u);
    if (i > 1) live_.insert(pass->moves()[i].to);
  }
  ASSERT_EQ(pass->Copy(), absl::OkStatus());
  const CompactionReport report = pass->End();
  const std::vector<TraceEvent> passes = EventsOf(TraceAction::kRelocate);
  ASSERT_EQ(passes.size(), 1u);
  EXPECT_EQ(passes[0].size.value(), report.pages_freed.value() * kPageBytes);
  ExpectTheTraceKnowsWhatLives();
}

}  // namespace
}  // namespace quire
