// Hooks: what they hear, when, and what they may do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "alloc/testing/device_memory_fixture.h"
#include "alloc/testing/fake_reclaimer.h"
#include "quire/alloc/limit_raiser.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Writes down what it hears: "+4@2 weights" for four pages mapped at slot 2 of
// the first range.
class Listener : public MemoryHooks {
 public:
  Listener(DeviceMemory* memory, uint64_t page_bytes)
      : memory_(memory), page_bytes_(page_bytes) {}

  void OnPressure(const PressureChange& change) override {
    heard_.push_back(absl::StrCat(
        change.owner ? memory_->owners()->Name(*change.owner) : "memory", " ",
        PressureLevelName(change.before), " to ", PressureLevelName(change.now),
        " at ", change.used.value() / page_bytes_, " of ",
        change.limit.value() / page_bytes_));
    if (on_pressure_) on_pressure_(change);
  }
  void OnPagesMapped(const MappingChange& change) override {
    Write('+', change);
    if (on_mapped_) on_mapped_(change);
  }
  void OnPagesUnmapped(const MappingChange& change) override {
    Write('-', change);
  }
  Bytes OnOutOfMemory(const OutOfMemoryVerdict& verdict) override {
    verdicts_.push_back(verdict);
    return on_out_of_memory_ ? on_out_of_memory_() : Bytes(0);
  }

  std::vector<std::string> Take() { return std::exchange(heard_, {}); }

  DeviceAddress base_;
  std::vector<OutOfMemoryVerdict> verdicts_;
  std::function<void(const PressureChange&)> on_pressure_;
  std::function<void(const MappingChange&)> on_mapped_;
  std::function<Bytes()> on_out_of_memory_;

 private:
  void Write(char sign, const MappingChange& change) {
    heard_.push_back(
        absl::StrCat(std::string(1, sign), change.pages.value(), "@",
                     (change.address.value() - base_.value()) / page_bytes_,
                     " ", memory_->owners()->Name(change.owner)));
  }

  DeviceMemory* const memory_;
  const uint64_t page_bytes_;
  std::vector<std::string> heard_;
};

class DeviceMemoryHooksTest : public DeviceMemoryFixture {
 protected:
  // Room for 100 pages, so that fractions are easy to read; and no pressure
  // unless a test asks for it.
  DeviceMemoryHooksTest() {
    HostDriverOptions driver = DriverOptions();
    driver.memory_per_device = Pages(120);
    MakeDriver(driver);
    DeviceMemoryOptions options = Options();
    options.limit = Pages(100);
    options.address_space = Pages(512);
    MakeMemory(options);
    range_ = Reserve(110);
    listener_ = std::make_unique<Listener>(memory_.get(), kPageBytes);
    listener_->base_ = range_->address();
    memory_->AddHooks(listener_.get());
  }
  ~DeviceMemoryHooksTest() override { memory_->RemoveHooks(listener_.get()); }

  static Bytes Pages(uint64_t pages) { return Bytes(pages * kPageBytes); }

  AddressRange* range_;
  std::unique_ptr<Listener> listener_;
};

// ---- Mapping ----------------------------------------------------------------

TEST_F(DeviceMemoryHooksTest, HearEveryRunThatIsMappedAndUnmapped) {
  ASSERT_EQ(Commit(range_, 2, 4), absl::OkStatus());
  EXPECT_THAT(listener_->Take(), ElementsAre("+4@2 weights"));
  ASSERT_EQ(Commit(range_, 0, 8), absl::OkStatus());
  EXPECT_THAT(listener_->Take(), ElementsAre("+2@0 weights", "+2@6 weights"));
  // What cools is mapped.
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  ASSERT_EQ(Decommit(range_, 0, 3, FenceOn(stream)), absl::OkStatus());
  ASSERT_EQ(Commit(range_, 0, 1), absl::OkStatus());
  EXPECT_THAT(listener_->Take(), IsEmpty());
  gate.Open();
  ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  memory_->Trim(PageCount(100));
  EXPECT_THAT(listener_->Take(), ElementsAre("-2@1 weights"));
  ASSERT_EQ(memory_->Remap(range_, PageCount(4),
                           memory_->PageAt(range_, PageCount(5))),
            absl::OkStatus());
  EXPECT_THAT(listener_->Take(), ElementsAre("-1@4 weights", "+1@4 weights"));
  memory_->ReleaseRange(range_, Fence());
  EXPECT_THAT(listener_->Take(), ElementsAre("-1@0 weights", "-5@3 weights"));
}

