#include "quire/paging/memory_ledger.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "alloc/testing/run_in_child.h"
#include "paging/memory_ledger_testing.h"
#include "paging/process_identity.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

using MemoryLedgerTest = LedgerTest;

TEST_F(MemoryLedgerTest, IsThereWhileSomebodyUsesIt) {
  {
    const auto ledger = Open();
    EXPECT_TRUE(Exists());
    struct stat info;
    ASSERT_EQ(stat(path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
    const LedgerEntryId entry =
        RegisterIn(ledger.get(), {.name = "first", .min = Bytes(10)});
    {
      const auto other = Open(Bytes(0));
      const auto snapshot = other->Read();
      ASSERT_TRUE(snapshot.ok()) << snapshot.status();
      EXPECT_EQ(snapshot->budget, Bytes(1000));
      ASSERT_EQ(snapshot->entries.size(), 1u);
      EXPECT_EQ(snapshot->entries[0].id, entry);
      EXPECT_EQ(snapshot->entries[0].name, "first");
      EXPECT_EQ(snapshot->entries[0].pid, getpid());
      EXPECT_EQ(snapshot->entries[0].min, Bytes(10));
      EXPECT_EQ(snapshot->entries[0].max, Bytes(1000));
    }
    EXPECT_TRUE(Exists());
  }
  EXPECT_FALSE(Exists());
}

TEST_F(MemoryLedgerTest, NoneIsMadeForThoseThatOnlyLook) {
  MemoryLedgerOptions options = Options();
  options.create = false;
  const auto none = MemoryLedger::Open(options);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr(name_));
  EXPECT_FALSE(Exists());
  options.create = true;
  options.budget = Bytes(0);
  EXPECT_EQ(MemoryLedger::Open(options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MemoryLedgerTest, NamesAreChecked) {
  for (const char* name : {"a/b", "..", ".hidden", "with space", "tab\t"}) {
    MemoryLedgerOptions options = Options();
    options.name = name;
    EXPECT_EQ(MemoryLedger::Open(options).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
  EXPECT_EQ(MemoryLedger::DefaultName(DeviceId(3)),
            absl::StrCat("quire-", geteuid(), "-3"));
}

TEST_F(MemoryLedgerTest, TheBudgetIsTheFirstOnes) {
  auto first = Open(Bytes(1000));
  RegisterIn(first.get(), {.name = "first"});
  const auto other = MemoryLedger::Open(Options(Bytes(999)));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("1000"));
  MemoryLedgerOptions options = Options();
  options.device = DeviceId(1);
  EXPECT_EQ(MemoryLedger::Open(options).status().code(),
            absl::StatusCode::kInvalidArgument);
  first.reset();
  EXPECT_EQ(Open(Bytes(999))->Read()->budget, Bytes(999));
}

TEST_F(MemoryLedgerTest, ClaimsOfTwoHandlesFitTogether) {
  const auto a = Open();
  const auto b = Open();
  const LedgerEntryId in_a = RegisterIn(a.get(), {.name = "a"});
  const LedgerEntryId in_b = RegisterIn(b.get(), {.name = "b"});
  EXPECT_EQ(ClaimIn(a.get(), in_a, Bytes(0), Bytes(600)), Bytes(600));
  EXPECT_EQ(ClaimIn(b.get(), in_b, Bytes(0), Bytes(600)), Bytes(400));
  const auto snapshot = *a->Read();
  EXPECT_EQ(snapshot.claimed, Bytes(1000));
  EXPECT_EQ(snapshot.entries[1].wanted, Bytes(600));
  EXPECT_EQ(snapshot.entries[1].peak, Bytes(400));
  // An entry can be limited by anybody, and used by its handle alone.
  ASSERT_TRUE(b->SetLimit(in_a, Bytes(300)).ok());
  const auto answer = a->Request(in_a, {.held = Bytes(600)});
  EXPECT_EQ(answer->most, Bytes(300));
  ASSERT_TRUE(a->Unregister(in_a).ok());
  EXPECT_EQ(a->Unregister(in_a).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ClaimIn(b.get(), in_b, Bytes(400), Bytes(1000)), Bytes(1000));
}

TEST_F(MemoryLedgerTest, WhoeverIsLastRemovesItAndTheNextMakesItAnew) {
  auto waits = Open(Bytes(1000));
  Open(Bytes(1000)).reset();
  EXPECT_FALSE(Exists());
  RegisterIn(waits.get(), {.name = "late"});
  EXPECT_TRUE(Exists());
  EXPECT_EQ(Open(Bytes(0))->Read()->entries.size(), 1u);
}

TEST_F(MemoryLedgerTest, RemovalUnderAProcessIsAnError) {
  const auto ledger = Open();
  const LedgerEntryId entry = RegisterIn(ledger.get(), {.name = "a"});
  ASSERT_EQ(unlink(path().c_str()), 0);
  EXPECT_EQ(ledger->Request(entry, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ledger->Request(entry, {}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(MemoryLedgerTest, AForkedChildHasNoPart) {
  const auto ledger = Open();
  const LedgerEntryId entry = RegisterIn(ledger.get(), {.name = "a"});
  EXPECT_EQ(
      RunInChild([&] {
        if (!absl::IsFailedPrecondition(ledger->Request(entry, {}).status()))
          return 1;
        if (!absl::IsFailedPrecondition(ledger->Read().status())) return 2;
        // A handle of its own works, and does not end the parent's.
        const auto own = MemoryLedger::Open(Options());
        if (!own.ok() || (*own)->Read()->entries.size() != 1) return 3;
        return 0;
      }),
      0);
  EXPECT_EQ(ledger->Read()->entries.size(), 1u);
}

TEST_F(MemoryLedgerTest, ALockThatIsKeptEndsInAnError) {
  const auto ledger = Open();
  RegisterIn(ledger.get(), {.name = "a"});
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const int file = open(path().c_str(), O_RDWR);
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    if (fcntl(file, F_SETLK, &lock) != 0) _exit(1);
    (void)!write(ready[1], "", 1);
    pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  MemoryLedgerOptions options = Options();
  options.lock_timeout = std::chrono::milliseconds(1);
  const auto stuck = MemoryLedger::Open(options);
  EXPECT_EQ(stuck.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(stuck.status().message()),
              HasSubstr(absl::StrCat("process ", child)));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);
  EXPECT_TRUE(MemoryLedger::Open(options).ok());
}

TEST_F(MemoryLedgerTest, ClaimsOfManyThreadsNeverExceedTheBudget) {
  constexpr int kThreads = 4;
  constexpr uint64_t kBudget = 100;
  std::atomic<uint64_t> held = 0;
  std::vector<std::thread> threads;
  const auto keep = Open(Bytes(kBudget));
  RegisterIn(keep.get(), {.name = "keeps it there"});
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto ledger = Open(Bytes(kBudget));
      const LedgerEntryId entry =
          RegisterIn(ledger.get(), {.name = absl::StrCat("thread ", t)});
      uint64_t mine = 0;
      for (uint64_t i = 1; i <= 150; ++i) {
        // Given up before it is released, counted after it was claimed.
        const uint64_t smaller = mine / 2;
        held -= mine - smaller;
        const uint64_t claim =
            ClaimIn(ledger.get(), entry, Bytes(smaller), Bytes(i * 37 % 80))
                .value();
        const uint64_t sum = held += claim - smaller;
        EXPECT_LE(sum, kBudget);
        mine = claim;
      }
      held -= mine;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ProcessIdentityTest, TellsTheLivingFromTheDead) {
  const ProcessIdentity self = *CurrentProcess();
  EXPECT_EQ(self.pid, getpid());
  EXPECT_TRUE(IsAlive(self));
  // The same number, used again.
  EXPECT_FALSE(IsAlive({self.pid, self.start_time + 1}));
  EXPECT_FALSE(IsAlive({INT32_MAX, 1}));
  EXPECT_FALSE(IsAlive({-1, 1}));
  int out[2];
  ASSERT_EQ(pipe(out), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto identity = CurrentProcess();
    (void)!write(out[1], &*identity, sizeof(*identity));
    pause();
  }
  ProcessIdentity born;
  ASSERT_EQ(read(out[0], &born, sizeof(born)),
            static_cast<ssize_t>(sizeof(born)));
  EXPECT_EQ(born.pid, child);
  EXPECT_TRUE(IsAlive(born));
  kill(child, SIGKILL);
  // It has ended and nobody has waited for it: its memory is free.
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT),
            0);
  EXPECT_FALSE(IsAlive(born));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(IsAlive(born));
  close(out[0]);
  close(out[1]);
}

}  // namespace
}  // namespace quire
