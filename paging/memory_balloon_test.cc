// Device memories on one ledger. Each has a device of its own that could hold
// the whole budget: that they fit on one is the ledger's doing alone.

#include "quire/paging/memory_balloon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/testing/fault_sweep.h"
#include "alloc/testing/run_in_child.h"
#include "paging/kv_cache_testing.h"
#include "paging/memory_ledger_testing.h"
#include "quire/paging/kv_cache.h"
#include "quire/paging/memory_ledger.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBudgetPages = 100;
constexpr Bytes Pages(uint64_t count) { return Bytes(count * 4096); }

MemoryBalloonOptions Patient(std::chrono::milliseconds patience) {
  MemoryBalloonOptions options;
  options.name = "model";
  options.claim_ahead = Pages(0);
  options.patience = patience;
  options.want_lifetime = std::chrono::milliseconds(0);
  return options;
}

// A process with a model: its device, ledger handle, balloon and KV cache.
class Member {
 public:
  Member(const MemoryLedgerOptions& ledger,
         MemoryBalloonOptions options = Patient({}))
      : device_(kBudgetPages) {
    auto opened = MemoryLedger::Open(ledger);
    EXPECT_TRUE(opened.ok()) << opened.status();
    ledger_ = *std::move(opened);
    auto balloon =
        MemoryBalloon::Create(device_.memory(), ledger_.get(), options);
    EXPECT_TRUE(balloon.ok()) << balloon.status();
    balloon_ = *std::move(balloon);
    KvCacheOptions cache = CacheOptions(320);  // 50 pages at the longest
    cache.owner = device_.memory()->owners()->Register("kv");
    cache_ = MakeCache(&device_, 1, cache);
  }

  MemoryBalloon* balloon() { return balloon_.get(); }
  // Nothing is wanted for longer than EnsureRoom takes, so a thread may give
  // the room back before it is used: then it is asked for again.
  SequenceId AdmitWithRoom(uint64_t tokens, uint64_t pages) {
    const auto give_up =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    absl::StatusOr<SequenceId> sequence = absl::UnknownError("not tried");
    while (!sequence.ok() && std::chrono::steady_clock::now() < give_up) {
      EXPECT_TRUE(balloon_->EnsureRoom(Pages(pages)).ok());
      sequence = cache_->Admit(tokens);
    }
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    return sequence.value_or(SequenceId());
  }
  MemoryLedger* ledger() { return ledger_.get(); }
  KvCache* cache() { return cache_.get(); }
  DeviceMemory* memory() { return device_.memory(); }
  uint64_t in_use() { return memory()->GetStatistics().in_use.value() / 4096; }
  uint64_t limit() { return memory()->GetStatistics().limit.value() / 4096; }
  bool Sync() {
    const absl::Status status = balloon_->Sync();
    EXPECT_TRUE(status.ok()) << status;
    return status.ok();
  }

 private:
  TestDevice device_;
  std::unique_ptr<MemoryLedger> ledger_;
  std::unique_ptr<MemoryBalloon> balloon_;
  std::unique_ptr<KvCache> cache_;
};

class MemoryBalloonTest : public LedgerTest {
 protected:
  MemoryLedgerOptions Budget() const { return Options(Pages(kBudgetPages)); }
};

TEST_F(MemoryBalloonTest, TheLimitIsWhatIsClaimed) {
  Member member(Budget());
  EXPECT_EQ(member.limit(), 1u);
  ASSERT_TRUE(member.balloon()->EnsureRoom(Pages(15)).ok());
  EXPECT_EQ(member.limit(), 15u);
  const SequenceId sequence = Admit(member.cache(), 96);  // 15 pages
  EXPECT_EQ(member.ledger()->Read()->claimed, Pages(15));
  // A step asks for what it lacks.
  EXPECT_EQ(Step(member.cache(), sequence, 120), absl::OkStatus());
  EXPECT_EQ(member.in_use(), 20u);
  const LedgerSnapshot snapshot = *member.ledger()->Read();
  EXPECT_GE(snapshot.claimed, Pages(20));
  EXPECT_LE(snapshot.claimed, Pages(25));
  ASSERT_TRUE(member.Sync());
  EXPECT_EQ(member.ledger()->Read()->entries[0].used, Pages(20));
}

