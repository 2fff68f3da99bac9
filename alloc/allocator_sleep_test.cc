#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/pattern.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/sleep.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

class AllocatorSleepTest : public AllocatorFixture {
 protected:
  AllocatorSleepTest()
      : model_(owners_.Register("model")),
        weights_(owners_.Register("model/weights")),
        kv_(owners_.Register("model/kv")),
        other_(owners_.Register("other")) {}

  absl::StatusOr<SleepReport> Sleep(OwnerId owner,
                                    SleepTarget target = SleepTarget::kHost) {
    auto section = QuiescentSection::Begin(memory_.get(), streams_);
    EXPECT_TRUE(section.ok()) << section.status();
    SleepOptions options;
    options.target = target;
    options.folder = ::testing::TempDir();
    return allocator_->Sleep(*section, owner, options);
  }
  absl::StatusOr<DeviceAddress> TryAllocate(uint64_t size, OwnerId owner,
                                            StreamId stream = StreamId()) {
    AllocateOptions options;
    options.stream = stream;
    options.owner = owner;
    return allocator_->Allocate(Bytes(size), options);
  }
  // Filled with a pattern that is nobody else's.
  Pattern Make(uint64_t size, OwnerId owner, StreamId stream = StreamId()) {
    const auto address = TryAllocate(size, owner, stream);
    EXPECT_TRUE(address.ok()) << size << " bytes: " << address.status();
    const Pattern pattern = {address.value_or(DeviceAddress()), size,
                             ++generation_};
    if (address.ok()) pattern.Write();
    return pattern;
  }
  uint64_t PagesOf(OwnerId owner) const {
    return memory_->GetOwnerStatistics(owner).live.value() / kPageBytes;
  }
  uint64_t AsleepPagesOf(OwnerId owner) const {
    return memory_->GetOwnerStatistics(owner).asleep.value() / kPageBytes;
  }

  const OwnerId model_;
  const OwnerId weights_;
  const OwnerId kv_;
  const OwnerId other_;
  uint64_t generation_ = 0;
};

TEST_F(AllocatorSleepTest, WhatIsLiveComesBackAndWhatIsFreeIsNotSaved) {
  const StreamId stream = MakeStream();
  for (const SleepTarget target : {SleepTarget::kHost, SleepTarget::kDisk}) {
    std::vector<Pattern> live;
    std::vector<Pattern> freed;
    // Slots of several classes, and ranges that share their last pages.
    for (int i = 0; i < 60; ++i) live.push_back(Make(300 + 61 * i, weights_));
    for (int i = 0; i < 4; ++i) {
      live.push_back(Make(kPageBytes * 5 / 4 + 512 * i, weights_, stream));
    }
    for (int i = 0; i < 4; ++i) {
      freed.push_back(Make(kPageBytes, weights_, stream));
    }
    for (const Pattern& pattern : freed) Free(pattern.address, stream);
    const uint64_t pages = PagesOf(weights_);
    const auto slept = Sleep(weights_, target);
    ASSERT_TRUE(slept.ok()) << slept.status();
    EXPECT_LE(slept->pages.value(), pages - 4);
    EXPECT_EQ(PagesOf(weights_), 0u);
    EXPECT_EQ(AsleepPagesOf(weights_), slept->pages.value());
    EXPECT_EQ(Statistics().asleep_bytes, slept->pages.value() * kPageBytes);
    memory_->Trim(PageCount(0));
    EXPECT_EQ(memory_->GetStatistics().in_use, Bytes(0));
    ASSERT_TRUE(allocator_->CheckInvariants().ok());

    ASSERT_TRUE(allocator_->Wake(weights_).ok());
    EXPECT_EQ(Statistics().asleep_bytes, 0u);
    for (const Pattern& pattern : live) EXPECT_TRUE(pattern.Holds());
    // Pages that are shared are found again: what comes next does not harm what
    // was there.
    for (int i = 0; i < 4; ++i) {
      live.push_back(Make(kPageBytes * 5 / 4, weights_));
    }
    for (const Pattern& pattern : live) EXPECT_TRUE(pattern.Holds());
    ASSERT_TRUE(allocator_->CheckInvariants().ok());
    for (const Pattern& pattern : live) Free(pattern.address);
  }
}

