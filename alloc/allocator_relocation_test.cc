// Passes that move allocations, and what must not be moved.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/pattern.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

class AllocatorRelocationTest : public AllocatorFixture {
 protected:
  static constexpr uint64_t kSlot = kPageBytes / 16;

  DeviceAddress AllocateMovable(uint64_t size, StreamId stream = StreamId()) {
    AllocateOptions options;
    options.movable = true;
    options.stream = stream;
    return *allocator_->Allocate(Bytes(size), options);
  }
  // Slabs with about one live slot in `one_in`.
  void Sparse(uint64_t slabs, uint64_t one_in, bool movable = true) {
    std::vector<DeviceAddress> all;
    for (uint64_t i = 0; i < slabs * 16; ++i) {
      all.push_back(movable ? AllocateMovable(kSlot) : Allocate(kSlot));
    }
    for (const DeviceAddress address : all) {
      if (random_() % one_in == 0) {
        live_[address] = Pattern{address, kSlot, random_()};
        live_[address].Write();
      } else {
        Free(address);
      }
    }
    allocator_->Trim();
  }
  QuiescentSection Section() {
    return *QuiescentSection::Begin(memory_.get(), {});
  }
  absl::StatusOr<RelocationPass> Begin(const RelocationLimits& limits = {}) {
    const QuiescentSection section = Section();
    return allocator_->BeginRelocation(section, limits);
  }
  // A pattern knows its address, so what was moved is compared as bytes.
  static std::vector<uint8_t> BytesAt(DeviceAddress address) {
    const auto* const first = address.host_pointer<uint8_t>();
    return std::vector<uint8_t>(first, first + kSlot);
  }

  std::mt19937_64 random_{7};
  std::map<DeviceAddress, Pattern> live_;
};

TEST_F(AllocatorRelocationTest, FillsPagesToTheEnd) {
  Sparse(12, 10);
  const uint64_t live = live_.size() * kSlot;
  std::map<DeviceAddress, std::vector<uint8_t>> contents;
  for (const auto& [address, pattern] : live_) {
    contents[address] = BytesAt(address);
  }
  const uint64_t mapped = Statistics().mapped_bytes;
  auto pass = Begin();
  ASSERT_TRUE(pass.ok()) << pass.status();
  ASSERT_FALSE(pass->moves().empty());
  const std::vector<RelocationMove> moves(pass->moves().begin(),
                                          pass->moves().end());
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  ASSERT_EQ(pass->Copy(), absl::OkStatus());
  const CompactionReport report = pass->End();
  EXPECT_EQ(report.moves, moves.size());
  EXPECT_EQ(report.bytes_moved, Bytes(moves.size() * kSlot));
  EXPECT_GT(report.pages_freed, PageCount(0));
  EXPECT_EQ(report.pages_freed.value() * kPageBytes,
            mapped - Statistics().mapped_bytes);
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  for (const RelocationMove& move : moves) {
    EXPECT_EQ(move.size, Bytes(kSlot));
    contents[move.to] = std::move(contents[move.from]);
    contents.erase(move.from);
    EXPECT_FALSE(allocator_->Find(move.from).has_value());
  }
  EXPECT_EQ(contents.size(), live_.size());
  for (const auto& [address, bytes] : contents) {
    const auto info = allocator_->Find(address);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->requested, Bytes(kSlot));
    EXPECT_EQ(BytesAt(address), bytes);
  }
  EXPECT_EQ(Statistics().live_bytes, live);
  // Whole pages, and what is left in one page more.
  EXPECT_EQ(Statistics().mapped_bytes,
            (live + kPageBytes - 1) / kPageBytes * kPageBytes);
  for (const auto& [address, bytes] : contents) Free(address);
}