// What is larger than all that is claimed, in one request.
TEST_F(MemoryBalloonTest, ARequestBeyondTheClaimGrowsFirst) {
  // Nobody waits for what the ledger never grants.
  Member member(Budget(), Patient(std::chrono::hours(1)));
  ASSERT_TRUE(member.balloon()->EnsureRoom(Pages(5)).ok());
  const SequenceId sequence = Admit(member.cache(), 32);  // 5 pages
  EXPECT_EQ(member.limit(), 5u);
  EXPECT_EQ(Step(member.cache(), sequence, 320), absl::OkStatus());
  EXPECT_EQ(member.in_use(), 50u);
  AddressRange* const range = *member.memory()->ReserveRange(
      PageCount(kBudgetPages + 1), kUnnamedOwner);
  EXPECT_TRUE(absl::IsResourceExhausted(member.memory()->Commit(
      range, PageCount(0), PageCount(kBudgetPages + 1))));
  EXPECT_EQ(member.memory()->Commit(range, PageCount(0), PageCount(50)),
            absl::OkStatus());
  EXPECT_EQ(member.ledger()->Read()->claimed, Pages(kBudgetPages));
  member.memory()->ReleaseRange(range, Fence());
}

// A member that grows, and comes down for another one, while each driver call
// of that fails once: it never has more than it has claimed, and what it does
// not need is the other's all the same.
TEST_F(MemoryBalloonTest, WhatTheDriverRefusesChangesNoPromise) {
  struct World {
    World(FaultyDriver* driver, const MemoryLedgerOptions& options) {
      DeviceMemoryOptions device;
      device.page_size = Pages(1);
      device.address_space = MiB(64);
      memory = *DeviceMemory::Create(driver, &owners, device);
      ledger = *MemoryLedger::Open(options);
      other = RegisterIn(ledger.get(), {.name = "other", .min = Pages(1)});
      balloon = *MemoryBalloon::Create(memory.get(), ledger.get(), Patient({}));
      cache = *KvCache::Create(memory.get(), TestLayout(1), CacheOptions(320));
      EXPECT_TRUE(balloon->EnsureRoom(Pages(60)).ok());
      running = Admit(cache.get(), 64);               // 10 pages
      Release(cache.get(), Admit(cache.get(), 200));  // 35 pages, parked
    }
    void Check() const {
      const auto now = ledger->Read();
      for (const LedgerEntry& entry : now->entries) {
        if (entry.name == "model") {
          EXPECT_GE(entry.claim, memory->GetStatistics().in_use);
        }
      }
      EXPECT_TRUE(memory->CheckInvariants().ok()) << memory->CheckInvariants();
      EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
    }
    OwnerRegistry owners;
    std::unique_ptr<DeviceMemory> memory;
    std::unique_ptr<MemoryLedger> ledger;
    std::unique_ptr<MemoryBalloon> balloon;
    std::unique_ptr<KvCache> cache;
    LedgerEntryId other;
    SequenceId running;
  };
  struct Operation {
    const char* name;
    std::function<absl::Status(World*)> run;
  };
  const std::vector<Operation> operations = {
      {"grows in a step",
       [](World* world) {
         const SequenceStep step = {world->running, 320};
         return world->cache->Step(std::span(&step, 1));
       }},
      {"makes room",
       [](World* world) { return world->balloon->EnsureRoom(Pages(80)); }},
      {"comes down",
       [](World* world) {
         ClaimIn(world->ledger.get(), world->other, Bytes(0), Pages(85));
         return world->balloon->Sync();
       }},
  };
  HostDriverOptions options;
  options.memory_per_device = Pages(kBudgetPages);
  options.granularity = Pages(1);
  const auto host = *TestDriver::Create(options);
  FaultyDriver driver(host.get());
  for (const Operation& operation : operations) {
    SCOPED_TRACE(operation.name);
    std::unique_ptr<World> world;
    FailEachDriverCall(
        &driver, absl::StatusCode::kUnknown,
        [&] {
          world.reset();
          world = std::make_unique<World>(&driver, Budget());
        },
        [&] { return operation.run(world.get()); },
        [&](const absl::Status&, bool) {
          world->Check();
          ClaimIn(world->ledger.get(), world->other, Bytes(0), Pages(40));
          EXPECT_TRUE(world->balloon->Sync().ok());
          EXPECT_EQ(
              ClaimIn(world->ledger.get(), world->other, Bytes(0), Pages(40)),
              Pages(40));
          world->Check();
        });
  }
  for (const std::string& leak : host->Leaks()) ADD_FAILURE() << leak;
}

