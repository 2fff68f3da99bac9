// The block-table cache against a model: for each sequence its tokens, for each
// block who has it, and which beginnings of texts were published where. The
// model says of every call whether it fits, what it finds, and which blocks it
// may not touch. Rows are written and read by kernels on the stream, and what
// they hold follows from all tokens up to theirs, so that a block that serves
// the wrong text shows.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "paging/kv_cache_testing.h"
#include "quire/paging/block_table_cache.h"

namespace quire {
namespace {

using Tokens = std::vector<int32_t>;

constexpr uint64_t kMaxTokens = 60;
constexpr uint32_t kMaxSequences = 6;

struct Setting {
  uint32_t layers_per_row;
  uint32_t block_tokens;
  uint64_t blocks;
  uint64_t headroom;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.blocks << " blocks of " << setting.block_tokens << " tokens, "
       << setting.layers_per_row << " layers per row";
}

// What the row of the last token holds.
uint64_t RowOf(const Tokens& tokens, size_t count) {
  uint64_t state = 1;
  for (size_t i = 0; i < count; ++i)
    state = (state ^ static_cast<uint64_t>(tokens[i] + 2)) * 0x9E3779B97F4A7C15;
  return state;
}

// The rows of a range of tokens: where they are, in all layers, and what they
// hold.
struct Rows {
  std::vector<std::pair<uint64_t*, uint64_t>> rows;

  void Write() const {
    for (const auto& [row, value] : rows) *row = value;
  }
  int64_t CountWrong() const {
    return std::ranges::count_if(
        rows, [](const auto& row) { return *row.first != row.second; });
  }
};

class BlockTableCacheModelTest : public ::testing::TestWithParam<Setting> {
 protected:
  BlockTableCacheModelTest() {
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
    other_stream_ = *device_.driver()->CreateStream(DeviceId(0));
    BlockTableCacheOptions options;
    options.max_sequence_length = kMaxTokens;
    options.max_sequences = kMaxSequences;
    options.block_tokens = GetParam().block_tokens;
    options.blocks = GetParam().blocks;
    options.headroom_blocks = GetParam().headroom;
    options.stream = stream_;
    cache_ = *BlockTableCache::Create(
        device_.memory(), TestLayout(GetParam().layers_per_row), options);
  }
  ~BlockTableCacheModelTest() override {
    for (const StreamId stream : {stream_, other_stream_}) {
      EXPECT_TRUE(device_.driver()->SynchronizeStream(stream).ok());
      EXPECT_TRUE(device_.driver()->DestroyStream(stream).ok());
    }
    EXPECT_EQ(wrong_rows_, 0);
    cache_.reset();
  }

  struct Text {
    Tokens tokens;
    std::vector<uint32_t> table;  // as it was last seen
  };
  using Texts = std::map<SequenceId, Text>;

  uint64_t Below(uint64_t n) { return random_() % n; }
  int32_t AnyToken() { return static_cast<int32_t>(Below(2)); }
  uint64_t BlocksFor(uint64_t tokens) const {
    return (tokens + block_ - 1) / block_;
  }
  Texts::iterator Any() {
    return std::next(texts_.begin(),
                     static_cast<std::ptrdiff_t>(Below(texts_.size())));
  }