TEST_F(DeviceMemoryHooksTest, ACommitThatIsRolledBackIsHeardBothWays) {
  ASSERT_EQ(Commit(range_, 1, 1), absl::OkStatus());
  listener_->Take();
  faulty_->FailCall(DriverCall::kMap, 2, absl::StatusCode::kInternal);
  EXPECT_FALSE(Commit(range_, 0, 4).ok());
  EXPECT_THAT(listener_->Take(), ElementsAre("+1@0 weights", "-1@0 weights"));
}

TEST_F(DeviceMemoryHooksTest, MayCallBackAndHearOfThatLater) {
  AddressRange* const other = Reserve(10);
  const uint64_t at =
      (other->address().value() - range_->address().value()) / kPageBytes;
  int depth = 0;
  listener_->on_mapped_ = [&](const MappingChange& change) {
    EXPECT_EQ(++depth, 1);  // never one inside another
    if (change.address == range_->address()) {
      EXPECT_EQ(Commit(other, 0, 2), absl::OkStatus());
      EXPECT_EQ(Decommit(other, 1, 1), absl::OkStatus());
      EXPECT_EQ(memory_->GetStatistics().live, Pages(5));
    }
    --depth;
  };
  ASSERT_EQ(Commit(range_, 2, 1), absl::OkStatus());
  ASSERT_EQ(Commit(range_, 0, 4), absl::OkStatus());
  // Two runs, and what the first of them led to.
  EXPECT_THAT(listener_->Take(),
              ElementsAre("+1@2 weights", "+2@0 weights", "+1@3 weights",
                          absl::StrCat("+2@", at, " weights"),
                          absl::StrCat("-1@", at + 1, " weights")));
}

TEST_F(DeviceMemoryHooksTest, SeveralHearTheSameInOrderUntilTheyAreRemoved) {
  Listener second(memory_.get(), kPageBytes);
  second.base_ = range_->address();
  std::vector<int> order;
  listener_->on_mapped_ = [&](const MappingChange&) { order.push_back(1); };
  second.on_mapped_ = [&](const MappingChange&) { order.push_back(2); };
  memory_->AddHooks(&second);
  ASSERT_EQ(Commit(range_, 0, 1), absl::OkStatus());
  EXPECT_THAT(order, ElementsAre(1, 2));
  memory_->RemoveHooks(&second);
  ASSERT_EQ(Commit(range_, 1, 1), absl::OkStatus());
  EXPECT_THAT(order, ElementsAre(1, 2, 1));
  memory_->RemoveHooks(listener_.get());
  ASSERT_EQ(Commit(range_, 2, 1), absl::OkStatus());
  EXPECT_THAT(order, ElementsAre(1, 2, 1));
}

