// Cached prefixes whose last pages are packed together: more of them are kept,
// their rows are those that were written, and they are given up in order.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paging/kv_cache_share_testing.h"

namespace quire {
namespace {

// With a page of 4 KiB and a layer a row, a token has 128 bytes in each of five
// groups: nine tokens are more than a quarter of five pages.
constexpr uint64_t kTokens = 9;
constexpr uint64_t kKnown = 8;  // in blocks of 4

class KvCacheTailsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kPages = 100;

  explicit KvCacheTailsTest(uint32_t layers_per_row = 1) {
    KvCacheOptions options = CacheOptions(320);
    options.max_sequences = 64;
    options.prefix_block_tokens = 4;
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
    options.stream = stream_;
    cache_ = MakeCache(&device_, layers_per_row, options);
  }
  ~KvCacheTailsTest() override {
    cache_.reset();
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }

  static Tokens TextOf(int i) { return TokensFrom(1000 * i, kTokens); }
  // The sequence is there, with rows that are checked and completed.
  SequenceId Prompt(const Tokens& tokens, uint64_t* cached = nullptr) {
    const PromptAdmission admission =
        AdmitPrompt(cache_.get(), tokens, {.stream = stream_});
    EXPECT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    CheckRows(admission.sequence, tokens, admission.cached_tokens);
    if (cached != nullptr) *cached = admission.cached_tokens;
    WriteAndPublish(cache_.get(), admission.sequence, tokens,
                    admission.cached_tokens);
    return admission.sequence;
  }
  void CheckRows(SequenceId id, Tokens tokens, uint64_t count) {
    tokens.resize(count);
    EXPECT_EQ(TokenRows(*cache_, id).FirstWrong(tokens), count);
  }
  // Keeps `count` prefixes of one text each.
  void Keep(int count) {
    for (int i = 0; i < count; ++i) {
      const SequenceId id = Prompt(TextOf(i));
      ASSERT_TRUE(cache_->Shrink(id, kKnown, Fence()).ok());
      Release(cache_.get(), id);
    }
  }
  void TakeOneByOne(Taker* other, uint64_t pages) {
    for (uint64_t taken = 1; taken <= pages; ++taken) {
      ASSERT_TRUE(other->Take(taken).ok());
      Check();
    }
  }
  uint64_t packed_pages() {
    return cache_->GetStatistics().packed_tails.value() / 4096;
  }
  void Check() {
    EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    EXPECT_TRUE(device_.memory()->CheckInvariants().ok())
        << device_.memory()->CheckInvariants();
  }

