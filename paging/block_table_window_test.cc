// Windows, sinks and limits in the block-table cache: case by case, and at
// random against a model of what is kept and the contiguous cache beside it.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "paging/block_table_testing.h"
#include "paging/kv_cache_testing.h"
#include "quire/paging/block_table_cache.h"

namespace quire {
namespace {

constexpr uint64_t kMaxTokens = 120;
constexpr uint32_t kNone = UINT32_MAX;  // in a table

// Four layers, every second one with a window.
KvLayout WindowLayout(uint64_t window, uint64_t sinks, uint32_t layers_per_row,
                      bool all_alike = false) {
  const KvLayerKind full = {2, 8, 8, KvDType::kF32};
  KvLayerKind windowed = full;
  windowed.window = window;
  windowed.sinks = sinks;
  KvModelShape shape;
  shape.layers = {windowed, all_alike ? windowed : full, windowed,
                  all_alike ? windowed : full};
  return *KvLayout::Create(shape, layers_per_row);
}

class BlockTableWindowTest : public BlockTableFixture {
 protected:
  BlockTableWindowTest() : BlockTableFixture(64, 64, kMaxTokens) {}
  absl::Status Step(SequenceId sequence, uint64_t length) {
    const SequenceStep step = {sequence, length};
    return BlockTableFixture::Step(std::span(&step, 1));
  }
  std::vector<uint32_t> Table(SequenceId sequence, uint32_t layer) const {
    const uint64_t tokens = *cache_->Length(sequence);
    const uint32_t* const table = cache_->View(sequence, layer)->block_table;
    return {table, table + (tokens + 3) / 4};
  }
  // The places of a table that have a block.
  std::vector<size_t> Places(SequenceId sequence, uint32_t layer) const {
    const std::vector<uint32_t> table = Table(sequence, layer);
    std::vector<size_t> places;
    for (size_t i = 0; i < table.size(); ++i)
      if (table[i] != kNone) places.push_back(i);
    return places;
  }
  uint64_t free() const { return cache_->GetStatistics().free_blocks; }
};

using PlaceList = std::vector<size_t>;

TEST_F(BlockTableWindowTest, LayersWithAWindowGiveBackWhatIsBehindIt) {
  Make(WindowLayout(10, 0, 1));
  const SequenceId sequence = *cache_->Admit(40);
  // Ten blocks for each of two tables.
  EXPECT_EQ(free(), 44u);
  EXPECT_EQ(cache_->View(sequence, 0)->window, 10u);
  EXPECT_EQ(cache_->View(sequence, 1)->window, 0u);
  ASSERT_TRUE(Step(sequence, 41).ok());
  EXPECT_EQ(free(), 42u);  // nothing goes before the batch has ended
  cache_->EndBatch(Fence());
  // Token 41 sees tokens 32 to 41.
  ASSERT_TRUE(Step(sequence, 42).ok());
  EXPECT_EQ(Places(sequence, 0), (PlaceList{8, 9, 10}));
  EXPECT_EQ(Places(sequence, 2), Places(sequence, 0));
  EXPECT_EQ(Places(sequence, 1).size(), 11u);
  EXPECT_EQ(free(), 50u);
  EXPECT_EQ(cache_->GetStatistics().dropped_blocks, 8u);
  EXPECT_EQ(*cache_->FreedByRelease(sequence),
            Bytes(14 * cache_->Use().capacity.value() / 64));
  // Two more of 25 tokens, a block of each table for every 4 of them.
  EXPECT_EQ(cache_->AdmissibleTokens(), 100u);
  ASSERT_TRUE(cache_->Release(sequence, Fence()).ok());
  EXPECT_EQ(free(), 64u);
}

TEST_F(BlockTableWindowTest, SinksAndALimitOfAllLayers) {
  options_.limit = {.max_tokens = 12, .sinks = 5};
  Make(WindowLayout(30, 0, 1));
  const SequenceId sequence = *cache_->Admit(29);
  cache_->EndBatch(Fence());
  ASSERT_TRUE(Step(sequence, 30).ok());
  // Seven tokens behind five sinks, of all layers: 23 to 29.
  EXPECT_EQ(Places(sequence, 0), (PlaceList{0, 1, 5, 6, 7}));
  EXPECT_EQ(Table(sequence, 1), Table(sequence, 0));
  EXPECT_EQ(free(), 59u);
  EXPECT_EQ(cache_->View(sequence, 1)->window, 7u);
  EXPECT_EQ(cache_->View(sequence, 1)->sinks, 5u);
  options_.limit = {.max_tokens = 4, .sinks = 4};
  EXPECT_EQ(
      BlockTableCache::Create(device_.memory(), WindowLayout(8, 0, 1), options_)
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(BlockTableWindowTest, ASequenceGoesBackAsFarAsItsWindow) {
  Make(WindowLayout(10, 0, 2));
  const SequenceId sequence = *cache_->Admit(40);
  cache_->EndBatch(Fence());
  ASSERT_TRUE(Step(sequence, 41).ok());
  // From 38 tokens on the next one sees no token before 29: block 7 is there.
  EXPECT_EQ(Places(sequence, 0).front(), 7u);
  EXPECT_EQ(cache_->Shrink(sequence, 36, Fence()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Step(sequence, 36).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*cache_->Length(sequence), 41u);
  ASSERT_TRUE(cache_->Shrink(sequence, 38, Fence()).ok());
  EXPECT_EQ(Places(sequence, 0), (PlaceList{7, 8, 9}));
  ASSERT_TRUE(Step(sequence, 60).ok());
}

TEST_F(BlockTableWindowTest, WhatAKernelMayReadIsNotUsedAgain) {
  options_.blocks = 11;
  Make(WindowLayout(10, 0, 2, /*all_alike=*/true));
  BlockedStream kernels(device_.driver());
  const SequenceId sequence = *cache_->Admit(40);
  cache_->EndBatch(kernels.Record());
  ASSERT_TRUE(Step(sequence, 41).ok());
  // Seven blocks are free and cool; an admission of two waits for them.
  EXPECT_EQ(free(), 7u);
  std::thread release([&] { kernels.Unblock(); });
  const SequenceId other = *cache_->Admit(8);
  release.join();
  for (const uint32_t block : Table(other, 0))
    EXPECT_FALSE(std::ranges::count(Table(sequence, 0), block)) << block;
}

// As vLLM's hybrid manager has it: what is behind a window is found until its
// block is used again, and a prompt goes on wherever those of one window are
// left.
TEST_F(BlockTableWindowTest, APromptGoesOnWhereTheBlocksOfAWindowAreLeft) {
  Make(WindowLayout(10, 0, 1));
  std::vector<int32_t> text(30, 7);
  const SequenceId first = cache_->AdmitPrompt(text)->sequence;
  ASSERT_TRUE(cache_->Publish(first, text).ok());
  cache_->EndBatch(Fence());
  ASSERT_TRUE(Step(first, 31).ok());
  // Tokens 21 on are seen. 8 + 3 blocks in use, and of the rest seven kept.
  EXPECT_EQ(Places(first, 0), (PlaceList{5, 6, 7}));
  EXPECT_EQ(cache_->GetStatistics().kept_blocks, 5u);
  const PromptAdmission again = *cache_->AdmitPrompt(text);
  EXPECT_EQ(again.cached_tokens, 28u);
  // The token behind them sees 19 on.
  EXPECT_EQ(Places(again.sequence, 0), (PlaceList{4, 5, 6, 7}));
  EXPECT_EQ(Places(again.sequence, 1).size(), 8u);
  ASSERT_TRUE(cache_->Release(again.sequence, Fence()).ok());
  // Half of the prompt: tokens 7 to 15, and those before are not looked for.
  const PromptAdmission half = *cache_->AdmitPrompt(
      std::vector<int32_t>(text.begin(), text.begin() + 17));
  EXPECT_EQ(half.cached_tokens, 16u);
  EXPECT_EQ(Places(half.sequence, 0), (PlaceList{1, 2, 3, 4}));
  ASSERT_TRUE(cache_->Release(half.sequence, Fence()).ok());
  // All blocks but one are used for something else, and those that the first
  // sequence has: of the layers with the window tokens 20 to 31, where the
  // token behind 28 sees 19 on.
  const SequenceId other = *cache_->Admit(4 * (free() / 2));
  EXPECT_LE(cache_->GetStatistics().kept_blocks, 1u);
  ASSERT_TRUE(cache_->Release(other, Fence()).ok());
  EXPECT_EQ(cache_->AdmitPrompt(text)->cached_tokens, 0u);
  ASSERT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
}

// ---- At random --------------------------------------------------------------

struct Setting {
  uint64_t window;
  uint64_t sinks;
  KvTokenLimit limit;
  uint32_t layers_per_row;
  uint32_t block_tokens;
  uint64_t blocks;
  bool all_alike;
};

void PrintTo(const Setting& s, std::ostream* out) {
  *out << "window " << s.window << " behind " << s.sinks << ", limit "
       << s.limit.max_tokens << ", blocks of " << s.block_tokens;
}

class BlockTableWindowModelTest : public ::testing::TestWithParam<Setting> {
 protected:
  BlockTableWindowModelTest()
      : layout_(WindowLayout(GetParam().window, GetParam().sinks,
                             GetParam().layers_per_row, GetParam().all_alike)) {
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
    BlockTableCacheOptions options;
    options.max_sequence_length = kMaxTokens;
    options.max_sequences = 6;
    options.block_tokens = GetParam().block_tokens;
    options.blocks = GetParam().blocks;
    options.limit = GetParam().limit;
    options.stream = stream_;
    cache_ = *BlockTableCache::Create(device_.memory(), layout_, options);
    KvCacheOptions contiguous = CacheOptions(kMaxTokens);
    contiguous.limit = GetParam().limit;
    contiguous.eager_reclaim = true;
    contiguous_ = MakeCache(&device_, layout_, contiguous);
  }
  ~BlockTableWindowModelTest() override {
    cache_.reset();
    contiguous_.reset();
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }

  struct Text {
    std::vector<uint32_t> tokens;
    SequenceId contiguous;                   // none for forks
    std::vector<std::set<uint64_t>> places;  // by layer: that have a block
    uint64_t end = 0;                        // of the tables
    uint64_t batch = 0;                      // of its last step
    bool stepped = false;                    // at all
  };
  using Texts = std::map<SequenceId, Text>;

  uint64_t Below(uint64_t n) { return random_() % n; }
  Texts::iterator Any() {
    return std::next(texts_.begin(),
                     static_cast<std::ptrdiff_t>(Below(texts_.size())));
  }
  uint64_t BlocksFor(uint64_t tokens) const {
    return (tokens + block_ - 1) / block_;
  }
  KvLayerKind Kind(uint32_t layer) const {
    return WithLimit(layout_.KindOf(layer), GetParam().limit);
  }
  // Whether a kernel of the token behind `length` - 1 others sees the token.
  bool Sees(uint32_t layer, uint64_t length, uint64_t token) const {
    const KvLayerKind kind = Kind(layer);
    return kind.window == 0 || token + kind.window >= length ||
           token < kind.sinks;
  }
  template <typename Cache>
  void Write(const Cache& cache, SequenceId id, const Text& text,
             uint64_t from) {
    for (uint32_t layer = 0; layer < 4; ++layer) {
      const KvLayerView view = *cache.View(id, layer);
      for (uint64_t t = from; t < text.tokens.size(); ++t)
        *view.KeyRow(t).template host_pointer<uint64_t>() =
            uint64_t{text.tokens[t]} * 4 + layer;
    }
  }
  // What the last of `length` tokens sees of those that are there.
  template <typename Cache>
  void ExpectRows(const Cache& cache, SequenceId id, const Text& text,
                  uint64_t length) {
    for (uint32_t layer = 0; layer < 4; ++layer) {
      const KvLayerView view = *cache.View(id, layer);
      for (uint64_t t = 0; t < text.tokens.size(); ++t) {
        if (!Sees(layer, length, t)) continue;
        ASSERT_EQ(*view.KeyRow(t).template host_pointer<uint64_t>(),
                  uint64_t{text.tokens[t]} * 4 + layer)
            << "token " << t << " of " << text.tokens.size() << " in layer "
            << layer;
      }
    }
  }
  void Extend(Text* text, uint64_t length) {
    while (text->tokens.size() < length)
      text->tokens.push_back(static_cast<uint32_t>(random_()));
    for (; text->end < BlocksFor(length); ++text->end) {
      for (std::set<uint64_t>& places : text->places) places.insert(text->end);
    }
  }
  // As a step to `length` may drop.
  void Drop(Text* text, uint64_t length) {
    const uint64_t next = std::min<uint64_t>(text->tokens.size() + 1, length);
    for (uint32_t layer = 0; layer < 4; ++layer) {
      std::erase_if(text->places[layer], [&](uint64_t place) {
        for (uint64_t t = place * block_; t < (place + 1) * block_; ++t)
          if (Sees(layer, next, t)) return false;
        return true;
      });
    }
  }
  uint64_t Used() const {
    std::set<uint32_t> blocks;
    for (const auto& [id, text] : texts_) {
      for (uint32_t layer = 0; layer < 4; ++layer) {
        const uint32_t* const table = cache_->View(id, layer)->block_table;
        for (const uint64_t place : text.places[layer])
          blocks.insert(table[place]);
      }
    }
    return blocks.size();
  }
  void Check() {
    for (const auto& [id, text] : texts_) {
      for (uint32_t layer = 0; layer < 4; ++layer) {
        const uint32_t* const table = cache_->View(id, layer)->block_table;
        for (uint64_t p = 0; p < BlocksFor(text.tokens.size()); ++p)
          ASSERT_EQ(table[p] != kNone, text.places[layer].contains(p))
              << "place " << p << " of layer " << layer;
      }
      // What comes next needs no more, and after a Shrink there may be no more.
      const uint64_t next = text.tokens.size() + 1;
      ExpectRows(*cache_, id, text, next);
      if (text.contiguous != SequenceId())
        ExpectRows(*contiguous_, text.contiguous, text, next);
      if (HasFatalFailure()) return;
    }
    ASSERT_EQ(cache_->GetStatistics().free_blocks, GetParam().blocks - Used());
    ASSERT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  }

  void Admit() {
    const uint64_t tokens = 1 + Below(40);
    const auto id = cache_->Admit(tokens);
    if (!id.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(id.status())) << id.status();
      ++refusals_;
      return;
    }
    Text text = {.places = std::vector<std::set<uint64_t>>(4), .batch = batch_};
    text.contiguous = *contiguous_->Admit(tokens);
    Extend(&text, tokens);
    Write(*cache_, *id, text, 0);
    Write(*contiguous_, text.contiguous, text, 0);
    texts_[*id] = std::move(text);
  }
  void Step() {
    if (texts_.empty()) return;
    auto& [id, text] = *Any();
    const uint64_t before = text.tokens.size();
    const uint64_t length =
        std::min(kMaxTokens, before + (Below(5) == 0 ? Below(30) : 1));
    if (text.batch != batch_ && (text.stepped || length > before))
      Drop(&text, length);
    const SequenceStep step = {id, length};
    const absl::Status status = cache_->Step(std::span(&step, 1));
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    if (!status.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
      ++refusals_;
      return;
    }
    text.batch = batch_;
    text.stepped = true;
    Extend(&text, length);
    Write(*cache_, id, text, before);
    if (length > before) ExpectRows(*cache_, id, text, length);
    if (text.contiguous == SequenceId()) return;
    const SequenceStep same = {text.contiguous, length};
    ASSERT_TRUE(contiguous_->Step(std::span(&same, 1)).ok());
    Write(*contiguous_, text.contiguous, text, before);
  }
  void Shrink() {
    if (texts_.empty()) return;
    auto& [id, text] = *Any();
    const uint64_t length =
        text.tokens.size() - Below(text.tokens.size() + 1) / (1 + Below(8));
    // Neither what the next token sees may be gone, nor what lies behind it.
    bool possible = true;
    for (uint32_t layer = 0; layer < 4; ++layer) {
      const std::set<uint64_t>& places = text.places[layer];
      for (uint64_t p = 0; p < text.end; ++p) {
        if (places.contains(p)) continue;
        possible &= p * block_ <= length;
        for (uint64_t t = p * block_; t < (p + 1) * block_ && t <= length; ++t)
          possible &= !Sees(layer, length + 1, t);
      }
    }
    const absl::Status status = cache_->Shrink(id, length, Fence());
    ASSERT_EQ(status.ok(), possible) << status;
    if (!possible) {
      ++kept_from_going_back_;
      return;
    }
    text.tokens.resize(length);
    text.end = BlocksFor(length);
    for (std::set<uint64_t>& places : text.places)
      std::erase_if(places, [&](uint64_t p) { return p >= BlocksFor(length); });
    if (text.contiguous == SequenceId()) return;
    // It drops by pages, and may have to refuse where this one need not.
    if (contiguous_->Shrink(text.contiguous, length, Fence()).ok()) return;
    ASSERT_TRUE(contiguous_->Release(text.contiguous, Fence()).ok());
    text.contiguous = SequenceId();
  }
  void Fork() {
    if (texts_.empty()) return;
    const auto parent = Any();
    const auto id = cache_->Fork(parent->first);
    ASSERT_EQ(id.ok(), texts_.size() < 6);
    if (!id.ok()) return;
    Text text = parent->second;
    text.contiguous = SequenceId();
    texts_[*id] = std::move(text);
  }
  void Release() {
    if (texts_.empty()) return;
    const auto text = Any();
    ASSERT_TRUE(cache_->Release(text->first, Fence()).ok());
    if (text->second.contiguous != SequenceId()) {
      ASSERT_TRUE(contiguous_->Release(text->second.contiguous, Fence()).ok());
    }
    texts_.erase(text);
  }

  TestDevice device_{600};
  StreamId stream_;
  const KvLayout layout_;
  std::unique_ptr<BlockTableCache> cache_;
  std::unique_ptr<KvCache> contiguous_;
  std::mt19937_64 random_{11};
  const uint64_t block_ = GetParam().block_tokens;
  Texts texts_;
  uint64_t batch_ = 0;
  uint64_t refusals_ = 0;
  uint64_t kept_from_going_back_ = 0;
};

TEST_P(BlockTableWindowModelTest, KeepsWhatIsSeenAndNothingElse) {
  for (int i = 0; i < 1200; ++i) {
    switch (Below(12)) {
      case 0:
        Admit();
        break;
      case 1:
        Release();
        break;
      case 2:
        Fork();
        break;
      case 3:
        Shrink();
        break;
      case 4:
      case 5:
      case 6:
        ++batch_;
        cache_->EndBatch(Fence());
        contiguous_->EndBatch(Fence());
        break;
      default:
        Step();
    }
    if (!HasFatalFailure()) Check();
    if (HasFatalFailure()) {
      FAIL() << "operation " << i;
    }
  }
  EXPECT_GT(cache_->GetStatistics().dropped_blocks, 50u);
  EXPECT_GT(refusals_, 0u);
  EXPECT_GT(kept_from_going_back_, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, BlockTableWindowModelTest,
    ::testing::Values(
        Setting{10, 0, {}, 1, 4, 80, false},
        Setting{7, 5, {}, 4, 2, 150, false},
        Setting{24, 3, {.max_tokens = 16, .sinks = 2}, 2, 8, 30, false},
        Setting{9, 4, {}, 4, 1, 150, true},
        Setting{1, 0, {}, 2, 16, 24, false}));

}  // namespace
}  // namespace quire
