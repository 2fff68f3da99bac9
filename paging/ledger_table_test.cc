// The books of the ledger, against the rules in ledger_table.h written down
// again as plainly as they can be.

#include "paging/ledger_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace quire {
namespace {

constexpr ProcessIdentity kMe = {100, 7};

class Books {
 public:
  explicit Books(uint64_t budget) : table_(budget, FreshLedgerRecords()) {}

  LedgerEntryId Add(int32_t pid, uint64_t min = 0, uint64_t max = 0) {
    const auto id = table_.Register(
        {.name = "p", .min = Bytes(min), .max = Bytes(max)}, {pid, 1});
    EXPECT_TRUE(id.ok()) << id.status();
    pids_[*id] = pid;
    return *id;
  }
  LedgerAnswer Ask(LedgerEntryId id, uint64_t held, uint64_t used,
                   uint64_t wanted) {
    const auto answer = table_.Request(
        id, {pids_[id], 1},
        {.held = Bytes(held), .used = Bytes(used), .wanted = Bytes(wanted)},
        /*now=*/1);
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(table_.Validate().ok()) << table_.Validate();
    EXPECT_LE(table_.Claimed(), table_.budget());
    return answer.value_or(LedgerAnswer());
  }
  uint64_t Grow(LedgerEntryId id, uint64_t held, uint64_t wanted) {
    return Ask(id, held, held, wanted).claim.value();
  }
  uint64_t Most(LedgerEntryId id) {
    return table_.MostOf(table_.records()[(id.value() & UINT32_MAX) - 1]);
  }