// The section names the streams that use what is live. Of what was freed the
// allocator knows itself who is not done with it.
TEST_F(AllocatorSleepTest, WhatWasFreedOnOtherStreamsIsWaitedFor) {
  const StreamId stream = MakeStream();
  const Pattern live = Make(1000, weights_);
  const Pattern freed = Make(1000, weights_, stream);
  std::atomic<bool> held{false};
  ASSERT_TRUE(driver_
                  ->LaunchHostFunction(stream,
                                       [&] {
                                         std::this_thread::sleep_for(
                                             std::chrono::milliseconds(20));
                                         held = freed.Holds();
                                       })
                  .ok());
  Free(freed.address, stream);
  const auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok());
  ASSERT_TRUE(allocator_->Sleep(*section, weights_).ok());
  EXPECT_TRUE(held);
  ASSERT_TRUE(allocator_->Wake(weights_).ok());
  EXPECT_TRUE(live.Holds());
  Free(live.address);
}

// Where the driver cannot tell, nothing is taken away.
TEST_F(AllocatorSleepTest, WhatCannotBeWaitedForKeepsItsOwnerAwake) {
  const StreamId stream = MakeStream();
  const Pattern live = Make(1000, weights_);
  const Pattern freed = Make(1000, weights_, stream);
  Free(freed.address, stream);
  faulty_->FailCallsFrom(DriverCall::kQueryEvent, 1,
                         absl::StatusCode::kInternal);
  const auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok());
  EXPECT_EQ(allocator_->Sleep(*section, weights_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  faulty_->ClearFaults();
  EXPECT_TRUE(live.Holds());
  Free(Make(1000, weights_).address);
  EXPECT_TRUE(allocator_->Sleep(*section, weights_).ok());
  ASSERT_TRUE(allocator_->Wake(weights_).ok());
  EXPECT_TRUE(live.Holds());
  Free(live.address);
}

TEST_F(AllocatorSleepTest, NothingIsAllocatedForThoseWhoSleep) {
  const StreamId stream = MakeStream();
  const Pattern kept = Make(1000, kv_, stream);
  // In the cache of this thread, for its stream and for all.
  Free(Make(1000, kv_, stream).address, stream);
  Free(Make(1000, kv_).address);
  ASSERT_TRUE(Sleep(model_).ok());
  for (const OwnerId owner : {kv_, model_, owners_.Register("model/new")}) {
    for (const uint64_t size : {1000ul, 3 * kPageBytes}) {
      const auto refused = TryAllocate(size, owner, stream);
      EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(refused.status().message()),
                  HasSubstr(owners_.Name(owner) + " is asleep"));
    }
  }
  EXPECT_TRUE(Make(1000, other_, stream).Holds());
  EXPECT_EQ(allocator_->Find(kept.address)->owner, kv_);
  EXPECT_EQ(allocator_->Pin(kept.address).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(allocator_->Wake(model_).ok());
  EXPECT_TRUE(Make(1000, kv_, stream).Holds());
  EXPECT_TRUE(kept.Holds());
}

TEST_F(AllocatorSleepTest, APartThatWakesUpIsUsedWhileTheRestSleeps) {
  const Pattern weights = Make(3 * kPageBytes, weights_);
  const Pattern kv = Make(2000, kv_);
  ASSERT_TRUE(Sleep(model_).ok());
  ASSERT_TRUE(allocator_->Wake(weights_).ok());
  EXPECT_TRUE(weights.Holds());
  EXPECT_TRUE(Make(500, weights_).Holds());
  EXPECT_FALSE(TryAllocate(500, kv_).ok());
  EXPECT_FALSE(TryAllocate(500, model_).ok());
  EXPECT_GT(AsleepPagesOf(kv_), 0u);
  // And sleeps again, alone; then all wake up.
  ASSERT_TRUE(Sleep(weights_).ok());
  EXPECT_FALSE(TryAllocate(500, weights_).ok());
  ASSERT_TRUE(allocator_->Wake(model_).ok());
  EXPECT_TRUE(weights.Holds());
  EXPECT_TRUE(kv.Holds());
  for (const OwnerId owner : {model_, weights_, kv_}) {
    EXPECT_TRUE(TryAllocate(500, owner).ok());
  }
}

TEST_F(AllocatorSleepTest, WhatIsFreedAsleepIsGoneAndNotHandedOutBefore) {
  const StreamId stream = MakeStream();
  const Pattern large = Make(4 * kPageBytes, kv_, stream);
  const Pattern kept = Make(900, kv_, stream);
  const Pattern slot = Make(900, kv_, stream);
  ASSERT_TRUE(allocator_->RecordStream(slot.address, MakeStream()).ok());
  ASSERT_TRUE(Sleep(kv_).ok());
  const uint64_t asleep = AsleepPagesOf(kv_);
  Free(large.address, stream);
  EXPECT_EQ(AsleepPagesOf(kv_), asleep - 4);
  EXPECT_EQ(allocator_->Free(large.address, stream).code(),
            absl::StatusCode::kFailedPrecondition);
  Free(slot.address, stream);
  EXPECT_EQ(allocator_->Free(slot.address).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Statistics().live_allocations, 1u);
  // Nobody finds anything to give.
  EXPECT_EQ(allocator_->Trim().pages_freed, PageCount(0));
  ASSERT_TRUE(allocator_->CheckInvariants().ok());
  ASSERT_TRUE(allocator_->Wake(kv_).ok());
  EXPECT_TRUE(kept.Holds());
  EXPECT_TRUE(Make(900, kv_, stream).Holds());
  EXPECT_TRUE(kept.Holds());
}

TEST_F(AllocatorSleepTest, ASleepThatFailsLeavesTheOwnerInUse) {
  const Pattern kv = Make(2000, kv_);
  const Pattern weights = Make(2 * kPageBytes, weights_);
  ASSERT_TRUE(Sleep(kv_).ok());
  faulty_->FailCall(DriverCall::kCopyToHost, 1, absl::StatusCode::kInternal);
  EXPECT_EQ(Sleep(model_).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(weights.Holds());
  EXPECT_TRUE(TryAllocate(700, weights_).ok());
  EXPECT_FALSE(TryAllocate(700, kv_).ok());
  faulty_->FailCall(DriverCall::kCopyToDevice, 1, absl::StatusCode::kInternal);
  EXPECT_EQ(allocator_->Wake(kv_).status().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(TryAllocate(700, kv_).ok());
  ASSERT_TRUE(allocator_->Wake(kv_).ok());
  EXPECT_TRUE(kv.Holds());
  EXPECT_TRUE(TryAllocate(700, kv_).ok());
}

TEST_F(AllocatorSleepTest, NeedsASectionAndMemoryThatMayLeaveItsPages) {
  const Pattern kv = Make(2000, kv_);
  auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok());
  ASSERT_TRUE(allocator_->Pin(kv.address).ok());
  EXPECT_EQ(allocator_->Sleep(*section, model_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(allocator_->Sleep(*section, other_).ok());
  ASSERT_TRUE(allocator_->Unpin(kv.address).ok());
  {
    auto pass = allocator_->BeginRelocation(*section);
    ASSERT_TRUE(pass.ok());
    EXPECT_EQ(allocator_->Sleep(*section, model_).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  section->End();
  EXPECT_EQ(allocator_->Sleep(*section, model_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(TryAllocate(700, kv_).ok());
}

TEST_F(AllocatorSleepTest, WhatSleepsIsNeitherMeshedNorRelocated) {
  AllocateOptions options;
  options.owner = kv_;
  options.movable = true;
  std::vector<Pattern> patterns;
  for (int i = 0; i < 24; ++i) {
    const auto address = allocator_->Allocate(Bytes(kPageBytes / 8), options);
    ASSERT_TRUE(address.ok());
    patterns.push_back({*address, kPageBytes / 8, ++generation_});
    patterns.back().Write();
  }
  std::vector<Pattern> kept;
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (i % 6 == 0) {
      kept.push_back(patterns[i]);
    } else {
      Free(patterns[i].address);
    }
  }
  ASSERT_TRUE(Sleep(kv_).ok());
  auto section = QuiescentSection::Begin(memory_.get(), {});
  ASSERT_TRUE(section.ok());
  const MeshOptions all = {.smallest_slot = Bytes(0)};
  EXPECT_EQ(allocator_->Mesh(*section, all)->moves, 0u);
  EXPECT_TRUE(allocator_->BeginRelocation(*section)->moves().empty());
  ASSERT_TRUE(allocator_->Wake(kv_).ok());
  for (const Pattern& pattern : kept) EXPECT_TRUE(pattern.Holds());
  // Meshed slabs share their pages, also after a sleep.
  ASSERT_TRUE(allocator_->Mesh(*section, all).ok());
  const uint64_t pages = PagesOf(kv_);
  EXPECT_EQ(allocator_->Sleep(*section, kv_)->pages.value(), pages);
  ASSERT_TRUE(allocator_->Wake(kv_).ok());
  EXPECT_EQ(PagesOf(kv_), pages);
  for (const Pattern& pattern : kept) EXPECT_TRUE(pattern.Holds());
  ASSERT_TRUE(allocator_->CheckInvariants().ok());
}

TEST_F(AllocatorSleepTest, OthersGoOnWhileAnOwnerSleepsAndWakesUp) {
  const Pattern weights = Make(4 * kPageBytes, weights_);
  std::atomic<bool> done{false};
  std::thread worker([&] {
    std::vector<DeviceAddress> mine;
    for (uint64_t i = 0; !done; ++i) {
      const auto address =
          TryAllocate(100 + i * 37 % 5000, i % 8 == 0 ? kv_ : other_);
      // Of those who sleep just now nobody gets anything.
      if (address.ok()) {
        mine.push_back(*address);
      } else if (address.status().code() !=
                 absl::StatusCode::kFailedPrecondition) {
        ADD_FAILURE() << address.status();
      }
      if (mine.size() < 20) continue;
      for (const DeviceAddress old : mine) Free(old);
      mine.clear();
    }
    for (const DeviceAddress old : mine) Free(old);
  });
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(Sleep(model_).ok());
    EXPECT_TRUE(allocator_->Wake(model_).ok());
    EXPECT_TRUE(weights.Holds());
  }
  done = true;
  worker.join();
}

TEST_F(AllocatorSleepTest, RandomProgramsLoseNothing) {
  std::mt19937_64 random(7);
  const StreamId stream = MakeStream();
  struct Allocation {
    Pattern pattern;
    OwnerId owner;
  };
  std::vector<Allocation> live;
  std::map<OwnerId, bool> asleep;
  const OwnerId owners[] = {model_, weights_, kv_, other_};
  const auto within = [&](OwnerId owner, OwnerId ancestor) {
    return owner == ancestor ||
           (ancestor == model_ && (owner == weights_ || owner == kv_));
  };
  for (int step = 0; step < 3000; ++step) {
    const OwnerId owner = owners[random() % 4];
    const StreamId on = random() % 2 == 0 ? stream : StreamId();
    switch (random() % 16) {
      case 0:
      case 1: {
        const bool sleeps = random() % 2 == 0;
        const absl::Status status =
            sleeps ? Sleep(owner, random() % 4 == 0 ? SleepTarget::kDisk
                                                    : SleepTarget::kHost)
                         .status()
                   : allocator_->Wake(owner).status();
        // Others may have taken its place meanwhile.
        if (!sleeps && absl::IsResourceExhausted(status)) break;
        ASSERT_TRUE(status.ok()) << status;
        for (const OwnerId other : owners) {
          if (within(other, owner)) asleep[other] = sleeps;
        }
        break;
      }
      case 2:
        memory_->Trim(PageCount(0));
        break;
      case 3:
      case 4:
      case 5:
      case 6:
      case 7:
      case 8:
        if (!live.empty()) {
          const size_t i = random() % live.size();
          if (!asleep[live[i].owner]) {
            ASSERT_TRUE(live[i].pattern.Holds());
          }
          Free(live[i].pattern.address, on);
          live[i] = live.back();
          live.pop_back();
        }
        break;
      default: {
        const uint64_t size =
            random() % 8 == 0 ? random() % (3 * kPageBytes) : random() % 9000;
        const auto address = TryAllocate(size, owner, on);
        if (asleep[owner]) {
          ASSERT_EQ(address.status().code(),
                    absl::StatusCode::kFailedPrecondition);
        } else if (address.ok()) {
          // Nothing is queued on the stream, so it may be written at once.
          live.push_back({{*address, size, ++generation_}, owner});
          live.back().pattern.Write();
        } else {
          ASSERT_TRUE(absl::IsResourceExhausted(address.status()));
        }
      }
    }
    if (step % 50 != 0) continue;
    ASSERT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
    for (const auto& [pattern, of] : live) {
      if (!asleep[of]) {
        ASSERT_TRUE(pattern.Holds());
      }
    }
  }
}

// ---- Through the memory, and other allocators -------------------------------

TEST_F(AllocatorSleepTest, WhoeverWakesItItServesItsOwnerAgain) {
  const Pattern live = Make(3 * kPageBytes, weights_);
  ASSERT_TRUE(Sleep(model_).ok());
  ASSERT_FALSE(TryAllocate(100, weights_).ok());
  ASSERT_TRUE(memory_->Wake(weights_).ok());
  EXPECT_TRUE(live.Holds());
  const auto again = TryAllocate(100, weights_);
  ASSERT_TRUE(again.ok()) << again.status();
  // The rest of the model sleeps on.
  EXPECT_TRUE(absl::IsFailedPrecondition(TryAllocate(100, kv_).status()));
  ASSERT_TRUE(memory_->Wake(model_).ok());
  Free(*again);
  Free(live.address);
  const auto other = TryAllocate(100, kv_);
  ASSERT_TRUE(other.ok()) << other.status();
  Free(*other);
}

TEST_F(AllocatorSleepTest, WhoeverPutsItToSleepItServesNobodyMeanwhile) {
  DeviceAllocatorOptions options;
  const auto second = DeviceAllocator::Create(memory_.get(), options);
  const Pattern live = Make(3 * kPageBytes, weights_);
  const Pattern small = Make(300, weights_);
  {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    ASSERT_TRUE(section.ok());
    const auto slept = memory_->Sleep(*section, model_);
    ASSERT_TRUE(slept.ok()) << slept.status();
    EXPECT_EQ(slept->pages, PageCount(4));
    // No slot of a page that is gone.
    EXPECT_TRUE(absl::IsFailedPrecondition(TryAllocate(300, kv_).status()));
    EXPECT_TRUE(
        absl::IsFailedPrecondition(TryAllocate(300, weights_).status()));
    EXPECT_EQ(allocator_->GetLargestPossible(weights_), Bytes(0));
    AllocateOptions of_weights;
    of_weights.owner = weights_;
    EXPECT_TRUE(absl::IsFailedPrecondition(
        second->Allocate(Bytes(300), of_weights).status()));
  }
  ASSERT_TRUE(second->Wake(model_).ok());
  EXPECT_TRUE(live.Holds());
  EXPECT_TRUE(small.Holds());
  Free(live.address);
  Free(small.address);
}

// fzyzcjy/torch_memory_saver#88: a registration with others outlived the pages
// that it was of.
TEST_F(AllocatorSleepTest,
       TorchMemorySaver88APinInAnyAllocatorKeepsTheOwnerAwake) {
  const auto second = DeviceAllocator::Create(memory_.get(), {});
  const Pattern live = Make(3 * kPageBytes, weights_);
  AllocateOptions options;
  options.owner = weights_;
  const auto pinned = second->Allocate(Bytes(100), options);
  ASSERT_TRUE(pinned.ok());
  ASSERT_EQ(second->Pin(*pinned), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(Sleep(weights_).status()));
  {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    ASSERT_TRUE(section.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(
        memory_->Sleep(*section, weights_).status()));
  }
  // Nobody was left asleep.
  const auto other = TryAllocate(100, weights_);
  ASSERT_TRUE(other.ok()) << other.status();
  Free(*other);
  EXPECT_EQ(second->Unpin(*pinned), absl::OkStatus());
  EXPECT_EQ(second->Free(*pinned), absl::OkStatus());
  EXPECT_TRUE(live.Holds());
  Free(live.address);
}

TEST_F(AllocatorSleepTest, AFailedSleepLeavesAsleepWhatSleptBefore) {
  const Pattern live = Make(3 * kPageBytes, weights_);
  const Pattern kept = Make(2 * kPageBytes, kv_);
  ASSERT_TRUE(Sleep(kv_).ok());
  faulty_->FailCall(DriverCall::kAllocatePinned, 1,
                    absl::StatusCode::kInternal);
  {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    ASSERT_TRUE(section.ok());
    EXPECT_FALSE(memory_->Sleep(*section, model_).ok());
  }
  const auto other = TryAllocate(100, weights_);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(TryAllocate(100, kv_).status()));
  ASSERT_TRUE(allocator_->Wake(kv_).ok());
  EXPECT_TRUE(kept.Holds());
  EXPECT_TRUE(live.Holds());
  Free(*other);
  Free(live.address);
  Free(kept.address);
}

// ---- Who hears of it --------------------------------------------------------

class SleepListener : public CompactionListener {
 public:
  void BeforeCompaction(CompactionLevel level) override {
    log.push_back(std::string("before ") + CompactionLevelName(level));
  }
  void AfterCompaction(CompactionLevel level,
                       const CompactionReport& report) override {
    log.push_back(std::string("after ") + CompactionLevelName(level) + " " +
                  std::to_string(report.bytes_moved.value()));
  }

  std::vector<std::string> log;
};

TEST_F(AllocatorSleepTest, ListenersHearOfSleepAndWake) {
  SleepListener listener;
  DeviceAllocatorOptions options;
  options.listener = &listener;
  MakeAllocator(options);
  const Pattern live = Make(3 * kPageBytes, weights_);
  ASSERT_TRUE(Sleep(weights_).ok());
  const std::string moved = " " + std::to_string(3 * kPageBytes);
  EXPECT_THAT(listener.log,
              ::testing::ElementsAre("before sleep", "after sleep" + moved));
  listener.log.clear();
  faulty_->FailCall(DriverCall::kMap, 1, absl::StatusCode::kInternal);
  EXPECT_FALSE(allocator_->Wake(weights_).ok());
  EXPECT_THAT(listener.log,
              ::testing::ElementsAre("before wake", "after wake 0"));
  listener.log.clear();
  ASSERT_TRUE(allocator_->Wake(weights_).ok());
  EXPECT_THAT(listener.log,
              ::testing::ElementsAre("before wake", "after wake" + moved));
  EXPECT_TRUE(live.Holds());
  Free(live.address);
  allocator_.reset();
}

// ---- What it would bring ----------------------------------------------------

TEST_F(AllocatorSleepTest, AVerdictSaysWhatASleepFrees) {
  const Pattern weights = Make(5 * kPageBytes, weights_);
  const Pattern kv = Make(1000, kv_);
  const Pattern other = Make(3 * kPageBytes, other_);
  const auto told = [&] {
    const auto verdict = OutOfMemoryVerdict::FromStatus(
        memory_->DescribeShortage(PageCount(kLimitPages), other_));
    EXPECT_TRUE(verdict.has_value());
    return verdict.value_or(OutOfMemoryVerdict()).sleep_frees.value() /
           kPageBytes;
  };
  EXPECT_EQ(told(), 6u);
  // One pin keeps its owner awake, and those above; not those beside.
  ASSERT_EQ(allocator_->Pin(kv.address), absl::OkStatus());
  EXPECT_EQ(told(), 5u);
  ASSERT_EQ(allocator_->Unpin(kv.address), absl::OkStatus());
  const auto pool = allocator_->CreateGraphPool(weights_);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(told(), 1u);
  ASSERT_EQ(allocator_->ReleaseGraphPool(*pool, {}), absl::OkStatus());
  EXPECT_EQ(told(), 6u);
  const auto report = Sleep(model_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->pages_freed, PageCount(6));
  // What sleeps has given all it had.
  EXPECT_EQ(told(), 0u);
  ASSERT_TRUE(allocator_->Wake(model_).ok());
  for (const Pattern& pattern : {weights, kv, other}) {
    EXPECT_TRUE(pattern.Holds());
    Free(pattern.address);
  }
}

}  // namespace
}  // namespace quire
