// What every kind of compaction reports, against the driver's own count of its
// calls and a clock around it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

using std::chrono::steady_clock;
using ::testing::ElementsAre;

constexpr std::chrono::milliseconds kPause(2);

double Seconds(steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Makes whatever maps or unmaps pages take its time.
class SlowHooks final : public MemoryHooks {
 public:
  void OnPagesMapped(const MappingChange&) override {
    std::this_thread::sleep_for(kPause);
  }
  void OnPagesUnmapped(const MappingChange&) override {
    std::this_thread::sleep_for(kPause);
  }
};

class Listener final : public CompactionListener {
 public:
  void BeforeCompaction(CompactionLevel level) override {
    log.push_back(std::string("before ") + CompactionLevelName(level));
  }
  void AfterCompaction(CompactionLevel level,
                       const CompactionReport& report) override {
    log.push_back(std::string("after ") + CompactionLevelName(level));
    last = report;
  }
  void BeforeMove(const RelocationMove&) override {
    std::this_thread::sleep_for(kPause);
  }

  std::vector<std::string> log;
  CompactionReport last;
};

class CompactionReportTest : public AllocatorFixture {
 protected:
  CompactionReportTest() : model_(owners_.Register("model")) {
    DeviceAllocatorOptions options;
    options.listener = &listener_;
    MakeAllocator(options);
    memory_->AddHooks(&hooks_);
  }
  ~CompactionReportTest() override {
    memory_->RemoveHooks(&hooks_);
    allocator_.reset();
  }

  // Runs what gives a report, and checks its calls and its time: `slow` says
  // that it maps, unmaps or moves something.
  CompactionReport Check(bool slow,
                         const std::function<CompactionReport()>& compact) {
    const uint64_t calls = DriverCalls();
    const auto begin = steady_clock::now();
    const CompactionReport report = compact();
    EXPECT_LE(report.seconds, Seconds(steady_clock::now() - begin));
    EXPECT_GE(report.seconds, slow ? Seconds(kPause) : 0.0);
    EXPECT_EQ(report.driver_calls, DriverCalls() - calls);
    return report;
  }
  QuiescentSection Section() {
    auto section = QuiescentSection::Begin(memory_.get(), {});
    EXPECT_TRUE(section.ok()) << section.status();
    return *std::move(section);
  }
  // Two slabs of slots of a 16th of a page, with one that is live in each.
  std::vector<DeviceAddress> MakeSparseSlabs(bool movable) {
    AllocateOptions options;
    options.movable = movable;
    options.owner = model_;
    std::vector<DeviceAddress> all;
    for (int i = 0; i < 32; ++i) {
      const auto address =
          allocator_->Allocate(Bytes(kPageBytes / 16), options);
      EXPECT_TRUE(address.ok()) << address.status();
      all.push_back(address.value_or(DeviceAddress()));
    }
    // Slabs are pages: the first address of each, whatever their order.
    std::vector<DeviceAddress> live;
    for (const DeviceAddress address : all) {
      const bool first =
          std::none_of(live.begin(), live.end(), [&](DeviceAddress other) {
            return other.value() / kPageBytes == address.value() / kPageBytes;
          });
      if (first) {
        live.push_back(address);
      } else {
        Free(address);
      }
    }
    return live;
  }

  const OwnerId model_;
  Listener listener_;
  SlowHooks hooks_;
};

TEST_F(CompactionReportTest, TrimToThePool) {
  Free(AllocatePages(5));
  const CompactionReport report =
      Check(true, [&] { return allocator_->Trim(); });
  EXPECT_EQ(report.pages_freed, PageCount(5));
  EXPECT_EQ(memory_->GetStatistics().cached, Bytes(5 * kPageBytes));
  EXPECT_THAT(listener_.log, ElementsAre("before trim", "after trim"));
  EXPECT_EQ(listener_.last.pages_freed, report.pages_freed);
  EXPECT_EQ(listener_.last.driver_calls, report.driver_calls);
  EXPECT_EQ(listener_.last.seconds, report.seconds);
  // Nothing is left to give, and it takes no call to see that.
  EXPECT_EQ(Check(false, [&] { return allocator_->Trim(); }).pages_freed,
            PageCount(0));
  EXPECT_EQ(listener_.log.size(), 4u);
}

TEST_F(CompactionReportTest, TrimToTheDriver) {
  Free(AllocatePages(5));
  const CompactionReport report = Check(true, [&] { return memory_->Trim(); });
  EXPECT_EQ(report.pages_freed, PageCount(5));
  EXPECT_GE(report.driver_calls, 5u);
  EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
}

TEST_F(CompactionReportTest, Mesh) {
  const std::vector<DeviceAddress> live = MakeSparseSlabs(/*movable=*/false);
  const CompactionReport report = Check(false, [&] {
    MeshOptions options;
    options.smallest_slot = Bytes(256);
    return allocator_->Mesh(Section(), options).value();
  });
  EXPECT_THAT(listener_.log, ElementsAre("before mesh", "after mesh"));
  EXPECT_EQ(listener_.last.seconds, report.seconds);
  for (const DeviceAddress address : live) Free(address);
}

TEST_F(CompactionReportTest, Relocation) {
  std::vector<DeviceAddress> live = MakeSparseSlabs(/*movable=*/true);
  const CompactionReport report = Check(true, [&] {
    auto pass = allocator_->BeginRelocation(Section());
    EXPECT_TRUE(pass.ok()) << pass.status();
    EXPECT_EQ(pass->Copy(), absl::OkStatus());
    for (const RelocationMove& move : pass->moves()) {
      std::replace(live.begin(), live.end(), move.from, move.to);
    }
    return pass->End();
  });
  EXPECT_GE(report.moves, 1u);
  EXPECT_EQ(report.bytes_moved, Bytes(report.moves * kPageBytes / 16));
  EXPECT_THAT(listener_.log,
              ElementsAre("before relocation", "after relocation"));
  for (const DeviceAddress address : live) Free(address);
}

TEST_F(CompactionReportTest, SleepAndWake) {
  AllocateOptions options;
  options.owner = model_;
  const auto address = allocator_->Allocate(Bytes(3 * kPageBytes), options);
  ASSERT_TRUE(address.ok()) << address.status();
  const CompactionReport slept = Check(
      false, [&] { return allocator_->Sleep(Section(), model_).value(); });
  EXPECT_EQ(slept.pages_freed, PageCount(3));
  EXPECT_EQ(slept.bytes_moved, Bytes(3 * kPageBytes));
  const CompactionReport woken =
      Check(false, [&] { return allocator_->Wake(model_).value(); });
  EXPECT_EQ(woken.bytes_moved, Bytes(3 * kPageBytes));
  EXPECT_THAT(listener_.log, ElementsAre("before sleep", "after sleep",
                                         "before wake", "after wake"));
  Free(*address);
}

TEST_F(CompactionReportTest, WhatAPolicyDecides) {
  class TrimAlways final : public CompactionPolicy {
    std::vector<CompactionLevel> Decide(const CompactionFacts&) override {
      return {CompactionLevel::kTrim};
    }
  };
  Free(AllocatePages(4));
  TrimAlways policy;
  const CompactionReport report = Check(
      true, [&] { return allocator_->Compact(Section(), &policy).value(); });
  EXPECT_EQ(report.pages_freed, PageCount(4));
  EXPECT_THAT(listener_.log, ElementsAre("before trim", "after trim"));
}

}  // namespace
}  // namespace quire
