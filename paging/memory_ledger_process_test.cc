// Processes on one ledger, and what becomes of it when one is killed.
//
// All that a process does to a ledger it does by system calls, so the states
// that it can leave are those between its system calls: one test stops it at
// every one of them. Another kills it at random.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "paging/memory_ledger_testing.h"
#include "quire/paging/memory_ledger.h"

namespace quire {
namespace {

constexpr Bytes kBudget(1000);

class MemoryLedgerProcessTest : public LedgerTest {
 protected:
  // A life on the ledger: 0 where all went well.
  int Live(uint32_t seed, int steps, const std::function<void()>& after_step) {
    MemoryLedgerOptions options = Options(kBudget);
    // Beside a watcher that never rests, on a machine that is busy.
    options.lock_timeout = std::chrono::seconds(50);
    auto ledger = MemoryLedger::Open(options);
    if (!ledger.ok()) return 1;
    auto entry = (*ledger)->Register({.name = "lives", .min = Bytes(50)});
    if (!entry.ok()) return 2;
    if (!(*ledger)->Register({.name = "kv", .parent = *entry}).ok()) return 3;
    std::mt19937 random(seed);
    uint64_t claim = 0;
    for (int i = 0; i < steps; ++i) {
      const uint64_t held = claim == 0 ? 0 : random() % (claim + 1);
      const auto answer =
          (*ledger)->Request(*entry, {.held = Bytes(held),
                                      .used = Bytes(held),
                                      .wanted = Bytes(random() % 1500)});
      if (!answer.ok()) return 4;
      claim = answer->claim.value();
      after_step();
    }
    return (*ledger)->Unregister(*entry).ok() ? 0 : 5;
  }

  // Whoever is left can have everything, at once.
  void ExpectAllCanBeHad(MemoryLedger* survivor, LedgerEntryId entry) {
    const auto answer = survivor->Request(entry, {.wanted = kBudget});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->claim, kBudget);
    EXPECT_EQ(answer->most, kBudget);
    EXPECT_EQ(survivor->Read()->entries.size(), 1u);
    EXPECT_EQ(ClaimIn(survivor, entry, Bytes(300), Bytes(0)), Bytes(300));
  }
};

// Ends with a child that has ended and was not waited for.
void AwaitEnd(pid_t child) {
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT),
            0);
}

TEST_F(MemoryLedgerProcessTest, KilledAtEverySystemCall) {
  const auto survivor = Open(kBudget);
  const LedgerEntryId entry =
      RegisterIn(survivor.get(), {.name = "survives", .min = Bytes(100)});
  ClaimIn(survivor.get(), entry, Bytes(0), Bytes(300));
  bool finished = false;
  int stops = 0;
  for (; !finished; ++stops) {
    ASSERT_LT(stops, 5000);
    const pid_t child = fork();
    if (child == 0) {
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
      raise(SIGSTOP);
      _exit(Live(1, 2, [] {}));
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
      GTEST_SKIP() << "processes may not be traced here";
    for (int stop = 0; stop <= stops; ++stop) {
      ASSERT_EQ(ptrace(PTRACE_SYSCALL, child, nullptr, nullptr), 0);
      ASSERT_EQ(waitpid(child, &status, 0), child);
      if (!WIFSTOPPED(status)) break;
    }
    if (WIFSTOPPED(status)) {
      kill(child, SIGKILL);
      ASSERT_EQ(waitpid(child, &status, 0), child);
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
      finished = true;
    }
    ExpectAllCanBeHad(survivor.get(), entry);
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "killed at stop " << stops;
      return;
    }
  }
  EXPECT_GT(stops, 50);
}

TEST_F(MemoryLedgerProcessTest, KilledAtRandom) {
  const auto survivor = Open(kBudget);
  const LedgerEntryId entry =
      RegisterIn(survivor.get(), {.name = "survives", .min = Bytes(100)});
  ClaimIn(survivor.get(), entry, Bytes(0), Bytes(300));
  std::mt19937 random(17);
  for (uint32_t round = 0; round < 80; ++round) {
    int steps[2];
    ASSERT_EQ(pipe(steps), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(steps[0]);
      _exit(Live(round, 1 << 30, [&] { (void)!write(steps[1], "", 1); }));
    }
    close(steps[1]);
    // Of the steps that it has made when the signal comes, the parent knows
    // some; the rest is up to the scheduler.
    std::vector<char> bytes(random() % 20);
    for (char& byte : bytes) ASSERT_EQ(read(steps[0], &byte, 1), 1);
    for (volatile uint32_t spin = random() % 20000; spin > 0;) spin = spin - 1;
    kill(child, SIGKILL);
    AwaitEnd(child);
    ExpectAllCanBeHad(survivor.get(), entry);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    close(steps[0]);
    if (testing::Test::HasFailure()) return;
  }
}

// The first one makes the ledger, and is killed while it does.
TEST_F(MemoryLedgerProcessTest, KilledWhileItIsMade) {
  bool finished = false;
  for (int stops = 0; !finished; ++stops) {
    const pid_t child = fork();
    if (child == 0) {
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
      raise(SIGSTOP);
      const auto ledger = MemoryLedger::Open(Options(kBudget));
      _exit(ledger.ok() ? 0 : 1);  // without the destructor
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
      GTEST_SKIP() << "processes may not be traced here";
    for (int stop = 0; stop <= stops; ++stop) {
      ASSERT_EQ(ptrace(PTRACE_SYSCALL, child, nullptr, nullptr), 0);
      ASSERT_EQ(waitpid(child, &status, 0), child);
      if (!WIFSTOPPED(status)) break;
    }
    finished = !WIFSTOPPED(status);
    if (!finished) {
      kill(child, SIGKILL);
      ASSERT_EQ(waitpid(child, &status, 0), child);
    }
    const auto next = MemoryLedger::Open(Options(Bytes(500)));
    ASSERT_TRUE(next.ok()) << next.status() << " at stop " << stops;
    EXPECT_EQ((*next)->Read()->budget, Bytes(500));
  }
}

TEST_F(MemoryLedgerProcessTest, ClaimsOfProcessesNeverExceedTheBudget) {
  constexpr int kProcesses = 4;
  const auto watcher = Open(kBudget);
  RegisterIn(watcher.get(), {.name = "watches"});
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      // Each minimum is 50: what there is to fight for is the rest.
      _exit(Live(static_cast<uint32_t>(i), 200, [] {}));
    }
    children.push_back(child);
  }
  size_t running = children.size();
  while (running > 0) {
    const auto snapshot = watcher->Read();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    uint64_t sum = 0;
    for (const LedgerEntry& entry : snapshot->entries) {
      if (!entry.parent) sum += entry.claim.value();
    }
    EXPECT_LE(sum, kBudget.value());
    EXPECT_EQ(snapshot->claimed, Bytes(sum));
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      EXPECT_TRUE(WIFEXITED(status));
      EXPECT_EQ(WEXITSTATUS(status), 0);
      --running;
    }
  }
}

}  // namespace
}  // namespace quire