  // ---- What the model knows of blocks ----
  std::map<uint32_t, int> Holders() const {
    std::map<uint32_t, int> holders;
    for (const auto& [id, text] : texts_) {
      for (const uint32_t block : text.table) ++holders[block];
    }
    return holders;
  }
  uint64_t Free() const { return GetParam().blocks - Holders().size(); }
  bool IsPublished(uint32_t block) const {
    return std::ranges::any_of(
        published_, [&](const auto& entry) { return entry.second == block; });
  }
  std::vector<uint32_t> PrefixOf(const Tokens& prompt) const {
    std::vector<uint32_t> blocks;
    for (size_t end = block_; end + 1 <= prompt.size(); end += block_) {
      const auto found = published_.find(
          Tokens(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(end)));
      if (found == published_.end()) break;
      blocks.push_back(found->second);
    }
    return blocks;
  }
  std::vector<uint32_t> ReadTable(SequenceId id, uint64_t tokens) const {
    const uint32_t* const table = cache_->View(id, 0)->block_table;
    return {table, table + BlocksFor(tokens)};
  }
  // A block that comes into a table other than by its tokens must be nobody's,
  // and what was published in it is gone.
  void ExpectFresh(uint32_t block, const std::map<uint32_t, int>& holders) {
    ASSERT_FALSE(holders.contains(block));
    std::erase_if(published_,
                  [&](const auto& entry) { return entry.second == block; });
  }

  // ---- Kernels ----
  Rows RowsOf(SequenceId id, const Tokens& tokens, size_t begin) const {
    Rows rows;
    for (size_t t = begin; t < tokens.size(); ++t) {
      for (uint32_t layer = 0; layer < 5; ++layer) {
        const KvLayerView view = *cache_->View(id, layer);
        const uint64_t value = RowOf(tokens, t + 1) + layer;
        rows.rows.emplace_back(view.KeyRow(t).host_pointer<uint64_t>(), value);
        rows.rows.emplace_back(view.ValueRow(t).host_pointer<uint64_t>(),
                               ~value);
      }
    }
    return rows;
  }
  void Launch(StreamId stream, std::function<void()> kernel) {
    ASSERT_TRUE(
        device_.driver()->LaunchHostFunction(stream, std::move(kernel)).ok());
  }
  void LaunchWrite(SequenceId id, size_t begin) {
    Launch(stream_,
           [rows = RowsOf(id, texts_.at(id).tokens, begin)] { rows.Write(); });
  }
  void LaunchRead(StreamId stream, SequenceId id, size_t begin = 0,
                  int delay = 0) {
    Launch(stream,
           [this, delay, rows = RowsOf(id, texts_.at(id).tokens, begin)] {
             std::this_thread::sleep_for(std::chrono::microseconds(delay));
             wrong_rows_ += rows.CountWrong();
           });
  }
  // Of a sequence that gives up its blocks from token `begin` on: now and then
  // a reader of these on another stream is late. That is nobody else's affair
  // only where no block is shared.
  Fence LastRead(SequenceId id, size_t begin) {
    LaunchRead(stream_, id);
    const std::map<uint32_t, int> holders = Holders();
    if (Below(2) == 0 ||
        std::ranges::any_of(texts_.at(id).table,
                            [&](uint32_t b) { return holders.at(b) > 1; }))
      return Fence();
    // It reads what was written on the first stream.
    const Fence written =
        *Fence::Record(device_.driver(), DeviceId(0), std::span(&stream_, 1));
    EXPECT_TRUE(written.Wait().ok());
    LaunchRead(other_stream_, id, begin, static_cast<int>(Below(300)));
    return *Fence::Record(device_.driver(), DeviceId(0),
                          std::span(&other_stream_, 1));
  }

  // ---- Operations ----
  void Admit() {
    Tokens prompt;
    if (!texts_.empty() && Below(2) == 0) {
      prompt = Any()->second.tokens;
      if (Below(2) == 0) prompt.resize(Below(prompt.size() + 1));
    }
    const uint64_t more = Below(12);
    for (uint64_t i = 0; i < more && prompt.size() < kMaxTokens; ++i)
      prompt.push_back(AnyToken());

    const std::vector<uint32_t> prefix = PrefixOf(prompt);
    std::map<uint32_t, int> holders = Holders();
    for (const uint32_t block : prefix) ++holders[block];
    const uint64_t missing = BlocksFor(prompt.size()) - prefix.size();
    const bool fits =
        texts_.size() < kMaxSequences &&
        holders.size() + missing + GetParam().headroom <= GetParam().blocks;
    const auto admission = cache_->AdmitPrompt(prompt);
    ASSERT_EQ(admission.ok(), fits) << admission.status();
    if (!fits) {
      ++refusals_;
      return;
    }
    ASSERT_EQ(admission->cached_tokens, prefix.size() * block_);
    hits_ += prefix.size();
    const std::vector<uint32_t> table =
        ReadTable(admission->sequence, prompt.size());
    for (size_t i = 0; i < table.size(); ++i) {
      if (i < prefix.size()) {
        ASSERT_EQ(table[i], prefix[i]);
      } else {
        ExpectFresh(table[i], holders);
      }
    }
    const SequenceId id = admission->sequence;
    texts_[id] = {prompt, table};
    LaunchWrite(id, admission->cached_tokens);
  }

