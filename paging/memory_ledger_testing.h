// What the tests of the ledger share: a name of their own, and nothing left
// behind.

#ifndef QUIRE_PAGING_MEMORY_LEDGER_TESTING_H_
#define QUIRE_PAGING_MEMORY_LEDGER_TESTING_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/paging/memory_ledger.h"

namespace quire {

class LedgerTest : public testing::Test {
 protected:
  // One name per test and process, so that tests may run side by side.
  LedgerTest()
      : name_(absl::StrCat(
            "quire-test-", getpid(), "-",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~LedgerTest() override {
    EXPECT_FALSE(Exists()) << path() << " is left";
    shm_unlink(absl::StrCat("/", name_).c_str());
  }

  std::string path() const { return absl::StrCat("/dev/shm/", name_); }
  bool Exists() const {
    struct stat info;
    return stat(path().c_str(), &info) == 0;
  }

  MemoryLedgerOptions Options(Bytes budget = Bytes(1000)) const {
    MemoryLedgerOptions options;
    options.name = name_;
    options.budget = budget;
    return options;
  }
  std::unique_ptr<MemoryLedger> Open(Bytes budget = Bytes(1000)) const {
    auto ledger = MemoryLedger::Open(Options(budget));
    EXPECT_TRUE(ledger.ok()) << ledger.status();
    return *std::move(ledger);
  }

  const std::string name_;
};

inline LedgerEntryId RegisterIn(MemoryLedger* ledger,
                                const LedgerRegistration& registration) {
  const auto entry = ledger->Register(registration);
  EXPECT_TRUE(entry.ok()) << entry.status();
  return entry.value_or(LedgerEntryId());
}

inline Bytes ClaimIn(MemoryLedger* ledger, LedgerEntryId entry, Bytes held,
                     Bytes wanted) {
  const auto answer =
      ledger->Request(entry, {.held = held, .used = held, .wanted = wanted});
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? answer->claim : Bytes(0);
}

}  // namespace quire

#endif  // QUIRE_PAGING_MEMORY_LEDGER_TESTING_H_