  TestDevice device_{kPages};
  StreamId stream_;
  std::unique_ptr<KvCache> cache_;
};

// 20 prefixes with a quarter of a page in each of five groups: a hundred pages,
// or 25.
TEST_F(KvCacheTailsTest, ShortPrefixesShareTheirLastPages) {
  Keep(20);
  EXPECT_EQ(device_.live_pages(), kPages);
  Taker other(&device_, kPages);
  TakeOneByOne(&other, 75);
  const KvCacheStatistics statistics = cache_->GetStatistics();
  EXPECT_EQ(statistics.prefixes_evicted, 0u);
  EXPECT_EQ(statistics.tails_packed, 100u);
  EXPECT_EQ(packed_pages(), 25u);
  EXPECT_EQ(statistics.parked, statistics.packed_tails);
  EXPECT_EQ(statistics.cached_prefixes, statistics.packed_tails);
  EXPECT_EQ(statistics.reclaimable, statistics.packed_tails);
}

TEST_F(KvCacheTailsTest, EachIsFoundWithItsRows) {
  Keep(20);
  {
    Taker other(&device_, kPages);
    TakeOneByOne(&other, 75);
  }
  for (int i = 19; i >= 0; --i) {
    SCOPED_TRACE(i);
    uint64_t cached = 0;
    const SequenceId id = Prompt(TextOf(i), &cached);
    EXPECT_EQ(cached, kKnown);
    Check();
    // It is a sequence as any other: its tail is its own again.
    ASSERT_TRUE(Step(cache_.get(), id, 40).ok());
    CheckRows(id, TextOf(i), kTokens);
    Release(cache_.get(), id);
  }
}

// A prompt that has less of a packed prefix shares it: it stays packed.
TEST_F(KvCacheTailsTest, APartOfAPackedPrefixIsShared) {
  Keep(20);
  Taker other(&device_, kPages);
  TakeOneByOne(&other, 60);
  const uint64_t packed = packed_pages();
  ASSERT_GT(packed, 0u);
  Tokens half = TextOf(0);
  half.resize(4);
  uint64_t cached = 0;
  const SequenceId id = Prompt(Concat(half, TokensFrom(77000, 5)), &cached);
  EXPECT_EQ(cached, 4u);
  EXPECT_GE(packed_pages(), packed);
  Check();
  Release(cache_.get(), id);
}

// Without a stream nothing is copied: rows on full pages are found, those in
// the store are not, and stay for a prompt with one.
TEST_F(KvCacheTailsTest, WithoutAStreamFullPagesAreFound) {
  const Tokens text = TokensFrom(5, 41);  // a page, and a quarter
  Keep(15);
  const SequenceId first = Prompt(text);
  ASSERT_TRUE(cache_->Shrink(first, 40, Fence()).ok());
  Release(cache_.get(), first);
  Taker other(&device_, kPages);
  for (uint64_t pages = 1; cache_->GetStatistics().tails_packed < 80; ++pages)
    ASSERT_TRUE(other.Take(pages).ok());
  const PromptAdmission admission =
      AdmitPrompt(cache_.get(), text, {.stream = StreamId()});
  EXPECT_EQ(admission.cached_tokens, 32u);
  CheckRows(admission.sequence, text, 32);
  Release(cache_.get(), admission.sequence);
  uint64_t cached = 0;
  Release(cache_.get(), Prompt(text, &cached));
  EXPECT_EQ(cached, 40u);
  Check();
}

// What was used last is there last, packed or not.
TEST_F(KvCacheTailsTest, TheLeastRecentlyUsedIsGivenUpFirst) {
  Keep(20);
  {
    Taker other(&device_, kPages);
    TakeOneByOne(&other, 90);
    // Five pages hold four of these.
    EXPECT_EQ(cache_->GetStatistics().prefixes_evicted, 12u);
    EXPECT_EQ(packed_pages(), 10u);
    EXPECT_EQ(cache_->GetStatistics().reclaimable, KiB(4 * 10));
  }
  for (int i = 0; i < 20; ++i) {
    uint64_t cached = 0;
    Release(cache_.get(), Prompt(TextOf(i), &cached));
    EXPECT_EQ(cached, i < 12 ? 0 : kKnown) << i;
  }
  Taker other(&device_, kPages);
  EXPECT_TRUE(other.Take(kPages).ok());
  EXPECT_EQ(packed_pages(), 0u);
}

// A page that a copy still reads goes when that is over.
TEST_F(KvCacheTailsTest, APageThatIsReadIsNotGivenAway) {
  Keep(20);
  Taker other(&device_, kPages);
  TakeOneByOne(&other, 70);
  BlockedStream blocked(device_.driver());
  const PromptAdmission admission =
      AdmitPrompt(cache_.get(), TextOf(3), {.stream = blocked.stream()});
  EXPECT_EQ(admission.cached_tokens, kKnown);
  const uint64_t packed = cache_->GetStatistics().tails_packed;
  // Nobody writes to the store, and what is at once to be had is not there.
  EXPECT_EQ(device_.memory()->Trim().pages_freed, PageCount(0));
  EXPECT_EQ(cache_->GetStatistics().tails_packed, packed);
  Check();
  blocked.Unblock();
  CheckRows(admission.sequence, TextOf(3), kKnown);
  Release(cache_.get(), admission.sequence);
  Check();
}

// A prompt for which pages are short has tails packed before it takes the
// region of a prefix.
TEST_F(KvCacheTailsTest, AnAdmissionPacksBeforeItGivesUp) {
  Keep(20);
  const SequenceId id = Prompt(TokensFrom(500000, 64));  // ten pages
  EXPECT_EQ(cache_->GetStatistics().prefixes_evicted, 0u);
  EXPECT_GT(cache_->GetStatistics().tails_packed, 0u);
  Release(cache_.get(), id);
  Check();
}

// Rows that straddle pages.
class KvCacheLongRowTailsTest : public KvCacheTailsTest {
 protected:
  KvCacheLongRowTailsTest() : KvCacheTailsTest(5) {}
};

// Eight tokens of 640 bytes: a page and a quarter.
TEST_F(KvCacheLongRowTailsTest, RowsThatStraddleFullPagesAndTailsAreWhole) {
  Keep(45);
  EXPECT_EQ(device_.live_pages(), 90u);
  {
    Taker other(&device_, kPages);
    TakeOneByOne(&other, 10 + 32);
    EXPECT_EQ(cache_->GetStatistics().prefixes_evicted, 0u);
    EXPECT_EQ(packed_pages(), 11u);
  }
  // In part: six tokens end on the first page, or on the tail's.
  for (const size_t common : {4u, 6u, 7u}) {
    Tokens text = TextOf(1);
    text.resize(common);
    uint64_t cached = 0;
    const SequenceId id = Prompt(Concat(text, TokensFrom(9, 9)), &cached);
    EXPECT_EQ(cached, 4u);
    ASSERT_TRUE(cache_->Shrink(id, 0, Fence()).ok());
    Release(cache_.get(), id);
  }
  for (int i = 0; i < 45; ++i) {
    uint64_t cached = 0;
    Release(cache_.get(), Prompt(TextOf(i), &cached));
    EXPECT_EQ(cached, kKnown) << i;
  }
  Check();
}

// Every call is refused once: while tails are packed, and while they are
// copied back. No prefix is found with rows that are not its own.
TEST(KvCacheTailsFaultTest, ARefusalLosesPrefixesAtMost) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kResourceExhausted, absl::StatusCode::kInternal}) {
    for (const bool unpack : {false, true}) {
      for (uint64_t n = 1;; ++n) {
        SCOPED_TRACE(std::string(unpack ? "unpacking, " : "packing, ") +
                     std::to_string(n));
        TestDevice device(20);
        KvCacheOptions options = CacheOptions(320);
        options.prefix_block_tokens = 4;
        const StreamId stream = *device.driver()->CreateStream(DeviceId(0));
        const auto cache = MakeCache(&device, 1, options);
        Taker other(&device, 20);
        for (int i = 0; i < 4; ++i) {
          const Tokens text = TokensFrom(1000 * i, 8);
          const SequenceId id =
              AdmitPrompt(cache.get(), text, {.stream = stream}).sequence;
          WriteAndPublish(cache.get(), id, text);
          Release(cache.get(), id);
        }
        const auto pack = [&] { return other.Take(3); };
        const auto admit = [&] {
          const Tokens text = TokensFrom(0, 9);
          const auto admission = cache->AdmitPrompt(text, {.stream = stream});
          device.driver()->ClearFaults();
          if (!admission.ok()) return admission.status();
          EXPECT_TRUE(device.driver()->SynchronizeStream(stream).ok());
          Tokens there = text;
          there.resize(admission->cached_tokens);
          EXPECT_EQ(TokenRows(*cache, admission->sequence).FirstWrong(there),
                    there.size());
          WriteAndPublish(cache.get(), admission->sequence, text, there.size());
          return cache->Release(admission->sequence, Fence());
        };
        if (unpack) {
          ASSERT_TRUE(pack().ok());
          ASSERT_GT(cache->GetStatistics().tails_packed, 0u);
        }
        device.driver()->FailCall(n, code);
        const absl::Status status = unpack ? admit() : pack();
        const bool fired = device.driver()->faults_fired() > 0;
        device.driver()->ClearFaults();
        EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
        EXPECT_TRUE(device.memory()->CheckInvariants().ok())
            << device.memory()->CheckInvariants();
        if (!status.ok()) {
          EXPECT_TRUE(fired) << status;
          EXPECT_TRUE((unpack ? admit() : pack()).ok());
        }
        for (int i = 3; i >= 0; --i) {
          const Tokens text = TokensFrom(1000 * i, 9);
          const auto admission = cache->AdmitPrompt(text, {.stream = stream});
          ASSERT_TRUE(admission.ok()) << admission.status();
          EXPECT_TRUE(device.driver()->SynchronizeStream(stream).ok());
          Tokens there = text;
          there.resize(admission->cached_tokens);
          EXPECT_EQ(TokenRows(*cache, admission->sequence).FirstWrong(there),
                    there.size());
          if (!fired) {
            EXPECT_EQ(there.size(), 8u);
          }
          Release(cache.get(), admission->sequence);
        }
        EXPECT_TRUE(device.driver()->DestroyStream(stream).ok());
        if (HasFailure()) return;
        if (!fired) break;
      }
    }
  }
}

}  // namespace
}  // namespace quire