  void Step() {
    const std::map<uint32_t, int> holders = Holders();
    std::vector<SequenceStep> steps;
    std::map<uint32_t, int> writers;
    uint64_t wanted = 0;
    for (const auto& [id, text] : texts_) {
      if (Below(3) == 0) continue;
      const uint64_t now = text.tokens.size();
      const uint64_t length =
          std::min(kMaxTokens, now + (Below(8) == 0 ? Below(20) : Below(3)));
      steps.push_back({id, length});
      if (length == now) continue;
      wanted += BlocksFor(length) - BlocksFor(now);
      if (now % block_ != 0) ++writers[text.table.back()];
    }
    for (const auto& [block, count] : writers) {
      const int sharers = holders.at(block) - 1;
      wanted += static_cast<uint64_t>(
          IsPublished(block) ? count : std::min(count, sharers));
    }
    std::shuffle(steps.begin(), steps.end(), random_);
    const bool fits = wanted <= Free();
    const absl::Status status = cache_->Step(steps);
    ASSERT_EQ(status.ok(), fits) << status;
    if (!fits) {
      ++refusals_;
      for (const auto& [id, text] : texts_)
        ASSERT_EQ(ReadTable(id, text.tokens.size()), text.table);
      return;
    }
    for (const SequenceStep& step : steps) {
      Text& text = texts_.at(step.sequence);
      const size_t now = text.tokens.size();
      ASSERT_EQ(*cache_->Length(step.sequence), step.length);
      if (step.length == now) continue;
      std::vector<uint32_t> table = ReadTable(step.sequence, step.length);
      for (size_t i = 0; i < table.size(); ++i) {
        const bool same = i < text.table.size() && table[i] == text.table[i];
        ASSERT_TRUE(same || i >= now / block_);
        if (!same) ExpectFresh(table[i], holders);
      }
      text.table = std::move(table);
      while (text.tokens.size() < step.length)
        text.tokens.push_back(AnyToken());
    }
    // No block is written by two, or while others hold it.
    const std::map<uint32_t, int> after = Holders();
    for (const SequenceStep& step : steps) {
      const Text& text = texts_.at(step.sequence);
      const uint64_t before = lengths_[step.sequence];
      for (uint64_t i = before / block_;
           before < step.length && i < text.table.size(); ++i) {
        ASSERT_EQ(after.at(text.table[i]), 1);
        ASSERT_FALSE(IsPublished(text.table[i]));
      }
      if (before < step.length) LaunchWrite(step.sequence, before);
    }
  }

  void Publish() {
    if (texts_.empty()) return;
    auto& [id, text] = *Any();
    const size_t count = Below(text.tokens.size() + 1);
    const Tokens tokens(text.tokens.begin(),
                        text.tokens.begin() + static_cast<ptrdiff_t>(count));
    ASSERT_TRUE(cache_->Publish(id, tokens).ok());
    text.table = ReadTable(id, text.tokens.size());
    for (size_t end = block_; end <= count; end += block_) {
      const uint32_t block = text.table[end / block_ - 1];
      const Tokens key(tokens.begin(),
                       tokens.begin() + static_cast<ptrdiff_t>(end));
      ASSERT_EQ(published_.try_emplace(key, block).first->second, block);
    }
  }

