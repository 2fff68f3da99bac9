// Contents that no ledger has: each is an error that names the ledger, or is
// survived, and never a crash or a hang.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "paging/ledger_format.h"
#include "paging/memory_ledger_testing.h"
#include "quire/paging/memory_ledger.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

class MemoryLedgerDamageTest : public LedgerTest {
 protected:
  MemoryLedgerDamageTest() : ledger_(Open()) {
    entry_ = RegisterIn(ledger_.get(), {.name = "a", .min = Bytes(10)});
    ClaimIn(ledger_.get(), entry_, Bytes(0), Bytes(100));
  }
  ~MemoryLedgerDamageTest() override {
    ledger_.reset();
    unlink(path().c_str());  // as messages advise
  }

  std::vector<char> Bytewise() const {
    std::vector<char> bytes(kLedgerBytes);
    const int file = open(path().c_str(), O_RDONLY);
    EXPECT_EQ(pread(file, bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    close(file);
    return bytes;
  }
  void Overwrite(size_t offset, const void* data, size_t size) const {
    const int file = open(path().c_str(), O_WRONLY);
    EXPECT_EQ(pwrite(file, data, size, static_cast<off_t>(offset)),
              static_cast<ssize_t>(size));
    close(file);
  }
  template <typename Block>
  void Edit(size_t offset, const std::function<void(Block*)>& edit) const {
    Block block;
    std::memcpy(&block, Bytewise().data() + offset, sizeof(block));
    edit(&block);
    block.checksum = LedgerChecksum(block);
    Overwrite(offset, &block, sizeof(block));
  }

  // Of the handle that is open, and of one that would be.
  void ExpectError(absl::StatusCode code, const std::string& mention) {
    const absl::Status used = ledger_->Request(entry_, {}).status();
    EXPECT_EQ(used.code(), code) << used;
    EXPECT_THAT(std::string(used.message()), HasSubstr(mention));
    EXPECT_THAT(std::string(used.message()), HasSubstr(name_));
    const auto opened = MemoryLedger::Open(Options());
    EXPECT_EQ(opened.status().code(), code) << opened.status();
  }
  // Every call there is, whatever comes of it.
  void Exercise() {
    (void)ledger_->Read();
    (void)ledger_->Request(entry_, {.held = Bytes(1), .wanted = Bytes(500)});
    (void)ledger_->SetLimit(entry_, Bytes(50));
    (void)ledger_->Register({.name = "b", .min = Bytes(1)});
    const auto opened = MemoryLedger::Open(Options(Bytes(0)));
    if (opened.ok()) (void)(*opened)->Read();
  }

  std::unique_ptr<MemoryLedger> ledger_;
  LedgerEntryId entry_;
};

TEST_F(MemoryLedgerDamageTest, Truncated) {
  for (const off_t size : {kLedgerBytes - 1, kLedgerBlock, size_t{1}}) {
    ASSERT_EQ(truncate(path().c_str(), size), 0);
    ExpectError(absl::StatusCode::kDataLoss, absl::StrCat(size, " bytes"));
  }
}

TEST_F(MemoryLedgerDamageTest, TooLong) {
  ASSERT_EQ(truncate(path().c_str(), 1 << 20), 0);
  ExpectError(absl::StatusCode::kDataLoss, "1048576 bytes");
}

TEST_F(MemoryLedgerDamageTest, OfAnotherProgram) {
  Overwrite(0, "ELF", 3);
  ExpectError(absl::StatusCode::kDataLoss, "no memory ledger");
}

TEST_F(MemoryLedgerDamageTest, OfAnotherVersion) {
  Edit<LedgerHeader>(0, [](LedgerHeader* header) { header->version = 7; });
  ExpectError(absl::StatusCode::kFailedPrecondition, "version 7");
}

TEST_F(MemoryLedgerDamageTest, OfAnotherPidNamespace) {
  Edit<LedgerHeader>(
      0, [](LedgerHeader* header) { header->pid_namespace = 123456; });
  ExpectError(absl::StatusCode::kFailedPrecondition, "123456");
}

TEST_F(MemoryLedgerDamageTest, AHeaderThatCannotBe) {
  Edit<LedgerHeader>(0, [](LedgerHeader* header) { header->records = 65; });
  ExpectError(absl::StatusCode::kDataLoss, "65 records");
  Edit<LedgerHeader>(0, [](LedgerHeader* header) {
    header->records = kLedgerRecords;
    header->budget = 0;
  });
  ExpectError(absl::StatusCode::kDataLoss, "budget of 0");
}

TEST_F(MemoryLedgerDamageTest, OneByteAnywhere) {
  const std::vector<char> good = Bytewise();
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const size_t at = random() % kLedgerBytes;
    const char changed =
        static_cast<char>(good[at] ^ static_cast<char>(1 + random() % 255));
    Overwrite(at, &changed, 1);
    EXPECT_FALSE(ledger_->Read().ok()) << "byte " << at;
    Overwrite(at, &good[at], 1);
    EXPECT_TRUE(ledger_->Read().ok());
  }
}

TEST_F(MemoryLedgerDamageTest, ARecordThatCannotBe) {
  const std::vector<std::function<void(LedgerRecord*)>> edits = {
      [](LedgerRecord* record) {
        record->kind = static_cast<LedgerRecordKind>(9);
      },
      [](LedgerRecord* record) {
        record->kind = LedgerRecordKind::kOwner;
        record->parent = 4000000;
      },
      [](LedgerRecord* record) { record->name.fill('n'); },
      [](LedgerRecord* record) { record->min = 1001; },
  };
  for (const auto& edit : edits) {
    const std::vector<char> good = Bytewise();
    Edit<LedgerRecord>(kLedgerBlock, edit);
    ExpectError(absl::StatusCode::kDataLoss, "record 0");
    Overwrite(0, good.data(), good.size());
    EXPECT_TRUE(ledger_->Read().ok());
  }
}

TEST_F(MemoryLedgerDamageTest, RandomBytes) {
  const std::vector<char> good = Bytewise();
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<char> bytes = good;
    const size_t count = 1 + random() % bytes.size();
    const size_t first = random() % (bytes.size() - count + 1);
    for (size_t i = 0; i < count; ++i)
      bytes[first + i] = static_cast<char>(random());
    Overwrite(0, bytes.data(), bytes.size());
    Exercise();
    Overwrite(0, good.data(), good.size());
  }
}

