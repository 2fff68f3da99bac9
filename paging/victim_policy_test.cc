#include "quire/paging/victim_policy.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace quire {
namespace {

VictimCandidate Candidate(uint64_t request, uint64_t last_step,
                          uint64_t computed, Bytes frees) {
  return {RequestId(request), last_step, computed, frees};
}

// Request 3 shares most of its pages with others.
const std::vector<VictimCandidate> kCandidates = {
    Candidate(1, 9, 4000, MiB(40)), Candidate(2, 7, 1000, MiB(10)),
    Candidate(3, 7, 8000, MiB(2)), Candidate(4, 9, 1200, MiB(12)),
    Candidate(5, 8, 100, MiB(2))};

uint64_t Chosen(const std::string& policy, Bytes shortfall) {
  const size_t index = MakeVictimPolicy(policy)->Choose(kCandidates, shortfall);
  return kCandidates[index].request.value();
}

TEST(VictimPolicyTest, TheYoungestGoesFirst) {
  EXPECT_EQ(Chosen("youngest", Bytes(0)), 5u);
  EXPECT_EQ(Chosen("youngest", GiB(1)), 5u);
  EXPECT_EQ(Chosen("fifo", Bytes(0)), 5u) << "first come, first served";
}

TEST(VictimPolicyTest, TheLeastRecentGoesFirstAndFreesMost) {
  EXPECT_EQ(Chosen("lru", Bytes(0)), 2u);
  EXPECT_EQ(Chosen("lru", MiB(40)), 2u);
  const std::vector<VictimCandidate> equal = {Candidate(1, 5, 10, MiB(4)),
                                              Candidate(2, 5, 10, MiB(4)),
                                              Candidate(3, 5, 10, MiB(2))};
  EXPECT_EQ(MakeLeastRecentPolicy()->Choose(equal, Bytes(0)), 1u);
}

TEST(VictimPolicyTest, PagesReallyFreedCountForThePageAware) {
  EXPECT_EQ(Chosen("page-aware", Bytes(0)), 5u);  // anything helps
  EXPECT_EQ(Chosen("page-aware", MiB(2)), 5u);    // 100 tokens, not 8000
  EXPECT_EQ(Chosen("page-aware", MiB(3)), 2u);    // 1000 tokens
  EXPECT_EQ(Chosen("page-aware", MiB(12)), 4u);   // 1200
  EXPECT_EQ(Chosen("page-aware", MiB(20)), 1u);   // the only one that does
  EXPECT_EQ(Chosen("page-aware", GiB(1)), 1u);    // frees most
  const std::vector<VictimCandidate> shared = {Candidate(1, 5, 900, MiB(2)),
                                               Candidate(2, 5, 1, Bytes(0))};
  EXPECT_EQ(MakePageAwarePolicy()->Choose(shared, Bytes(0)), 0u);
}

TEST(VictimPolicyTest, OnlyKnownNamesArePolicies) {
  EXPECT_EQ(MakeVictimPolicy("oldest"), nullptr);
  EXPECT_EQ(MakeVictimPolicy(""), nullptr);
}

}  // namespace
}  // namespace quire