  void Fork() {
    if (texts_.empty()) return;
    const auto parent = Any();
    const auto id = cache_->Fork(parent->first);
    ASSERT_EQ(id.ok(), texts_.size() < kMaxSequences);
    if (!id.ok()) return;
    texts_[*id] = parent->second;
    ASSERT_EQ(ReadTable(*id, parent->second.tokens.size()),
              parent->second.table);
  }

  void Shrink() {
    if (texts_.empty()) return;
    auto& [id, text] = *Any();
    const size_t length = Below(text.tokens.size() + 1);
    ASSERT_TRUE(
        cache_->Shrink(id, length, LastRead(id, BlocksFor(length) * block_))
            .ok());
    text.tokens.resize(length);
    text.table.resize(BlocksFor(length));
  }

  void Release() {
    if (texts_.empty()) return;
    const auto text = Any();
    const std::map<uint32_t, int> holders = Holders();
    const auto own = std::ranges::count_if(
        text->second.table, [&](uint32_t b) { return holders.at(b) == 1; });
    ASSERT_EQ(*cache_->FreedByRelease(text->first),
              Bytes(static_cast<uint64_t>(own) * block_ * 640));
    ASSERT_TRUE(cache_->Release(text->first, LastRead(text->first, 0)).ok());
    texts_.erase(text);
  }

  void CheckFigures() {
    ASSERT_EQ(cache_->Use().needed, Bytes(Holders().size() * block_ * 640));
    ASSERT_EQ(cache_->GetStatistics().free_blocks, Free());
    const uint64_t room = Free() - std::min(Free(), GetParam().headroom);
    ASSERT_EQ(cache_->AdmissibleTokens(),
              texts_.size() == kMaxSequences
                  ? 0
                  : std::min(kMaxTokens, room * block_));
    ASSERT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  }

  void Run(int operations) {
    for (int i = 0; i < operations; ++i) {
      lengths_.clear();
      for (const auto& [id, text] : texts_) lengths_[id] = text.tokens.size();
      switch (Below(10)) {
        case 0:
        case 1:
          Admit();
          break;
        case 2:
        case 3:
          Publish();
          break;
        case 4:
          Fork();
          break;
        case 5:
          Shrink();
          break;
        case 6:
          Release();
          break;
        default:
          Step();
      }
      if (HasFatalFailure()) return;
      CheckFigures();
      if (HasFatalFailure()) return;
    }
    for (const auto& [id, text] : texts_) LaunchRead(stream_, id);
  }

  TestDevice device_{96};
  StreamId stream_, other_stream_;
  std::unique_ptr<BlockTableCache> cache_;
  std::mt19937_64 random_{7};
  const uint64_t block_ = GetParam().block_tokens;
  Texts texts_;
  std::map<SequenceId, uint64_t> lengths_;  // before the operation
  std::map<Tokens, uint32_t> published_;
  std::atomic<int64_t> wrong_rows_{0};
  uint64_t hits_ = 0;
  uint64_t refusals_ = 0;
};

TEST_P(BlockTableCacheModelTest, BehavesLikeTheModel) {
  Run(1500);
  if (HasFatalFailure()) return;
  const BlockTableCacheStatistics statistics = cache_->GetStatistics();
  EXPECT_GT(hits_, 5u);
  EXPECT_GT(refusals_, 10u);
  EXPECT_GT(statistics.evictions, 10u);
  if (GetParam().block_tokens > 1) {
    EXPECT_GT(statistics.block_copies, 10u);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, BlockTableCacheModelTest,
                         ::testing::Values(Setting{1, 4, 30, 0},
                                           Setting{2, 2, 60, 5},
                                           Setting{5, 16, 12, 1},
                                           Setting{5, 1, 90, 0}));

}  // namespace
}  // namespace quire