TEST_F(MemoryBalloonTest, ClaimsAhead) {
  MemoryBalloonOptions options = Patient({});
  options.claim_ahead = Pages(30);
  options.max = Pages(60);
  Member member(Budget(), options);
  EXPECT_EQ(member.limit(), 30u);
  // So that an admission, which asks no hook, finds room.
  Admit(member.cache(), 192);  // 30 pages
  ASSERT_TRUE(member.Sync());
  EXPECT_EQ(member.limit(), 60u);
  const absl::Status refused = member.balloon()->EnsureRoom(Pages(31));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("240.00 KiB"));
}

TEST_F(MemoryBalloonTest, ParkedPagesOfOneServeTheOther) {
  Member idle(Budget());
  Member busy(Budget());
  ASSERT_TRUE(idle.balloon()->EnsureRoom(Pages(99)).ok());
  const SequenceId kept = Admit(idle.cache(), 32);     // 5 pages
  const SequenceId first = Admit(idle.cache(), 320);   // 50 pages
  const SequenceId second = Admit(idle.cache(), 256);  // 40 pages
  Release(idle.cache(), first);
  Release(idle.cache(), second);
  EXPECT_EQ(idle.in_use(), 95u);
  // It has all of it and knows of nobody who wants it.
  EXPECT_FALSE(busy.balloon()->EnsureRoom(Pages(50)).ok());
  ASSERT_TRUE(idle.Sync());
  EXPECT_LE(idle.in_use(), 50u);
  EXPECT_GE(idle.in_use(), 45u);  // no more than was asked for
  ASSERT_TRUE(busy.balloon()->EnsureRoom(Pages(50)).ok());
  Admit(busy.cache(), 320);
  EXPECT_EQ(busy.in_use(), 50u);
  // The rest of what is parked goes as well; what is in use stays.
  EXPECT_FALSE(busy.balloon()->EnsureRoom(Pages(45)).ok());
  ASSERT_TRUE(idle.Sync());
  EXPECT_EQ(idle.in_use(), 5u);
  ASSERT_TRUE(busy.balloon()->EnsureRoom(Pages(45)).ok());
  EXPECT_EQ(*idle.cache()->Length(kept), 32u);
}

TEST_F(MemoryBalloonTest, WhatIsInUseComesBackAsItIsGivenUp) {
  Member holder(Budget());
  Member late(Budget());
  ASSERT_TRUE(holder.balloon()->EnsureRoom(Pages(90)).ok());
  const SequenceId first = Admit(holder.cache(), 320);
  const SequenceId second = Admit(holder.cache(), 256);
  // Both want half of it at least: the holder's share is 50.
  EXPECT_FALSE(late.balloon()->EnsureRoom(Pages(60)).ok());
  ASSERT_TRUE(holder.Sync());
  EXPECT_EQ(holder.in_use(), 90u);
  EXPECT_EQ(holder.limit(), 50u);
  EXPECT_EQ(holder.cache()->Admit(1).status().code(),
            absl::StatusCode::kResourceExhausted);
  // Its pages go back when they are given up, although the region is parked.
  Release(holder.cache(), second);
  ASSERT_TRUE(holder.Sync());
  EXPECT_EQ(holder.in_use(), 50u);
  EXPECT_FALSE(late.balloon()->EnsureRoom(Pages(60)).ok());
  EXPECT_EQ(late.limit(), 50u);
  Release(holder.cache(), first);
  ASSERT_TRUE(holder.Sync());
  EXPECT_TRUE(late.balloon()->EnsureRoom(Pages(60)).ok());
}

TEST_F(MemoryBalloonTest, AThreadGivesBackWhileOthersWait) {
  MemoryBalloonOptions options = Patient({});
  options.sync_interval = std::chrono::milliseconds(1);
  Member idle(Budget(), options);
  Member busy(Budget(), Patient(std::chrono::seconds(60)));
  for (int round = 0; round < 3; ++round) {
    Release(idle.cache(), idle.AdmitWithRoom(320, 95));
    ASSERT_TRUE(busy.balloon()->EnsureRoom(Pages(45)).ok());
    const SequenceId sequence = Admit(busy.cache(), 256);
    const SequenceId other = Admit(busy.cache(), 32);
    // A commit that is short waits in the hook.
    EXPECT_EQ(Step(busy.cache(), sequence, 320), absl::OkStatus());
    EXPECT_EQ(Step(busy.cache(), other, 280), absl::OkStatus());
    EXPECT_EQ(busy.in_use(), 95u);
    Release(busy.cache(), sequence);
    Release(busy.cache(), other);
    // Nobody calls for it but the test: it has no thread.
    busy.memory()->Trim();
    ASSERT_TRUE(busy.Sync());
  }
  EXPECT_TRUE(idle.balloon()->health().ok());
}