// Damage that no checksum shows.
TEST_F(MemoryLedgerDamageTest, RandomNumbersInRecordsThatAreWhole) {
  std::mt19937_64 random(6);
  const std::vector<char> good = Bytewise();
  for (int round = 0; round < 300; ++round) {
    for (size_t i = 0; i < 4; ++i) {
      Edit<LedgerRecord>(kLedgerBlock * (1 + i), [&](LedgerRecord* record) {
        const LedgerRecord before = *record;
        auto* const words = reinterpret_cast<uint64_t*>(record);
        for (size_t w = 0; w < sizeof(*record) / 8; ++w) words[w] = random();
        record->kind = static_cast<LedgerRecordKind>(random() % 3);
        record->parent = static_cast<uint32_t>(random() % kLedgerRecords);
        record->name.back() = '\0';
        if (random() % 2 == 0) record->min = 0;
        // Of the living, so that it is not reaped.
        if (random() % 2 == 0) {
          record->pid = before.pid;
          record->start_time = before.start_time;
        }
      });
    }
    Exercise();
    Overwrite(0, good.data(), good.size());
  }
}

TEST_F(MemoryLedgerDamageTest, AnotherMayWriteIt) {
  ledger_.reset();
  const int file = open(path().c_str(), O_CREAT | O_RDWR, 0600);
  fchmod(file, 0666);
  close(file);
  const auto opened = MemoryLedger::Open(Options());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("mode 0666"));
}

// Whoever made it ended before all was written.
TEST_F(MemoryLedgerDamageTest, HalfMadeIsMadeAnew) {
  ledger_.reset();
  for (const off_t size : {off_t{0}, static_cast<off_t>(kLedgerBytes)}) {
    const int file = open(path().c_str(), O_CREAT | O_RDWR, 0600);
    ASSERT_EQ(ftruncate(file, size), 0);
    close(file);
    const auto opened = MemoryLedger::Open(Options());
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ((*opened)->Read()->budget, Bytes(1000));
  }
}

}  // namespace
}  // namespace quire