  LedgerTable table_;
  std::map<LedgerEntryId, int32_t> pids_;
};

TEST(LedgerTableTest, ClaimsFitInTheBudget) {
  Books books(100);
  const LedgerEntryId a = books.Add(1);
  const LedgerEntryId b = books.Add(2);
  EXPECT_EQ(books.Grow(a, 0, 70), 70u);
  EXPECT_EQ(books.Ask(b, 0, 0, 70).claim, Bytes(30));
  EXPECT_EQ(books.table_.Claimed(), 100u);
  // What is given up can be had.
  EXPECT_EQ(books.Grow(a, 20, 0), 20u);
  EXPECT_EQ(books.Grow(b, 30, 70), 70u);
}

TEST(LedgerTableTest, WhatIsKeptForOthersIsNotClaimed) {
  Books books(100);
  const LedgerEntryId a = books.Add(1);
  const LedgerEntryId b = books.Add(2, /*min=*/40);
  EXPECT_EQ(books.Grow(a, 0, 100), 60u);
  EXPECT_EQ(books.Grow(b, 0, 40), 40u);
}

TEST(LedgerTableTest, AMinimumThatComesLateIsOwed) {
  Books books(100);
  const LedgerEntryId a = books.Add(1);
  EXPECT_EQ(books.Grow(a, 0, 90), 90u);
  const LedgerEntryId b = books.Add(2, /*min=*/40);
  // It comes first with all there is, and the rest is asked back.
  const LedgerAnswer answer = books.Ask(b, 0, 0, 40);
  EXPECT_EQ(answer.claim, Bytes(10));
  EXPECT_EQ(books.Ask(a, 90, 90, 0).most, Bytes(60));
  EXPECT_EQ(books.Grow(a, 60, 0), 60u);
  EXPECT_EQ(books.Grow(b, 10, 40), 40u);
}

TEST(LedgerTableTest, MinimaFitInTheBudgetTogether) {
  Books books(100);
  books.Add(1, 60);
  const auto refused = books.table_.Register({.name = "late", .min = Bytes(41)},
                                             ProcessIdentity{2, 1});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("101"), std::string::npos);
  EXPECT_EQ(books.table_
                .Register({.name = "x", .min = Bytes(5), .max = Bytes(4)},
                          ProcessIdentity{2, 1})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LedgerTableTest, MaximumAndLimitBound) {
  Books books(100);
  const LedgerEntryId a = books.Add(1, 10, 50);
  EXPECT_EQ(books.Ask(a, 0, 0, 80).claim, Bytes(50));
  ASSERT_TRUE(books.table_.SetLimit(a, 30).ok());
  EXPECT_EQ(books.Ask(a, 50, 50, 0).most, Bytes(30));
  EXPECT_EQ(books.Ask(a, 20, 20, 50).claim, Bytes(30));
  ASSERT_TRUE(books.table_.SetLimit(a, 0).ok());
  EXPECT_EQ(books.Ask(a, 30, 30, 50).claim, Bytes(50));
  EXPECT_EQ(books.table_.SetLimit(a, 9).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(books.table_.SetLimit(LedgerEntryId(99), 50).code(),
            absl::StatusCode::kNotFound);
}

TEST(LedgerTableTest, TheLargestExcessIsAskedBackFirst) {
  Books books(100);
  const LedgerEntryId idle = books.Add(1);
  const LedgerEntryId busy = books.Add(2);
  const LedgerEntryId asks = books.Add(3);
  books.Grow(idle, 0, 50);
  books.Ask(idle, 50, 10, 0);
  books.Grow(busy, 0, 50);
  books.Ask(busy, 50, 45, 0);
  EXPECT_EQ(books.Ask(asks, 0, 0, 30).claim, Bytes(0));
  EXPECT_EQ(books.Most(idle), 20u);
  EXPECT_EQ(books.Most(busy), 100u);
  EXPECT_EQ(books.Ask(asks, 0, 0, 42).claim, Bytes(0));
  EXPECT_EQ(books.Most(idle), 10u);
  EXPECT_EQ(books.Most(busy), 48u);
  // Nobody is asked any more once nobody wants.
  books.Ask(asks, 0, 0, 0);
  EXPECT_EQ(books.Most(idle), 100u);
  EXPECT_EQ(books.Most(busy), 100u);
}

// The example of max-min fairness in textbooks on networks: of 10, with demands
// of 2, 2.6, 4 and 5, the shares are 2, 2.6, 2.7 and 2.7.
TEST(LedgerTableTest, SharesAreFairWhereNotAllFit) {
  Books books(100);
  const uint64_t demands[] = {20, 26, 40, 50};
  std::vector<LedgerEntryId> ids;
  for (int32_t i = 0; i < 4; ++i) ids.push_back(books.Add(i + 1));
  // The last one was there first and has it all.
  books.Grow(ids[3], 0, 100);
  books.Ask(ids[3], 50, 50, 0);
  for (int i = 0; i < 3; ++i) {
    const uint64_t claim = books.Grow(ids[i], 0, demands[i]);
    books.Ask(ids[i], claim, claim, demands[i]);
  }
  EXPECT_EQ(books.Most(ids[0]), 20u);
  EXPECT_EQ(books.Most(ids[1]), 26u);
  EXPECT_EQ(books.Most(ids[2]), 27u);
  EXPECT_EQ(books.Most(ids[3]), 27u);
  // While it lasts, who has more gets no more, and the others their shares.
  EXPECT_EQ(books.Grow(ids[3], 50, 60), 50u);
  EXPECT_EQ(books.Grow(ids[3], 27, 60), 27u);
  EXPECT_EQ(books.Grow(ids[2], 4, 40), 27u);
}

TEST(LedgerTableTest, HopesAreGrantedWhileNobodyWants) {
  Books books(100);
  const LedgerEntryId hopes = books.Add(1);
  const LedgerEntryId wants = books.Add(2, 0, 90);
  const auto hope = [&](uint64_t held, uint64_t hoped) {
    return books.table_
        .Request(hopes, {1, 1}, {.held = Bytes(held), .hoped = Bytes(hoped)}, 1)
        ->claim.value();
  };
  EXPECT_EQ(hope(0, 30), 30u);
  EXPECT_EQ(books.Grow(wants, 0, 80), 70u);
  // It comes down for who wants, and does not go up again meanwhile.
  EXPECT_EQ(books.Most(hopes), 20u);
  EXPECT_EQ(hope(20, 30), 20u);
  EXPECT_EQ(books.Grow(wants, 70, 80), 80u);
  EXPECT_EQ(hope(5, 30), 20u);
  // What a maximum forbids is not wanted.
  EXPECT_EQ(books.Grow(wants, 80, 95), 80u);
  EXPECT_EQ(hope(5, 30), 5u);
  EXPECT_EQ(books.Grow(wants, 80, 95), 90u);
  EXPECT_EQ(hope(5, 30), 10u);
}

TEST(LedgerTableTest, TheDeadAreReaped) {
  Books books(100);
  const LedgerEntryId a = books.Add(1);
  const LedgerEntryId b = books.Add(2);
  const auto owner =
      books.table_.Register({.name = "kv", .parent = a}, ProcessIdentity{1, 1});
  ASSERT_TRUE(owner.ok());
  books.Grow(a, 0, 90);
  int asked = 0;
  EXPECT_TRUE(books.table_.Reap([&](const ProcessIdentity& process) {
    ++asked;
    return process.pid != 1;
  }));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(books.Grow(b, 0, 100), 100u);
  EXPECT_TRUE(books.table_.HasProcesses());
  // Records are used again, and ids are not.
  const LedgerEntryId c = books.Add(3);
  EXPECT_NE(c, a);
  EXPECT_EQ(books.table_.Unregister(a, {1, 1}).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(books.table_.SetLimit(*owner, 1).code(),
            absl::StatusCode::kNotFound);
}

TEST(LedgerTableTest, OwnersEndWithTheirProcessAndClaimNothing) {
  Books books(100);
  const LedgerEntryId a = books.Add(1);
  const auto owner = books.table_.Register(
      {.name = "kv", .min = Bytes(5), .max = Bytes(50), .parent = a},
      ProcessIdentity{1, 1});
  ASSERT_TRUE(owner.ok()) << owner.status();
  books.pids_[*owner] = 1;
  EXPECT_EQ(books.Ask(*owner, 60, 40, 0).most, Bytes(50));
  EXPECT_EQ(books.table_.Claimed(), 0u);
  // In another process's entry, or in an owner's, there is no place.
  EXPECT_FALSE(books.table_.Register({.name = "x", .parent = a}, {2, 1}).ok());
  EXPECT_FALSE(
      books.table_.Register({.name = "x", .parent = *owner}, {1, 1}).ok());
  ASSERT_TRUE(books.table_.Unregister(a, {1, 1}).ok());
  for (const LedgerRecord& record : books.table_.records())
    EXPECT_EQ(record.kind, LedgerRecordKind::kFree);
}

TEST(LedgerTableTest, NobodyElsesEntryIsTouched) {
  Books books(100);
  const LedgerEntryId a = books.Add(1);
  EXPECT_FALSE(books.table_.Request(a, kMe, {}, 1).ok());
  EXPECT_FALSE(books.table_.Unregister(a, {1, 2}).ok());
  EXPECT_FALSE(books.table_.Request(a, {1, 1}, {.held = Bytes(1)}, 1).ok());
}

TEST(LedgerTableTest, LongNamesAreCutAndFullTablesSaySo) {
  Books books(100);
  ASSERT_TRUE(books.table_.Register({.name = std::string(500, 'n')}, kMe).ok());
  EXPECT_EQ(std::strlen(books.table_.records()[0].name.data()), 95u);
  for (size_t i = 1; i < kLedgerRecords; ++i)
    ASSERT_TRUE(books.table_.Register({.name = "n"}, kMe).ok());
  EXPECT_EQ(books.table_.Register({.name = "n"}, kMe).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// ---- A model of the state ---------------------------------------------------

struct Member {
  uint64_t min;
  uint64_t max;
  uint64_t limit = 0;
  uint64_t claim = 0;
  uint64_t used = 0;
  uint64_t wanted = 0;

  uint64_t cap() const { return limit == 0 ? max : std::min(limit, max); }
  bool wants() const { return std::min(wanted, cap()) > claim; }
  uint64_t demand() const {
    return std::max(min, wants() ? std::min(wanted, cap()) : used);
  }
};
using Members = std::map<LedgerEntryId, Member>;

// Pours the budget out one unit at a time, to all that still lack something,
// as long as there is one for each of them.
std::map<LedgerEntryId, uint64_t> PourOut(const Members& members,
                                          uint64_t budget) {
  std::map<LedgerEntryId, uint64_t> shares;
  for (uint64_t level = 0; level < budget; ++level) {
    std::map<LedgerEntryId, uint64_t> next;
    uint64_t sum = 0;
    for (const auto& [id, member] : members) {
      next[id] = std::max(member.min, std::min(member.demand(), level));
      sum += next[id];
    }
    if (sum > budget) break;
    shares = next;
  }
  return shares;
}

void CheckMost(Books* books, const Members& members, uint64_t budget) {
  uint64_t desired = 0;
  uint64_t demanded = 0;
  for (const auto& [id, member] : members) {
    desired += std::max(
        {member.min, member.claim, std::min(member.wanted, member.cap())});
    demanded += member.demand();
  }
  uint64_t asked_back = 0;
  for (const auto& [id, member] : members) {
    const uint64_t most = books->Most(id);
    EXPECT_GE(most, std::min(member.min, member.cap()));
    EXPECT_LE(most, member.cap());
    if (desired <= budget) {
      EXPECT_EQ(most, std::min(member.cap(), budget));
    } else if (demanded > budget) {
      EXPECT_EQ(most, std::min(member.cap(), PourOut(members, budget).at(id)));
    } else if (most < std::min(member.claim, member.cap())) {
      EXPECT_FALSE(member.wants());
      EXPECT_GE(most, std::min(member.cap(), member.demand()));
    }
    if (demanded <= budget && most < member.claim)
      asked_back += member.claim - most;
  }
  // As much as is short, or more where limits ask for more.
  if (demanded <= budget && desired > budget) {
    EXPECT_GE(asked_back, desired - budget);
  }
}

TEST(LedgerTableTest, RandomRequestsFollowTheRules) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    const uint64_t budget = 20 + below(60);
    Books books(budget);
    Members members;
    int32_t next_pid = 1;
    for (int operation = 0; operation < 200; ++operation) {
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << " operation " << operation);
      if (members.empty() || below(10) == 0) {
        Member member{below(budget / 4), budget};
        if (below(2) == 0) member.max = member.min + 1 + below(budget);
        member.max = std::min(member.max, budget);
        const auto id = books.table_.Register(
            {.name = "p", .min = Bytes(member.min), .max = Bytes(member.max)},
            {next_pid, 1});
        uint64_t minima = member.min;
        for (const auto& [other, entry] : members) minima += entry.min;
        ASSERT_EQ(id.ok(), minima <= budget && members.size() < 64);
        if (id.ok()) {
          books.pids_[*id] = next_pid++;
          members[*id] = member;
        }
      } else {
        const auto chosen =
            std::next(members.begin(),
                      static_cast<std::ptrdiff_t>(below(members.size())));
        const LedgerEntryId id = chosen->first;
        Member& member = chosen->second;
        switch (below(8)) {
          case 0:
            ASSERT_TRUE(books.table_.Unregister(id, {books.pids_[id], 1}).ok());
            members.erase(chosen);
            break;
          case 1: {
            const uint64_t limit = below(2) * (1 + below(budget));
            ASSERT_EQ(books.table_.SetLimit(id, limit).ok(),
                      limit == 0 || limit >= member.min);
            if (limit == 0 || limit >= member.min) member.limit = limit;
            break;
          }
          default: {
            const uint64_t held = below(member.claim + 1);
            const uint64_t wanted = below(2) * below(budget + 10);
            member.used = below(held + 1);
            member.claim = held;
            member.wanted = wanted > held ? wanted : 0;
            uint64_t claimed = 0;
            uint64_t kept = 0;
            for (const auto& [other, entry] : members) {
              if (other == id) continue;
              claimed += entry.claim;
              kept += std::max(entry.claim, entry.min);
            }
            const uint64_t claim =
                books.Ask(id, held, member.used, wanted).claim.value();
            EXPECT_GE(claim, held);
            if (claim > held) {
              EXPECT_LE(claim, std::min(wanted, member.cap()));
              EXPECT_LE(claim + claimed, budget);
              if (claim > member.min) {
                EXPECT_LE(claim + kept, budget);
              }
            }
            member.claim = claim;
            if (claim >= member.wanted) member.wanted = 0;
            break;
          }
        }
      }
      CheckMost(&books, members, budget);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(LedgerTableTest, RecordsOfAnyNumbersAreSurvived) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    LedgerRecords records;
    auto* const words = reinterpret_cast<uint64_t*>(records.data());
    for (size_t i = 0; i < sizeof(records) / 8; ++i) words[i] = random();
    for (LedgerRecord& record : records) {
      record.kind = static_cast<LedgerRecordKind>(random() % 3);
      record.name.back() = '\0';
      record.parent = static_cast<uint32_t>(random() % kLedgerRecords);
      if (random() % 2 == 0) record.min = 0;
    }
    LedgerTable table(random(), records);
    (void)table.Validate();
    EXPECT_LE(table.Claimed(), UINT64_MAX);
    const auto id = table.Register({.name = "x"}, kMe);
    if (id.ok()) {
      const auto answer =
          table.Request(*id, kMe, {.wanted = Bytes(random())}, 5);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_LE(answer->claim, Bytes(table.budget()));
    }
    for (size_t i = 0; i < kLedgerRecords; ++i)
      (void)table.SetLimit(table.IdOf(i), random());
    (void)table.Reap([&](const ProcessIdentity&) { return random() % 2 == 0; });
  }
}

}  // namespace
}  // namespace quire