TEST_F(MemoryBalloonTest, LimitsFromOutsideAreApplied) {
  MemoryBalloonOptions minimum = Patient({});
  minimum.min = Pages(2);
  Member member(Budget(), minimum);
  const OwnerId kv = member.memory()->owners()->Register("kv");
  ASSERT_TRUE(member.balloon()->AddOwner(kv, Pages(2), Pages(80)).ok());
  ASSERT_TRUE(member.balloon()->EnsureRoom(Pages(90)).ok());
  EXPECT_EQ(member.memory()->GetOwnerStatistics(kv).limits.hard, Pages(80));
  const SequenceId first = Admit(member.cache(), 256);
  Release(member.cache(), first);  // 40 pages parked
  Admit(member.cache(), 32);       // 5 of them in use
  ASSERT_TRUE(member.Sync());
  const LedgerSnapshot snapshot = *member.ledger()->Read();
  ASSERT_EQ(snapshot.entries.size(), 2u);
  EXPECT_EQ(snapshot.entries[1].name, "kv");
  EXPECT_EQ(snapshot.entries[1].parent, snapshot.entries[0].id);
  EXPECT_EQ(snapshot.entries[1].claim, Pages(40));
  // A tool limits the owner, and the process.
  MemoryLedgerOptions options = Budget();
  options.create = false;
  const auto tool = *MemoryLedger::Open(options);
  ASSERT_TRUE(tool->SetLimit(snapshot.entries[1].id, Pages(20)).ok());
  ASSERT_TRUE(member.Sync());
  EXPECT_EQ(member.memory()->GetOwnerStatistics(kv).limits.hard, Pages(20));
  EXPECT_EQ(member.memory()->GetOwnerStatistics(kv).live, Pages(20));
  ASSERT_TRUE(tool->SetLimit(snapshot.entries[0].id, Pages(10)).ok());
  ASSERT_TRUE(member.Sync());
  EXPECT_EQ(member.limit(), 10u);
  EXPECT_EQ(member.in_use(), 10u);
  ASSERT_TRUE(tool->SetLimit(snapshot.entries[0].id, Bytes(0)).ok());
  ASSERT_TRUE(tool->SetLimit(snapshot.entries[1].id, Bytes(0)).ok());
  ASSERT_TRUE(member.balloon()->EnsureRoom(Pages(50)).ok());
  ASSERT_TRUE(member.Sync());
  EXPECT_EQ(member.memory()->GetOwnerStatistics(kv).limits.hard, Pages(80));
}

TEST_F(MemoryBalloonTest, ItsEndGivesTheLimitBack) {
  TestDevice device(40);
  const auto ledger = Open(Pages(kBudgetPages));
  {
    const auto balloon =
        MemoryBalloon::Create(device.memory(), ledger.get(), Patient({}));
    ASSERT_TRUE(balloon.ok()) << balloon.status();
    EXPECT_EQ(device.memory()->GetStatistics().limit, Pages(1));
  }
  EXPECT_EQ(device.memory()->GetStatistics().limit, Pages(40));
  EXPECT_TRUE(ledger->Read()->entries.empty());
}

