// The prefix index against a plain map of token vectors, and case by case.

#include "paging/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Tokens = std::vector<int32_t>;

PrefixIndexOptions BlocksOf(uint32_t tokens, int hash_bits = 128) {
  PrefixIndexOptions options;
  options.block_tokens = tokens;
  options.key = SipHashKey{1, 2};
  options.hash_bits = hash_bits;
  return options;
}

PrefixEntryId Add(PrefixIndex* index, const Tokens& tokens) {
  const PrefixEntryId entry = index->Add();
  index->Extend(entry, tokens);
  EXPECT_TRUE(index->CheckInvariants().ok()) << index->CheckInvariants();
  return entry;
}

std::vector<PrefixEntryId> Victims(
    const PrefixIndex& index, uint64_t wanted,
    const std::function<uint64_t(PrefixEntryId)>& pages_of = [](PrefixEntryId) {
      return 1;
    }) {
  std::vector<PrefixEntryId> entries;
  for (const PrefixIndex::Victim& victim : index.Victims(
           PageCount(wanted),
           [&](PrefixEntryId entry) { return PageCount(pages_of(entry)); })) {
    EXPECT_EQ(victim.pages, PageCount(pages_of(victim.entry)));
    entries.push_back(victim.entry);
  }
  return entries;
}

TEST(PrefixIndexTest, FindsTheLongestBeginningInWholeBlocks) {
  PrefixIndex index(BlocksOf(2));
  EXPECT_EQ(index.Match(Tokens{1, 2}).tokens, 0u);
  const PrefixEntryId a = Add(&index, {1, 2, 3, 4, 5});
  const PrefixEntryId b = Add(&index, {1, 2, 7, 8});
  EXPECT_EQ(index.TokensOf(a), 4u);
  EXPECT_EQ(index.blocks(), 3u);

  const auto both = index.Match(Tokens{1, 2, 9, 9});
  EXPECT_EQ(both.tokens, 2u);
  EXPECT_TRUE(both.holder == a || both.holder == b);
  EXPECT_THAT(both.exact, IsEmpty());
  const auto whole = index.Match(Tokens{1, 2, 3, 4, 5, 6});
  EXPECT_EQ(whole.tokens, 4u);
  EXPECT_EQ(whole.holder, a);
  EXPECT_THAT(whole.exact, ElementsAre(a));
  EXPECT_EQ(index.Match(Tokens{1}).tokens, 0u);
  EXPECT_EQ(index.Match(Tokens{2, 1, 3, 4}).tokens, 0u);
  // The tokens of a block are found below the block that they followed only.
  EXPECT_EQ(index.Match(Tokens{3, 4}).tokens, 0u);
}

