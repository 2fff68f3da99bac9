// Faults of other systems that were reported in public, as they would show in
// the KV cache. Those of the driver and of device memory stand beside these.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "paging/kv_cache_share_testing.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

constexpr uint64_t kPages = 60;

class KvCacheIssueTest : public ::testing::Test {
 protected:
  // A page has 32 tokens in each of five groups.
  KvCacheIssueTest() : device_(kPages) {
    owner_ = device_.memory()->owners()->Register("KV");
    KvCacheOptions options = CacheOptions(320);
    options.owner = owner_;
    cache_ = MakeCache(&device_, 1, options);
  }
  SequenceId Written(const Tokens& tokens) {
    const SequenceId id = Admit(cache_.get(), tokens.size());
    TokenRows(*cache_, id).Write(tokens, 0);
    return id;
  }
  void ExpectRows(SequenceId id, const Tokens& tokens) {
    EXPECT_EQ(TokenRows(*cache_, id).FirstWrong(tokens), tokens.size());
  }

  TestDevice device_;
  OwnerId owner_;
  std::unique_ptr<KvCache> cache_;
};

// A batch of maps that fails midway: all or nothing, over all sequences.
TEST_F(KvCacheIssueTest, Kvcached412ABatchThatFailsMidwayMapsNothing) {
  const Tokens a = TokensFrom(0, 32);
  const Tokens b = TokensFrom(500, 32);
  const SequenceStep steps[] = {{Written(a), 64}, {Written(b), 64}};
  for (uint64_t n = 1; n <= 10; ++n) {
    device_.driver()->FailCall(DriverCall::kMap, n,
                               absl::StatusCode::kInternal);
    EXPECT_EQ(cache_->Step(steps).code(), absl::StatusCode::kInternal);
    device_.driver()->ClearFaults();
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    EXPECT_EQ(device_.live_pages(), 10u);
    ExpectRows(steps[0].sequence, a);
    ExpectRows(steps[1].sequence, b);
  }
  EXPECT_TRUE(cache_->Step(steps).ok());
}

// The second of several maps fails, and the process stays usable.
TEST_F(KvCacheIssueTest, PyTorch188008TheSecondMapFailsAndOthersWork) {
  device_.driver()->FailCall(DriverCall::kMap, 2,
                             absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(cache_->Admit(40).ok());
  device_.driver()->ClearFaults();
  const Tokens tokens = TokensFrom(0, 40);
  ExpectRows(Written(tokens), tokens);
}

// One call that failed does not poison those after it.
TEST_F(KvCacheIssueTest, Vllm45565AFailedCallIsToldOnce) {
  const Tokens tokens = TokensFrom(0, 32);
  const SequenceId id = Written(tokens);
  device_.driver()->FailCall(1, absl::StatusCode::kInternal);
  EXPECT_FALSE(Step(cache_.get(), id, 64).ok());
  EXPECT_TRUE(Step(cache_.get(), id, 64).ok());
  ExpectRows(id, tokens);
}

// A group of layers fails after others were mapped: no page is lost.
TEST_F(KvCacheIssueTest, Surogate117AFailedGroupGivesBackTheOthers) {
  const uint64_t before = device_.memory()->GetStatistics().in_use.value();
  for (uint64_t n = 1; n <= 5; ++n) {
    device_.driver()->FailCall(DriverCall::kMap, n,
                               absl::StatusCode::kInternal);
    EXPECT_FALSE(cache_->Admit(40).ok());
    device_.driver()->ClearFaults();
    device_.memory()->Trim();
    EXPECT_EQ(device_.memory()->GetStatistics().in_use.value(), before);
  }
}

// Released while the owner sleeps: waking brings back the others' pages, and
// not these.
TEST_F(KvCacheIssueTest, TorchMemorySaver92AReleaseWhileAsleep) {
  const Tokens kept = TokensFrom(0, 64);
  const SequenceId stays = Written(kept);
  const SequenceId goes = Written(TokensFrom(900, 64));
  {
    auto section = QuiescentSection::Begin(device_.memory(), {});
    ASSERT_TRUE(section.ok()) << section.status();
    ASSERT_TRUE(device_.memory()->Sleep(*section, owner_).ok());
  }
  EXPECT_EQ(device_.live_pages(), 0u);
  EXPECT_TRUE(cache_->Release(goes, Fence()).ok());
  ASSERT_TRUE(device_.memory()->Wake(owner_).ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  ExpectRows(stays, kept);
  Taker taker(&device_, kPages);
  EXPECT_TRUE(taker.Take(kPages - 10).ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  ExpectRows(stays, kept);
}

// The only pages that fit wait for an event: an admission waits as well.
TEST_F(KvCacheIssueTest, PyTorch189504AnAdmissionWaitsForPagesThatCool) {
  const StreamId stream = *device_.driver()->CreateStream(DeviceId(0));
  const SequenceId full = Written(TokensFrom(0, 320));
  ASSERT_TRUE(cache_
                  ->Shrink(full, 0,
                           device_.LaunchLate(
                               stream, std::chrono::milliseconds(5), [] {}))
                  .ok());
  ASSERT_TRUE(Step(cache_.get(), Admit(cache_.get(), 0), 320).ok());
  EXPECT_TRUE(device_.driver()->DestroyStream(stream).ok());
}

// One long stream holds up what it uses, and nobody else.
TEST_F(KvCacheIssueTest, PyTorch71616AStreamThatStandsHoldsUpNobodyElse) {
  const SequenceId slow = Written(TokensFrom(0, 60));
  const SequenceId fast = Written(TokensFrom(100, 60));
  BlockedStream blocked(device_.driver());
  Release(cache_.get(), slow, blocked.Record());
  Release(cache_.get(), fast);
  const uint64_t mapping = device_.mapping_calls();
  Admit(cache_.get(), 60);
  EXPECT_EQ(device_.mapping_calls(), mapping);
  EXPECT_EQ(cache_->GetStatistics().adoptions, 1u);
  // What is free serves the next one, while the stream stands.
  Admit(cache_.get(), 60);
  EXPECT_EQ(cache_->GetStatistics().parked_regions, 1u);
}

}  // namespace
}  // namespace quire