TEST_F(AllocatorRelocationTest, DoesWhatTheCallerSays) {
  Sparse(8, 8);
  auto pass = Begin();
  ASSERT_TRUE(pass.ok());
  ASSERT_GE(pass->moves().size(), 3u);
  const std::vector<RelocationMove> moves(pass->moves().begin(),
                                          pass->moves().end());
  pass->SetAction(0, MoveAction::kIgnore);
  pass->SetAction(1, MoveAction::kDestroy);
  ASSERT_EQ(pass->Copy(), absl::OkStatus());
  EXPECT_EQ(pass->End().moves, moves.size() - 2);
  EXPECT_TRUE(allocator_->Find(moves[0].from).has_value());
  EXPECT_FALSE(allocator_->Find(moves[0].to).has_value());
  EXPECT_TRUE(live_[moves[0].from].Holds());
  EXPECT_FALSE(allocator_->Find(moves[1].from).has_value());
  EXPECT_FALSE(allocator_->Find(moves[1].to).has_value());
  EXPECT_TRUE(allocator_->Find(moves[2].to).has_value());
  EXPECT_EQ(Statistics().live_allocations, live_.size() - 1);
}

TEST_F(AllocatorRelocationTest, APassThatIsGivenUpChangesNothing) {
  Sparse(8, 8);
  {
    auto pass = Begin();
    ASSERT_TRUE(pass.ok());
    const DeviceAddress moving = pass->moves().front().from;
    EXPECT_EQ(allocator_->Free(moving).code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(allocator_->Pin(moving).code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Begin().status().code(), absl::StatusCode::kFailedPrecondition);
  }
  for (const auto& [address, pattern] : live_) {
    EXPECT_TRUE(pattern.Holds());
    Free(address);
  }
  EXPECT_TRUE(Begin().ok());
}

TEST_F(AllocatorRelocationTest, MovesOnlyWhatIsMovableAndNotPinned) {
  Sparse(6, 8, /*movable=*/false);
  {
    const auto pass = Begin();
    ASSERT_TRUE(pass.ok());
    EXPECT_TRUE(pass->moves().empty());
  }
  for (const auto& [address, pattern] : live_) Free(address);
  live_.clear();
  Sparse(6, 8);
  for (const auto& [address, pattern] : live_) {
    EXPECT_EQ(allocator_->Pin(address), absl::OkStatus());
    EXPECT_EQ(allocator_->Pin(address), absl::OkStatus());
  }
  {
    const auto pass = Begin();
    EXPECT_TRUE(pass->moves().empty());
    const QuiescentSection section = Section();
    MeshOptions options;
    options.smallest_slot = Bytes(256);
    EXPECT_EQ(allocator_->Mesh(section, options)->moves, 0u);
  }
  for (const auto& [address, pattern] : live_) {
    EXPECT_EQ(allocator_->Unpin(address), absl::OkStatus());
    EXPECT_EQ(allocator_->Free(address).code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(allocator_->Unpin(address), absl::OkStatus());
    EXPECT_EQ(allocator_->Unpin(address).code(),
              absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_FALSE(Begin()->moves().empty());
}

TEST_F(AllocatorRelocationTest, StopsAtItsLimits) {
  Sparse(12, 10);
  RelocationLimits limits;
  limits.max_moves = 3;
  EXPECT_LE(Begin(limits)->moves().size(), 3u);
  limits = {};
  limits.max_bytes = Bytes(4 * kSlot);
  EXPECT_LE(Begin(limits)->moves().size(), 4u);
  limits = {};
  limits.owner = OwnerId(77);
  EXPECT_TRUE(Begin(limits)->moves().empty());
}

// A slab made for what is left, which the limits then leave empty, is free like
// any other: nothing that lives is given back in its place.
TEST_F(AllocatorRelocationTest, LimitsThatLeaveATargetEmptyCostNothing) {
  Sparse(12, 5);
  RelocationLimits limits;
  limits.max_moves = 0;
  const auto pass = Begin(limits);
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  allocator_->Trim();
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  for (const auto& [address, pattern] : live_) {
    EXPECT_TRUE(allocator_->Find(address).has_value());
    EXPECT_TRUE(pattern.Holds());
  }
}

TEST_F(AllocatorRelocationTest, FollowsAMesh) {
  Sparse(12, 5);
  {
    const QuiescentSection section = Section();
    MeshOptions options;
    options.smallest_slot = Bytes(256);
    ASSERT_TRUE(allocator_->Mesh(section, options).ok());
  }
  auto pass = Begin();
  ASSERT_TRUE(pass.ok());
  ASSERT_EQ(pass->Copy(), absl::OkStatus());
  pass->End();
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  EXPECT_LE(Statistics().mapped_bytes,
            (live_.size() * kSlot + kPageBytes - 1) / kPageBytes * kPageBytes +
                kPageBytes);
  for (const AllocationInfo& info : allocator_->CalculateLiveAllocations()) {
    Free(info.address);
  }
  allocator_->Trim();
  EXPECT_EQ(Statistics().mapped_bytes, 0u);
}

class Recorder : public CompactionListener {
 public:
  void BeforeCompaction(CompactionLevel level) override {
    log.push_back(std::string("before ") + CompactionLevelName(level));
    Allocate();
  }
  void AfterCompaction(CompactionLevel level,
                       const CompactionReport& report) override {
    log.push_back(std::string("after ") + CompactionLevelName(level));
    moves += report.moves;
    Allocate();
  }
  void BeforeMove(const RelocationMove& /*move*/) override {
    ++before_moves;
    Allocate();
  }
  void AfterMove(const RelocationMove& /*move*/, MoveAction action) override {
    if (action == MoveAction::kCopy) ++after_moves;
    Allocate();
  }

  DeviceAllocator* allocator = nullptr;
  std::vector<std::string> log;
  uint64_t moves = 0;
  uint64_t before_moves = 0;
  uint64_t after_moves = 0;

 private:
  // No lock may be held.
  void Allocate() {
    const auto address = allocator->Allocate(Bytes(100));
    ASSERT_TRUE(address.ok());
    EXPECT_EQ(allocator->Free(*address), absl::OkStatus());
    EXPECT_EQ(allocator->CheckInvariants(), absl::OkStatus());
  }
};

TEST_F(AllocatorRelocationTest, ListenersMayCallTheAllocator) {
  Recorder recorder;
  DeviceAllocatorOptions options;
  options.listener = &recorder;
  MakeAllocator(options);
  recorder.allocator = allocator_.get();
  Sparse(8, 8);
  {
    const QuiescentSection section = Section();
    ASSERT_TRUE(allocator_->Mesh(section).ok());
  }
  auto pass = Begin();
  ASSERT_TRUE(pass.ok());
  ASSERT_EQ(pass->Copy(), absl::OkStatus());
  pass->End();
  EXPECT_EQ(recorder.log, (std::vector<std::string>{
                              "before trim", "after trim",  // of Sparse
                              "before mesh", "after mesh", "before relocation",
                              "after relocation"}));
  EXPECT_EQ(recorder.before_moves, recorder.after_moves);
  EXPECT_GT(recorder.moves, 0u);
  allocator_.reset();
}

TEST_F(AllocatorRelocationTest, CompactsWhenThePolicySaysSo) {
  Sparse(8, 8, /*movable=*/false);
  const QuiescentSection section = Section();
  ThresholdPolicy never({.pool_in_use = 1.0});
  EXPECT_EQ(allocator_->Compact(section, &never)->driver_calls, 0u);
  ThresholdPolicy always({.pool_in_use = 0.0, .pinned = 0.0});
  const uint64_t in_use = memory_->GetStatistics().in_use.value();
  const auto report = allocator_->Compact(section, &always);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(in_use - memory_->GetStatistics().in_use.value(),
            report->pages_freed.value() * kPageBytes);
  EXPECT_EQ(memory_->GetStatistics().cached, Bytes(0));
}

}  // namespace
}  // namespace quire