TEST(PrefixIndexTest, AnEntryGrowsAndShrinks) {
  PrefixIndex index(BlocksOf(2));
  const PrefixEntryId a = Add(&index, {1, 2, 3});
  index.Extend(a, Tokens{1, 2, 3, 4, 5, 6});
  EXPECT_EQ(index.TokensOf(a), 6u);
  index.Extend(a, Tokens{1, 2});  // knows more already
  EXPECT_EQ(index.TokensOf(a), 6u);
  index.Truncate(a, 5);
  EXPECT_EQ(index.TokensOf(a), 4u);
  EXPECT_EQ(index.blocks(), 2u);
  EXPECT_EQ(index.Match(Tokens{1, 2, 3, 4, 5, 6}).tokens, 4u);
  const PrefixEntryId b = Add(&index, {1, 2, 3, 4});
  index.Truncate(a, 0);
  EXPECT_THAT(index.Match(Tokens{1, 2, 3, 4}).exact, ElementsAre(b));
  index.Remove(b);
  EXPECT_EQ(index.blocks(), 0u);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

TEST(PrefixIndexTest, ALikeEntryHoldsTheSameAndGoesItsOwnWay) {
  PrefixIndex index(BlocksOf(2));
  const PrefixEntryId a = Add(&index, {1, 2, 3, 4});
  index.SetPriority(a, 3, 10);
  const PrefixEntryId b = index.AddLike(a);
  EXPECT_EQ(index.TokensOf(b), 4u);
  EXPECT_EQ(index.blocks(), 2u);
  EXPECT_THAT(index.Match(Tokens{1, 2, 3, 4}).exact, ElementsAre(a, b));
  index.Extend(b, Tokens{1, 2, 3, 4, 5, 6});
  index.Remove(a);
  EXPECT_EQ(index.Match(Tokens{1, 2, 3, 4}).holder, b);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
  const PrefixEntryId c = Add(&index, {9, 9});
  index.Unpin(b);
  index.Unpin(c);
  EXPECT_THAT(Victims(index, 9), ElementsAre(c, b));
  index.AdvanceClock(10);
  EXPECT_THAT(Victims(index, 9), ElementsAre(b, c));
}

TEST(PrefixIndexTest, VictimsComeByPriorityThenByLastUse) {
  PrefixIndex index(BlocksOf(1));
  const PrefixEntryId a = Add(&index, {1});
  const PrefixEntryId b = Add(&index, {2});
  const PrefixEntryId c = Add(&index, {3});
  const PrefixEntryId d = Add(&index, {4});
  EXPECT_THAT(Victims(index, 9), IsEmpty());  // all pinned
  for (const PrefixEntryId entry : {d, c, b, a}) index.Unpin(entry);
  EXPECT_THAT(Victims(index, 9), ElementsAre(a, b, c, d));
  index.Touch(b);
  index.SetPriority(a, 2);
  index.SetPriority(d, -1);
  EXPECT_THAT(Victims(index, 9), ElementsAre(d, c, b, a));
  index.Pin(c);
  index.Pin(c);
  index.Unpin(c);
  EXPECT_THAT(Victims(index, 9), ElementsAre(d, b, a));
  index.Unpin(c);
  EXPECT_THAT(Victims(index, 2), ElementsAre(d, c));
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

TEST(PrefixIndexTest, APriorityEndsAtItsTime) {
  PrefixIndex index(BlocksOf(1));
  const PrefixEntryId a = Add(&index, {1});
  const PrefixEntryId b = Add(&index, {2});
  const PrefixEntryId c = Add(&index, {3});
  for (const PrefixEntryId entry : {a, b, c}) index.Unpin(entry);
  index.SetPriority(a, 5, 100);
  index.SetPriority(b, 5, 200);
  EXPECT_THAT(Victims(index, 9), ElementsAre(c, a, b));
  index.AdvanceClock(99);
  EXPECT_THAT(Victims(index, 9), ElementsAre(c, a, b));
  index.AdvanceClock(100);
  EXPECT_THAT(Victims(index, 9), ElementsAre(a, c, b));
  index.AdvanceClock(50);  // does not go back
  index.SetPriority(a, 5, 60);
  EXPECT_THAT(Victims(index, 9), ElementsAre(a, c, b));
  index.AdvanceClock(1000);
  EXPECT_THAT(Victims(index, 9), ElementsAre(a, b, c));
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

// Of entries that have lost rows, their first tokens are found, and their end
// where it is kept.
TEST(PrefixIndexTest, WhatIsLimitedIsFoundAtItsBeginningAndAtItsEnd) {
  PrefixIndex index(BlocksOf(1));
  const PrefixEntryId a = Add(&index, {1, 2, 3, 4});
  index.Limit(a, 1);
  PrefixIndex::Found found = index.Match({{1, 2, 3, 4, 5}});
  EXPECT_EQ(found.tokens, 1u);
  EXPECT_EQ(found.known, 4u);
  EXPECT_EQ(found.holder, a);
  EXPECT_FALSE(found.at_end);
  EXPECT_THAT(found.exact, IsEmpty());
  EXPECT_EQ(index.FoundTokensOf(a), 1u);
  index.KeepEnd(a);
  found = index.Match({{1, 2, 3, 4, 5}});
  EXPECT_EQ(found.tokens, 4u);
  EXPECT_TRUE(found.at_end);
  EXPECT_EQ(index.FoundTokensOf(a), 4u);
  EXPECT_EQ(index.Match({{1, 2, 3}}).tokens, 1u);
  // Who has it all is found first, and who parts from it shows where.
  const PrefixEntryId b = Add(&index, {1, 2, 3, 4, 6});
  EXPECT_EQ(index.Match({{1, 2, 3}}).holder, b);
  EXPECT_FALSE(index.Match({{1, 2, 3, 4, 5}}).at_end);
  index.Remove(b);
  // An end that moves is kept no longer.
  index.Extend(a, {{1, 2, 3, 4, 7}});
  EXPECT_EQ(index.FoundTokensOf(a), 1u);
  index.Limit(a, 9);
  EXPECT_EQ(index.FoundTokensOf(a), 5u);
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

TEST(PrefixIndexTest, WhatIsExpectedGoesLastAndTheLatestTurnFirst) {
  PrefixIndex index(BlocksOf(1));
  const PrefixEntryId a = Add(&index, {1, 5});
  const PrefixEntryId b = Add(&index, {2});
  const PrefixEntryId c = Add(&index, {3, 4, 5});
  const PrefixEntryId d = Add(&index, {4});
  for (const PrefixEntryId entry : {a, b, c, d}) index.Unpin(entry);
  index.Expect(a, 2, 20);
  index.Expect(b, 1, 30);
  // Half of C: as a whole it is what nobody expects.
  index.Expect(c, 2, 10);
  EXPECT_EQ(index.ExpectedTokens(c), 2u);
  EXPECT_THAT(Victims(index, 9), ElementsAre(c, d, b, a));
  index.Truncate(c, 2);
  EXPECT_THAT(Victims(index, 9), ElementsAre(d, b, a, c));
  // More tokens count before a sooner turn, and that before a later one.
  index.Expect(c, 1, 1);
  index.Expect(c, 2, 40);
  index.Expect(b, 1, 15);
  EXPECT_THAT(Victims(index, 9), ElementsAre(d, a, b, c));
  index.SetPriority(d, 1);
  EXPECT_THAT(Victims(index, 9), ElementsAre(a, b, c, d));
  // Turns that are over.
  index.AdvanceTurn(11);
  EXPECT_EQ(index.ExpectedTokens(c), 0u);
  EXPECT_THAT(Victims(index, 9), ElementsAre(c, a, b, d));
  index.Remove(a);
  index.AdvanceTurn(1000);
  EXPECT_THAT(Victims(index, 9), ElementsAre(b, c, d));
  EXPECT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();
}

// kvcached's measurement: where every eighth block of a page stays in use, the
// least recently used blocks free next to nothing. What frees no page is no
// victim.
TEST(PrefixIndexTest, Kvcached359VictimsAreChosenForThePagesTheyFree) {
  PrefixIndex index(BlocksOf(1));
  std::map<PrefixEntryId, uint64_t> pages;
  std::vector<PrefixEntryId> freeing;
  for (int32_t i = 0; i < 64; ++i) {
    const PrefixEntryId entry = Add(&index, {i});
    index.Unpin(entry);
    pages[entry] = i % 8 == 7 ? 3 : 0;
    if (i % 8 == 7) freeing.push_back(entry);
  }
  const auto pages_of = [&](PrefixEntryId entry) { return pages[entry]; };
  EXPECT_THAT(Victims(index, 4, pages_of), ElementsAre(freeing[0], freeing[1]));
  EXPECT_EQ(Victims(index, 100, pages_of), freeing);
}

TEST(PrefixIndexTest, TheHashIsNeverTrusted) {
  // One hash for everything: whatever comes second is not indexed, and never
  // taken for what came first.
  PrefixIndex index(BlocksOf(2, 0));
  const PrefixEntryId a = Add(&index, {1, 2, 3, 4});
  EXPECT_EQ(index.TokensOf(a), 2u);
  const PrefixEntryId b = Add(&index, {5, 6});
  EXPECT_EQ(index.TokensOf(b), 0u);
  EXPECT_EQ(index.Match(Tokens{5, 6}).tokens, 0u);
  EXPECT_EQ(index.Match(Tokens{1, 2, 1, 2}).tokens, 2u);
  index.Remove(a);
  index.Extend(b, Tokens{5, 6});
  EXPECT_THAT(index.Match(Tokens{5, 6}).exact, ElementsAre(b));
}

TEST(PrefixIndexTest, EqualBlocksAreToldApartByTheirDepth) {
  PrefixIndex index(PrefixIndexOptions{});
  EXPECT_EQ(index.block_tokens(), 16u);
  Tokens tokens(64);
  const PrefixEntryId a = Add(&index, tokens);  // four blocks of zeros
  EXPECT_EQ(index.blocks(), 4u);
  EXPECT_EQ(index.Match(Tokens(40)).tokens, 32u);
  EXPECT_EQ(index.Match(Tokens(40)).holder, a);
}

// ---- Against a plain map ----------------------------------------------------

struct Shadow {
  Tokens tokens;  // whole blocks
  int pins = 1;
  int32_t priority = 0;
  uint64_t until = UINT64_MAX;
  uint64_t used = 0;
  uint64_t expected = 0;
  uint64_t turn = 0;
  uint64_t limit = UINT64_MAX;
  bool end_kept = false;
};

class PrefixIndexModelTest : public ::testing::TestWithParam<int> {};

TEST_P(PrefixIndexModelTest, AgreesWithAMapOfTokenVectors) {
  constexpr uint32_t kBlock = 3;
  PrefixIndex index(BlocksOf(kBlock));
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  const auto below = [&](uint64_t n) { return random() % n; };
  std::map<PrefixEntryId, Shadow> shadows;
  uint64_t clock = 0;
  uint64_t now = 0;  // the turn
  uint64_t uses = 0;

  const auto random_tokens = [&] {
    Tokens tokens;
    if (!shadows.empty() && below(3) != 0)
      tokens = std::next(shadows.begin(),
                         static_cast<std::ptrdiff_t>(below(shadows.size())))
                   ->second.tokens;
    tokens.resize(below(tokens.size() + 1));
    for (uint64_t more = below(12); more > 0; --more)
      tokens.push_back(static_cast<int32_t>(below(2)) - 1);
    return tokens;
  };
  const auto whole = [&](Tokens tokens) {
    tokens.resize(tokens.size() / kBlock * kBlock);
    return tokens;
  };
  const auto common = [&](const Tokens& a, const Tokens& b) {
    const size_t size = std::min(a.size(), b.size());
    const auto differ = std::mismatch(
        a.begin(), a.begin() + static_cast<std::ptrdiff_t>(size), b.begin());
    return static_cast<uint64_t>(differ.first - a.begin()) / kBlock * kBlock;
  };

  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE(round);
    const auto any =
        shadows.empty()
            ? shadows.end()
            : std::next(shadows.begin(),
                        static_cast<std::ptrdiff_t>(below(shadows.size())));
    switch (any == shadows.end() ? 0 : below(14)) {
      case 0: {
        if (shadows.size() == 40) break;
        const Tokens tokens = random_tokens();
        const PrefixEntryId id = index.Add();
        index.Extend(id, tokens);
        shadows[id] = {.tokens = whole(tokens), .used = ++uses};
        break;
      }
      case 1:
        index.Remove(any->first);
        shadows.erase(any);
        break;
      case 2: {
        Tokens tokens = any->second.tokens;
        for (uint64_t more = below(8); more > 0; --more)
          tokens.push_back(static_cast<int32_t>(below(2)) - 1);
        index.Extend(any->first, tokens);
        tokens = whole(tokens);
        any->second.end_kept &= tokens.size() == any->second.tokens.size();
        any->second.tokens = tokens;
        break;
      }
      case 3: {
        const uint64_t length = below(any->second.tokens.size() + 2);
        index.Truncate(any->first, length);
        if (length < any->second.tokens.size()) {
          any->second.tokens.resize(length);
          any->second.tokens = whole(any->second.tokens);
          any->second.end_kept = false;
        }
        break;
      }
      case 12:
        any->second.limit = below(2) == 0 ? UINT64_MAX : below(20);
        index.Limit(any->first, any->second.limit);
        break;
      case 13:
        index.KeepEnd(any->first);
        any->second.end_kept = true;
        break;
      case 4:
        index.Pin(any->first);
        ++any->second.pins;
        break;
      case 5:
      case 6:
        if (any->second.pins == 0) break;
        index.Unpin(any->first);
        --any->second.pins;
        break;
      case 7:
        index.Touch(any->first);
        any->second.used = ++uses;
        break;
      case 8:
        any->second.priority = static_cast<int32_t>(below(5)) - 2;
        any->second.until = below(2) == 0 ? UINT64_MAX : clock + below(50);
        index.SetPriority(any->first, any->second.priority, any->second.until);
        break;
      case 9:
        clock += below(10);
        index.AdvanceClock(clock);
        break;
      case 10: {
        Shadow& shadow = any->second;
        const uint64_t most = below(shadow.tokens.size() + 3);
        const uint64_t turn = now + below(40);
        index.Expect(any->first, most, turn);
        const uint64_t tokens = std::min<uint64_t>(most, shadow.tokens.size());
        if (tokens > shadow.expected ||
            (tokens == shadow.expected && tokens > 0 && turn < shadow.turn)) {
          shadow.expected = tokens;
          shadow.turn = turn;
        }
        break;
      }
      case 11:
        now += below(6);
        index.AdvanceTurn(now);
        for (auto& [id, shadow] : shadows) {
          if (shadow.turn < now) shadow.expected = 0;
        }
        break;
    }
    ASSERT_TRUE(index.CheckInvariants().ok()) << index.CheckInvariants();

    const Tokens prompt = random_tokens();
    // What an entry has of a prompt: its first tokens, or all up to its end.
    const auto found_whole = [&](const Shadow& shadow) {
      return std::min(common(prompt, shadow.tokens),
                      shadow.limit / kBlock * kBlock);
    };
    const auto found_at_end = [&](const Shadow& shadow) -> uint64_t {
      const uint64_t size = shadow.tokens.size();
      return shadow.end_kept && common(prompt, shadow.tokens) == size ? size
                                                                      : 0;
    };
    uint64_t longest = 0;
    uint64_t longest_whole = 0;
    uint64_t known = 0;
    for (const auto& [id, shadow] : shadows) {
      known = std::max(known, common(prompt, shadow.tokens));
      longest_whole = std::max(longest_whole, found_whole(shadow));
      longest = std::max({longest, longest_whole, found_at_end(shadow)});
    }
    const PrefixIndex::Found found = index.Match(prompt);
    ASSERT_EQ(found.tokens, longest);
    ASSERT_EQ(found.known, known);
    ASSERT_EQ(found.at_end, longest > longest_whole);
    std::vector<PrefixEntryId> exact;
    if (longest > 0) {
      const Shadow& holder = shadows.at(found.holder);
      ASSERT_EQ(found.at_end ? found_at_end(holder) : found_whole(holder),
                longest);
      for (const auto& [id, shadow] : shadows) {
        if (shadow.tokens.size() == longest && found_whole(shadow) == longest)
          exact.push_back(id);
      }
    }
    ASSERT_THAT(found.exact, ::testing::UnorderedElementsAreArray(exact));

    // A victim gives as many pages as it has tokens, less 3.
    std::vector<std::pair<PrefixEntryId, Shadow>> unpinned;
    for (const auto& [id, shadow] : shadows) {
      const uint64_t size = shadow.tokens.size();
      ASSERT_EQ(index.TokensOf(id), size);
      ASSERT_EQ(index.FoundTokensOf(id),
                shadow.end_kept
                    ? size
                    : std::min(size, shadow.limit / kBlock * kBlock));
      if (shadow.pins == 0 && shadow.tokens.size() > 3)
        unpinned.emplace_back(id, shadow);
    }
    const auto priority = [&](const Shadow& shadow) {
      return shadow.until <= clock ? 0 : shadow.priority;
    };
    const auto place = [&](const Shadow& shadow) {
      const bool expected =
          shadow.expected > 0 && shadow.tokens.size() <= shadow.expected;
      return std::tuple(priority(shadow),
                        expected ? UINT64_MAX - shadow.turn : 0, shadow.used);
    };
    std::sort(unpinned.begin(), unpinned.end(),
              [&](const auto& a, const auto& b) {
                return place(a.second) < place(b.second);
              });
    const uint64_t wanted = below(20);
    std::vector<PrefixEntryId> expected;
    uint64_t given = 0;
    for (const auto& [id, shadow] : unpinned) {
      if (given >= wanted) break;
      expected.push_back(id);
      given += shadow.tokens.size() - 3;
    }
    ASSERT_EQ(Victims(index, wanted,
                      [&](PrefixEntryId id) {
                        const size_t size = shadows.at(id).tokens.size();
                        return size > 3 ? size - 3 : 0;
                      }),
              expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PrefixIndexModelTest,
                         ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace quire
