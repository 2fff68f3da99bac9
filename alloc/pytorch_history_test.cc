// The history of a runtime at work, undone event by event as PyTorch's viewer
// does it: every event must find what it undoes.

#include "alloc/pytorch_history.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/alloc/host_driver.h"
#include "quire/alloc/memory_snapshot.h"
#include "quire/alloc/runtime.h"

namespace quire {
namespace {

constexpr uint64_t kPageBytes = KiB(64).value();

// The state that a viewer keeps: segments that lie apart, and the blocks in
// use.
class Viewer {
 public:
  explicit Viewer(const PyTorchHistory& history) : history_(history) {
    for (const PyTorchSegment& segment : history.segments) {
      segments_[segment.address] = segment.size;
      for (const auto& [address, block] : segment.blocks) {
        blocks_[address] = block.size;
      }
    }
  }

  // Event by event, the latest first, to the beginning of the history.
  void UndoAll() {
    Check();
    for (auto event = history_.events.rbegin(); event != history_.events.rend();
         ++event) {
      Undo(*event);
      Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  size_t blocks() const { return blocks_.size(); }

 private:
  void Undo(const PyTorchEvent& event) {
    const std::string_view action = event.action;
    if (action == "alloc") {
      EXPECT_EQ(blocks_.erase(event.address), 1u);
      pending_.erase(event.address);  // its free was not known
    } else if (action == "free_completed") {
      EXPECT_TRUE(blocks_.emplace(event.address, event.size).second);
      EXPECT_TRUE(pending_.insert(event.address).second);
    } else if (action == "free_requested") {
      EXPECT_EQ(pending_.erase(event.address), 1u);
    } else if (action == "segment_map") {
      Unmap(event.address, event.size);
    } else if (action == "segment_unmap") {
      Map(event.address, event.size);
    } else {
      EXPECT_EQ(action, "oom");
    }
  }
  // Every block lies in a segment: a viewer looks for it.
  void Check() const {
    for (const auto& [address, size] : blocks_) {
      const auto next = segments_.upper_bound(address);
      ASSERT_NE(next, segments_.begin()) << address;
      const auto& [begin, length] = *std::prev(next);
      ASSERT_LE(address + size, begin + length);
    }
  }
  void Unmap(uint64_t address, uint64_t size) {
    const auto next = segments_.upper_bound(address);
    ASSERT_NE(next, segments_.begin());
    const auto found = std::prev(next);
    const auto [begin, length] = *found;
    ASSERT_LE(address + size, begin + length);
    segments_.erase(found);
    if (address > begin) segments_[begin] = address - begin;
    if (address + size < begin + length) {
      segments_[address + size] = begin + length - address - size;
    }
  }
  void Map(uint64_t address, uint64_t size) {
    const auto next = segments_.lower_bound(address);
    if (next != segments_.end()) {
      ASSERT_LE(address + size, next->first);
      if (next->first == address + size) {
        size += next->second;
        segments_.erase(next);
      }
    }
    const auto after = segments_.lower_bound(address);
    if (after != segments_.begin()) {
      auto& [begin, length] = *std::prev(after);
      ASSERT_LE(begin + length, address);
      if (begin + length == address) {
        length += size;
        return;
      }
    }
    segments_[address] = size;
  }

  const PyTorchHistory& history_;
  std::map<uint64_t, uint64_t> segments_;
  std::map<uint64_t, uint64_t> blocks_;
  std::set<uint64_t> pending_;  // not free yet, or not known to have been
};

class PyTorchHistoryTest : public ::testing::Test {
 protected:
  void MakeRuntime(size_t trace_capacity) {
    HostDriverOptions driver_options;
    driver_options.granularity = KiB(64);
    driver_options.memory_per_device = MiB(64);
    driver_options.backing = HostDriverOptions::Backing::kNone;
    auto driver = HostDriver::Create(driver_options);
    ASSERT_TRUE(driver.ok()) << driver.status();
    RuntimeOptions options;
    options.page_size = KiB(64);
    options.trace_capacity = trace_capacity;
    auto runtime = Runtime::Create(*std::move(driver), options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    weights_ = runtime_->owners()->Register("weights");
    kv_ = runtime_->owners()->Register("kv");
  }

  // Allocations large and small, and a region that grows and shrinks as a KV
  // cache does.
  void Work(int steps) {
    DeviceMemory* const memory = runtime_->memory();
    const auto range = memory->ReserveRange(PageCount(100), kv_);
    ASSERT_TRUE(range.ok()) << range.status();
    uint64_t grown = 0;
    for (int i = 0; i < steps; ++i) {
      switch (random_() % 5) {
        case 0:
        case 1: {
          AllocateOptions options;
          options.owner = weights_;
          const uint64_t size =
              random_() % 2 == 0 ? random_() % 4000 : random_() % 400000;
          const auto address =
              runtime_->allocator()->Allocate(Bytes(size), options);
          if (address.ok()) live_.push_back(*address);
          break;
        }
        case 2:
        case 3:
          if (live_.empty()) break;
          std::swap(live_[random_() % live_.size()], live_.back());
          ASSERT_TRUE(runtime_->allocator()->Free(live_.back()).ok());
          live_.pop_back();
          break;
        default: {
          const uint64_t target = random_() % 100;
          if (target > grown) {
            ASSERT_TRUE(memory
                            ->Commit(*range, PageCount(grown),
                                     PageCount(target - grown))
                            .ok());
          } else if (target < grown) {
            ASSERT_TRUE(memory
                            ->Decommit(*range, PageCount(target),
                                       PageCount(grown - target), Fence())
                            .ok());
          }
          grown = target;
          if (random_() % 4 == 0) runtime_->allocator()->Trim();
        }
      }
    }
    grown_pages_ = grown;
  }

  MemorySnapshot Snapshot() {
    const auto snapshot =
        MemorySnapshotFromJson(BuildMemorySnapshot(*runtime_));
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return snapshot.value_or(MemorySnapshot());
  }

  std::mt19937_64 random_{5};
  std::unique_ptr<Runtime> runtime_;
  OwnerId weights_;
  OwnerId kv_;
  std::vector<DeviceAddress> live_;
  uint64_t grown_pages_ = 0;
};

TEST_F(PyTorchHistoryTest, UndoneToItsBeginningNothingIsLeft) {
  MakeRuntime(100000);
  Work(3000);
  const PyTorchHistory history = BuildPyTorchHistory(Snapshot());
  // The end is what there is.
  uint64_t pages = 0;
  size_t blocks = 0;
  for (const PyTorchSegment& segment : history.segments) {
    pages += segment.size / kPageBytes;
    blocks += segment.blocks.size();
  }
  // Of addresses: a page that several share counts at each.
  const DeviceMemoryStatistics memory = runtime_->memory()->GetStatistics();
  EXPECT_EQ(pages * kPageBytes, memory.mapped.value() - memory.cooling.value());
  EXPECT_EQ(blocks, live_.size() + grown_pages_);
  EXPECT_GT(history.events.size(), 3000u);
  Viewer viewer(history);
  viewer.UndoAll();
  if (HasFatalFailure()) return;
  EXPECT_EQ(viewer.blocks(), 0u);
}

TEST_F(PyTorchHistoryTest, ATraceThatLostItsBeginningStillFits) {
  MakeRuntime(200);
  Work(3000);
  const PyTorchHistory history = BuildPyTorchHistory(Snapshot());
  EXPECT_GT(history.events.size(), 100u);
  Viewer(history).UndoAll();
}

// Files may say anything.
TEST_F(PyTorchHistoryTest, WhatDoesNotFitIsLeftOut) {
  MakeRuntime(1000);
  Work(300);
  const MemorySnapshot good = Snapshot();
  std::mt19937_64 random(1);
  const auto number = [&]() -> uint64_t {
    switch (random() % 5) {
      case 0:
        return random();
      case 1:
        return UINT64_MAX - random() % 3;
      case 2:
        return good.pages[random() % good.pages.size()].address +
               random() % 3 * kPageBytes;
      case 3:
        return random() % 3 * kPageBytes;
      default:
        return random() % 5;
    }
  };
  for (int round = 0; round < 200; ++round) {
    MemorySnapshot bad = good;
    for (int change = 0; change < 20; ++change) {
      TraceEvent& event = bad.events[random() % bad.events.size()];
      AllocationInfo& allocation =
          bad.allocations[random() % bad.allocations.size()];
      MemorySnapshot::Page& page = bad.pages[random() % bad.pages.size()];
      switch (random() % 6) {
        case 0:
          event.address = DeviceAddress(number());
          break;
        case 1:
          event.size = Bytes(number());
          break;
        case 2:
          event.action = static_cast<TraceAction>(random() % 6);
          break;
        case 3:
          allocation.address = DeviceAddress(number());
          break;
        case 4:
          allocation.allocated = Bytes(number());
          break;
        default:
          page.address = number();
      }
    }
    const PyTorchHistory history = BuildPyTorchHistory(bad);
    Viewer(history).UndoAll();
    if (HasFatalFailure()) return;
  }
  MemorySnapshot none = good;
  none.memory.page_size = Bytes(0);
  EXPECT_TRUE(BuildPyTorchHistory(none).segments.empty());
}

}  // namespace
}  // namespace quire