TEST_F(MemoryBalloonTest, NoRoomToBeginWith) {
  Member first(Budget());
  ASSERT_TRUE(first.balloon()->EnsureRoom(Pages(100)).ok());
  TestDevice device(40);
  const auto ledger = Open(Pages(kBudgetPages));
  MemoryBalloonOptions options = Patient({});
  options.min = Pages(101);
  EXPECT_EQ(MemoryBalloon::Create(device.memory(), ledger.get(), options)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  options.min = Pages(10);
  const auto refused =
      MemoryBalloon::Create(device.memory(), ledger.get(), options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ledger->Read()->entries.size(), 1u);
  EXPECT_EQ(device.memory()->GetStatistics().limit, Pages(40));
}

TEST_F(MemoryBalloonTest, AForkedChildHasNoPart) {
  MemoryBalloonOptions options = Patient({});
  options.sync_interval = std::chrono::milliseconds(1);
  auto ledger = Open(Pages(kBudgetPages));
  TestDevice device(40);
  auto balloon = *MemoryBalloon::Create(device.memory(), ledger.get(), options);
  EXPECT_EQ(RunInChild([&] {
              if (!absl::IsFailedPrecondition(balloon->Sync())) return 1;
              if (!absl::IsFailedPrecondition(balloon->EnsureRoom(Pages(1))))
                return 2;
              balloon.reset();
              return 0;
            }),
            0);
  EXPECT_TRUE(balloon->Sync().ok());
  EXPECT_TRUE(balloon->health().ok());
}

// Whatever several members do, in any order: together they fit on the device,
// and whoever has a minimum gets it.
TEST_F(MemoryBalloonTest, RandomLivesFitOnOneDevice) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    constexpr size_t kMembers = 3;
    std::vector<std::unique_ptr<Member>> members;
    std::vector<std::vector<SequenceId>> sequences(kMembers);
    for (size_t i = 0; i < kMembers; ++i) {
      MemoryBalloonOptions options = Patient({});
      options.min = Pages(10 * i);
      options.claim_ahead = Pages(5);
      members.push_back(std::make_unique<Member>(Budget(), options));
    }
    for (int operation = 0; operation < 150; ++operation) {
      const size_t chosen = random() % kMembers;
      Member& member = *members[chosen];
      std::vector<SequenceId>& mine = sequences[chosen];
      switch (random() % 6) {
        case 0:
        case 1: {
          (void)member.balloon()->EnsureRoom(Pages(random() % 40));
          const auto admitted = member.cache()->Admit(1 + random() % 250);
          if (admitted.ok()) mine.push_back(*admitted);
          break;
        }
        case 2:
          if (!mine.empty())
            (void)Step(member.cache(), mine[random() % mine.size()],
                       1 + random() % 320);
          break;
        case 3:
          if (!mine.empty()) {
            std::swap(mine[random() % mine.size()], mine.back());
            Release(member.cache(), mine.back());
            mine.pop_back();
          }
          break;
        default:
          ASSERT_TRUE(member.Sync());
      }
      uint64_t in_use = 0;
      for (const auto& each : members) in_use += each->in_use();
      ASSERT_LE(in_use, kBudgetPages);
    }
    for (size_t i = 0; i < kMembers; ++i) {
      for (const SequenceId sequence : sequences[i])
        Release(members[i]->cache(), sequence);
    }
    // The last one now gets all but what is kept for the others: in a few
    // rounds, since who is asked first may have less than it seemed.
    const auto& last = members.back();
    absl::Status room;
    for (int round = 0; round < 4; ++round) {
      room = last->balloon()->EnsureRoom(Pages(89));
      if (room.ok()) break;
      for (const auto& each : members) {
        if (each != last) {
          ASSERT_TRUE(each->Sync());
        }
      }
    }
    EXPECT_TRUE(room.ok()) << room;
  }
}

// One process is killed in the middle of its steps; the other gets the memory.
TEST_F(MemoryBalloonTest, TheMemoryOfAKilledProcessIsTheOthers) {
  const MemoryLedgerOptions ledger = Budget();
  Member survivor(ledger);
  std::mt19937 random(7);
  for (int round = 0; round < 25; ++round) {
    int steps[2];
    ASSERT_EQ(pipe(steps), 0);
    const pid_t child = fork();
    if (child == 0) {
      Member member(ledger);
      for (uint64_t i = 0;; ++i) {
        if (!member.balloon()->EnsureRoom(Pages(40)).ok()) _exit(1);
        const auto sequence = member.cache()->Admit(1 + i % 32);
        if (!sequence.ok()) _exit(2);
        const SequenceStep step{*sequence, 33 + i % 200};
        if (!member.cache()->Step({&step, 1}).ok()) _exit(3);
        (void)!write(steps[1], "", 1);
        if (!member.cache()->Release(*sequence, Fence()).ok()) _exit(4);
        if (!member.balloon()->Sync().ok()) _exit(5);
      }
    }
    close(steps[1]);
    std::vector<char> bytes(1 + random() % 10);
    for (char& byte : bytes) ASSERT_EQ(read(steps[0], &byte, 1), 1);
    for (volatile uint32_t spin = random() % 20000; spin > 0;) spin = spin - 1;
    EXPECT_GT(survivor.ledger()->Read()->claimed, Pages(10));
    kill(child, SIGKILL);
    siginfo_t info;
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT),
              0);
    EXPECT_EQ(info.si_code, CLD_KILLED) << info.si_status;
    // Nobody waited for it yet, and nothing has to be waited for.
    EXPECT_TRUE(survivor.balloon()->EnsureRoom(Pages(100)).ok());
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    close(steps[0]);
    // Comes down for the next one.
    Release(survivor.cache(), Admit(survivor.cache(), 320));
    survivor.memory()->Trim();
    ASSERT_TRUE(survivor.Sync());
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace quire