TEST_F(DeviceMemoryHooksTest, ADeferralHoldsThemBack) {
  {
    const HookDeferral outer(memory_.get());
    ASSERT_EQ(Commit(range_, 0, 1), absl::OkStatus());
    {
      const HookDeferral inner(memory_.get());
      ASSERT_EQ(Commit(range_, 1, 1), absl::OkStatus());
    }
    EXPECT_THAT(listener_->Take(), IsEmpty());
    // Of this thread alone.
    std::thread([&] {
      ASSERT_EQ(Commit(range_, 2, 1), absl::OkStatus());
    }).join();
    EXPECT_THAT(listener_->Take(), ElementsAre("+1@2 weights"));
    // A hook that would be asked for memory could need the caller's locks.
    EXPECT_EQ(Commit(range_, 0, 101).code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(listener_->verdicts_, IsEmpty());
  }
  EXPECT_THAT(listener_->Take(), ElementsAre("+1@0 weights", "+1@1 weights"));
}

TEST_F(DeviceMemoryHooksTest, RemovingWaitsForTheHookThatRuns) {
  std::atomic<bool> inside = false;
  std::atomic<bool> left = false;
  listener_->on_mapped_ = [&](const MappingChange&) {
    inside = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    left = true;
  };
  std::thread committer(
      [&] { EXPECT_EQ(Commit(range_, 0, 1), absl::OkStatus()); });
  while (!inside) std::this_thread::yield();
  memory_->RemoveHooks(listener_.get());
  EXPECT_TRUE(left);
  committer.join();
}

// ---- Pressure ---------------------------------------------------------------

TEST_F(DeviceMemoryHooksTest, HearOfPressureOnTheMemoryAtTwoLevels) {
  const auto pressure = [&] {
    std::vector<std::string> heard = listener_->Take();
    std::erase_if(heard, [](const std::string& line) {
      return line.find("memory") == std::string::npos;
    });
    return heard;
  };
  ASSERT_EQ(Commit(range_, 0, 84), absl::OkStatus());
  ASSERT_EQ(memory_->Prepare(PageCount(16)), absl::OkStatus());
  EXPECT_THAT(pressure(), IsEmpty());
  ASSERT_EQ(Commit(range_, 84, 1), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("memory none to high at 85 of 100"));
  // Swinging around the threshold says nothing more.
  ASSERT_EQ(Decommit(range_, 84, 1), absl::OkStatus());
  ASSERT_EQ(Commit(range_, 84, 3), absl::OkStatus());
  EXPECT_THAT(pressure(), IsEmpty());
  EXPECT_EQ(memory_->pressure(), PressureLevel::kHigh);
  ASSERT_EQ(Commit(range_, 0, 99), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("memory high to critical at 99 of 100"));
  // What cools is not to be had yet.
  const StreamId stream = MakeStream();
  Gate gate(driver_.get(), stream);
  ASSERT_EQ(Decommit(range_, 0, 50, FenceOn(stream)), absl::OkStatus());
  EXPECT_THAT(pressure(), IsEmpty());
  gate.Open();
  ASSERT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  memory_->Trim(PageCount(100));
  EXPECT_THAT(pressure(), ElementsAre("memory critical to none at 49 of 100"));
  // A lower limit is pressure as well.
  ASSERT_EQ(memory_->SetLimit(Pages(50)), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("memory none to critical at 49 of 50"));
}

TEST_F(DeviceMemoryHooksTest, HearOfPressureBeyondTheSoftLimit) {
  std::vector<std::string> heard;
  const auto pressure = [&] {
    heard = listener_->Take();
    std::erase_if(heard, [](const std::string& line) {
      return line.find("memory") == std::string::npos;
    });
    return heard;
  };
  ASSERT_EQ(memory_->SetSoftLimit(Pages(20)), absl::OkStatus());
  EXPECT_EQ(memory_->GetStatistics().soft_limit, Pages(20));
  ASSERT_EQ(Commit(range_, 0, 20), absl::OkStatus());
  EXPECT_THAT(pressure(), IsEmpty());
  ASSERT_EQ(Commit(range_, 20, 1), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("memory none to high at 21 of 20"));
  // Nothing is refused, and the other level is where it was.
  ASSERT_EQ(Commit(range_, 21, 73), absl::OkStatus());
  EXPECT_THAT(pressure(), IsEmpty());
  ASSERT_EQ(Commit(range_, 94, 1), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("memory high to critical at 95 of 100"));
  ASSERT_EQ(Decommit(range_, 30, 65), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("memory critical to high at 30 of 20"));
  // It may change while it is exceeded, outlives a change of the limit, and
  // may be taken away.
  ASSERT_EQ(memory_->SetSoftLimit(Pages(60)), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("memory high to none at 30 of 60"));
  ASSERT_EQ(memory_->SetSoftLimit(Pages(25)), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("memory none to high at 30 of 25"));
  ASSERT_EQ(memory_->SetLimit(Pages(90)), absl::OkStatus());
  EXPECT_THAT(pressure(), IsEmpty());
  ASSERT_EQ(memory_->SetSoftLimit(Bytes(0)), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("memory high to none at 30 of 90"));
  EXPECT_EQ(memory_->GetStatistics().soft_limit, Bytes(0));
  const absl::Status refused = memory_->SetSoftLimit(Bytes(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("soft limit"), absl::string_view::npos);
}

TEST_F(DeviceMemoryHooksTest, HearOfPressureOnOwners) {
  const OwnerId model = owners_.Register("model");
  const OwnerId kv = owners_.Register("kv", model);
  AddressRange* const range = *memory_->ReserveRange(PageCount(40), kv);
  ASSERT_EQ(
      memory_->SetOwnerLimits(model, {.soft = Pages(8), .hard = Pages(20)}),
      absl::OkStatus());
  std::vector<std::string> heard;
  const auto pressure = [&] {
    heard = listener_->Take();
    std::erase_if(heard, [](const std::string& line) {
      return line.find(" to ") == std::string::npos;
    });
    return heard;
  };
  ASSERT_EQ(Commit(range, 0, 8), absl::OkStatus());
  EXPECT_THAT(pressure(), IsEmpty());
  ASSERT_EQ(Commit(range, 8, 1), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("model none to high at 9 of 8"));
  ASSERT_EQ(Commit(range, 0, 20), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("model high to critical at 20 of 20"));
  EXPECT_EQ(memory_->GetOwnerStatistics(model).pressure,
            PressureLevel::kCritical);
  ASSERT_EQ(memory_->SetOwnerLimits(model, {}), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("model critical to none at 20 of 0"));
  ASSERT_EQ(memory_->SetOwnerLimits(kv, {.hard = Pages(10)}), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("model/kv none to critical at 20 of 10"));
  // A range that changes hands takes its use along.
  ASSERT_EQ(memory_->SetOwner(range, kOwner), absl::OkStatus());
  EXPECT_THAT(pressure(), ElementsAre("model/kv critical to none at 0 of 10"));
}

TEST_F(DeviceMemoryHooksTest, AHookMayFreeUnderPressure) {
  listener_->on_pressure_ = [&](const PressureChange& change) {
    if (change.now != PressureLevel::kNone) {
      EXPECT_EQ(Decommit(range_, 0, 40), absl::OkStatus());
    }
  };
  ASSERT_EQ(Commit(range_, 0, 90), absl::OkStatus());
  EXPECT_THAT(listener_->Take(),
              ElementsAre("+90@0 weights", "memory none to high at 90 of 100",
                          "-40@0 weights", "memory high to none at 50 of 100"));
}

// ---- Out of memory ----------------------------------------------------------

TEST_F(DeviceMemoryHooksTest, AreAskedAfterReclaimersAndBeforeTheError) {
  AddressRange* const cached = Reserve(10);
  ASSERT_EQ(Commit(cached, 0, 10), absl::OkStatus());
  ASSERT_EQ(Commit(range_, 0, 90), absl::OkStatus());
  FakeReclaimer reclaimer(memory_.get(), cached);
  memory_->AddReclaimer(&reclaimer);
  uint64_t next = 50;
  listener_->on_out_of_memory_ = [&] {
    // Everything that can be had without the hook is gone.
    EXPECT_EQ(reclaimer.Reclaimable(), PageCount(0));
    EXPECT_EQ(Decommit(range_, next, 3), absl::OkStatus());
    next += 3;
    return Pages(3);
  };
  AddressRange* const range = Reserve(15);
  // 10 come from the cache, 5 from two calls of the hook.
  EXPECT_EQ(Commit(range, 0, 15), absl::OkStatus());
  EXPECT_EQ(next, 56u);
  ASSERT_EQ(listener_->verdicts_.size(), 2u);
  EXPECT_EQ(listener_->verdicts_[0].requested, Pages(15));
  EXPECT_EQ(listener_->verdicts_[0].kind, ShortageKind::kLimit);
  memory_->RemoveReclaimer(&reclaimer);
}

TEST_F(DeviceMemoryHooksTest, OnesThatGiveNothingEndInTheError) {
  ASSERT_EQ(Commit(range_, 0, 100), absl::OkStatus());
  EXPECT_FALSE(Commit(range_, 100, 1).ok());
  EXPECT_EQ(listener_->verdicts_.size(), 1u);
  // So do promises.
  listener_->on_out_of_memory_ = [] { return Bytes(UINT64_MAX); };
  EXPECT_FALSE(Commit(range_, 100, 1).ok());
  EXPECT_EQ(listener_->verdicts_.size(), 1u + kOutOfMemoryRounds);
  // Who can wait is not in need, and what no limit allows is no shortage.
  listener_->verdicts_.clear();
  EXPECT_FALSE(memory_->TryCommit(range_, PageCount(100), PageCount(1)).ok());
  EXPECT_FALSE(Commit(Reserve(101), 0, 101).ok());
  ASSERT_EQ(memory_->SetOwnerLimits(kOwner, {.hard = Pages(4)}),
            absl::OkStatus());
  EXPECT_FALSE(Commit(Reserve(5), 0, 5).ok());
  EXPECT_THAT(listener_->verdicts_, IsEmpty());
}

// More than the limit: only who says that it may be raised so far is asked, and
// the others when it was.
TEST_F(DeviceMemoryHooksTest, BeyondTheLimitWhoMayRaiseItIsAsked) {
  class Raiser : public Listener, public LimitRaiser {
   public:
    using Listener::Listener;
    Bytes HighestLimit() const override { return highest; }
    Bytes highest;
  };
  Raiser raiser(memory_.get(), Pages(1).value());
  raiser.highest = Pages(80);
  ASSERT_EQ(memory_->SetLimit(Pages(50)), absl::OkStatus());
  memory_->AddHooks(&raiser);
  AddressRange* const range = Reserve(80);
  EXPECT_FALSE(Commit(Reserve(81), 0, 81).ok());
  EXPECT_THAT(raiser.verdicts_, IsEmpty());
  raiser.on_out_of_memory_ = [&] {
    EXPECT_EQ(memory_->SetLimit(Pages(70)), absl::OkStatus());
    raiser.on_out_of_memory_ = [&] {
      EXPECT_EQ(memory_->SetLimit(Pages(80)), absl::OkStatus());
      return Pages(10);
    };
    return Pages(20);
  };
  EXPECT_EQ(Commit(range, 0, 80), absl::OkStatus());
  EXPECT_EQ(raiser.verdicts_.size(), 2u);
  EXPECT_THAT(listener_->verdicts_, IsEmpty());
  // Within the limit all are.
  raiser.on_out_of_memory_ = nullptr;
  EXPECT_FALSE(Commit(range_, 0, 1).ok());
  EXPECT_EQ(listener_->verdicts_.size(), 1u);
  // The limit of an owner is not the memory's.
  ASSERT_EQ(memory_->SetOwnerLimits(kOwner, {.hard = Pages(82)}),
            absl::OkStatus());
  EXPECT_FALSE(Commit(Reserve(83), 0, 83).ok());
  EXPECT_EQ(raiser.verdicts_.size(), 3u);
  memory_->RemoveHooks(&raiser);
}

TEST_F(DeviceMemoryHooksTest, AHookThatIsShortItselfIsNotAskedAgain) {
  ASSERT_EQ(Commit(range_, 0, 100), absl::OkStatus());
  int calls = 0;
  listener_->on_out_of_memory_ = [&] {
    ++calls;
    EXPECT_EQ(Commit(range_, 100, 1).code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(Decommit(range_, 0, 2), absl::OkStatus());
    return Pages(2);
  };
  EXPECT_EQ(Commit(range_, 100, 2), absl::OkStatus());
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(listener_->Take(), ::testing::Contains("-2@0 weights"));
}

TEST_F(DeviceMemoryHooksTest, AHookMayRaiseALimitOrReleaseAddresses) {
  ASSERT_EQ(memory_->SetOwnerLimits(kOwner, {.hard = Pages(10)}),
            absl::OkStatus());
  listener_->on_out_of_memory_ = [&] {
    EXPECT_EQ(memory_->SetOwnerLimits(kOwner, {}), absl::OkStatus());
    return Pages(1);
  };
  ASSERT_EQ(Commit(range_, 0, 10), absl::OkStatus());
  EXPECT_EQ(Commit(range_, 10, 5), absl::OkStatus());
  AddressRange* const idle = Reserve(402);
  listener_->on_out_of_memory_ = [&] {
    memory_->ReleaseRange(idle, Fence());
    return Pages(402);
  };
  EXPECT_TRUE(memory_->ReserveRange(PageCount(10), kOwner).ok());
  EXPECT_EQ(listener_->verdicts_.back().kind, ShortageKind::kAddressSpace);
}

TEST_F(DeviceMemoryHooksTest, LayersAboveAskWhenTheirLocksAreReleased) {
  ASSERT_EQ(Commit(range_, 0, 100), absl::OkStatus());
  listener_->Take();
  Mutex lock_above;
  uint64_t next = 0;
  listener_->on_out_of_memory_ = [&] {
    MutexLock lock(&lock_above);
    EXPECT_EQ(Decommit(range_, next++, 1), absl::OkStatus());
    return Pages(1);
  };
  listener_->on_mapped_ = [&](const MappingChange&) {
    MutexLock lock(&lock_above);
  };
  int runs = 0;
  EXPECT_EQ(WithOutOfMemoryHooks(memory_.get(),
                                 [&] {
                                   MutexLock lock(&lock_above);
                                   ++runs;
                                   return Commit(range_, 100, 3);
                                 }),
            absl::OkStatus());
  EXPECT_EQ(runs, 4);
  // Other errors are none of their business.
  EXPECT_EQ(WithOutOfMemoryHooks(memory_.get(),
                                 [&]() -> absl::StatusOr<int> {
                                   ++runs;
                                   return absl::InternalError("x");
                                 })
                .status(),
            absl::InternalError("x"));
  EXPECT_EQ(runs, 5);
}

// For threads that map and unmap a slot in turn: each must hear the same.
class Alternation : public MemoryHooks {
 public:
  void OnPagesMapped(const MappingChange&) override {
    EXPECT_FALSE(std::exchange(is_mapped_, true));
  }
  void OnPagesUnmapped(const MappingChange&) override {
    EXPECT_TRUE(std::exchange(is_mapped_, false));
  }

 private:
  static thread_local bool is_mapped_;
};
thread_local bool Alternation::is_mapped_ = false;

TEST_F(DeviceMemoryHooksTest, EachThreadHearsInItsOwnOrder) {
  memory_->RemoveHooks(listener_.get());
  Alternation alternation;
  memory_->AddHooks(&alternation);
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (int step = 0; step < 300; ++step) {
        EXPECT_EQ(Commit(range_, 2 * id, 1), absl::OkStatus());
        EXPECT_EQ(Decommit(range_, 2 * id, 1), absl::OkStatus());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  memory_->RemoveHooks(&alternation);
}

}  // namespace
}  // namespace quire
