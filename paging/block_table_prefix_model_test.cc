// Prefixes of the block-table cache where layers have windows, at random
// against a model: which block was published for which beginning of a text, in
// each layer. What a prompt finds follows from what its next token sees, token
// by token; and rows hold what follows from all tokens up to theirs, so that a
// block that serves the wrong text, or none, shows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "paging/block_table_testing.h"
#include "quire/paging/block_table_cache.h"

namespace quire {
namespace {

using Tokens = std::vector<int32_t>;

constexpr uint64_t kMaxTokens = 72;
constexpr uint32_t kMaxSequences = 5;
constexpr uint32_t kLayers = 4;
constexpr uint32_t kNone = UINT32_MAX;  // in a table

struct Setting {
  uint64_t window;
  uint64_t sinks;
  KvTokenLimit limit;
  uint32_t block_tokens;
  uint64_t blocks;
  bool all_alike;
};

void PrintTo(const Setting& s, std::ostream* out) {
  *out << "window " << s.window << " behind " << s.sinks << ", limit "
       << s.limit.max_tokens << ", " << s.blocks << " blocks of "
       << s.block_tokens;
}

KvLayout LayoutOf(const Setting& setting) {
  const KvLayerKind full = {2, 8, 8, KvDType::kF32};
  KvLayerKind windowed = full;
  windowed.window = setting.window;
  windowed.sinks = setting.sinks;
  KvModelShape shape;
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    shape.layers.push_back(layer % 2 == 0 || setting.all_alike ? windowed
                                                               : full);
  return *KvLayout::Create(shape, 1);
}

class BlockTablePrefixModelTest : public ::testing::TestWithParam<Setting> {
 protected:
  BlockTablePrefixModelTest() : layout_(LayoutOf(GetParam())) {
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
    BlockTableCacheOptions options;
    options.max_sequence_length = kMaxTokens;
    options.max_sequences = kMaxSequences;
    options.block_tokens = GetParam().block_tokens;
    options.blocks = GetParam().blocks;
    options.limit = GetParam().limit;
    options.stream = stream_;
    cache_ = *BlockTableCache::Create(device_.memory(), layout_, options);
  }
  ~BlockTablePrefixModelTest() override {
    cache_.reset();
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
  }

  using Table = std::vector<uint32_t>;
  struct Text {
    Tokens tokens;  // those that are computed
    uint64_t length = 0;
    std::vector<Table> tables;  // by layer, as they were last seen
  };
  using Texts = std::map<SequenceId, Text>;

  uint64_t Below(uint64_t n) { return random_() % n; }
  Texts::iterator Any() {
    return std::next(texts_.begin(),
                     static_cast<std::ptrdiff_t>(Below(texts_.size())));
  }
  static Tokens First(const Tokens& tokens, uint64_t count) {
    return {tokens.begin(),
            tokens.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  // Whether a kernel of the token behind `length` - 1 others sees the token.
  bool Sees(uint32_t layer, uint64_t length, uint64_t token) const {
    const KvLayerKind kind = WithLimit(layout_.KindOf(layer), GetParam().limit);
    return kind.window == 0 || token + kind.window >= length ||
           token < kind.sinks;
  }
  static uint64_t RowOf(const Tokens& tokens, uint64_t token, uint32_t layer) {
    uint64_t state = layer + 1;
    for (uint64_t t = 0; t <= token; ++t)
      state =
          (state ^ static_cast<uint64_t>(tokens[t] + 2)) * 0x9E3779B97F4A7C15;
    return state;
  }
  std::vector<Table> ReadTables(SequenceId id, uint64_t length) const {
    std::vector<Table> tables;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const uint32_t* const table = cache_->View(id, layer)->block_table;
      tables.emplace_back(table, table + (length + block_ - 1) / block_);
    }
    return tables;
  }

  // ---- What was published ----
  // The most tokens, in whole blocks and but for the last one, behind which
  // the next one finds all that it sees.
  uint64_t Findable(const Tokens& prompt) const {
    if (prompt.empty()) return 0;
    for (uint64_t blocks = (prompt.size() - 1) / block_; blocks > 0; --blocks) {
      bool all = true;
      for (uint32_t layer = 0; layer < kLayers && all; ++layer) {
        for (uint64_t t = 0; t < blocks * block_ && all; ++t) {
          const uint64_t end = (t / block_ + 1) * block_;
          all = !Sees(layer, blocks * block_ + 1, t) ||
                published_.contains({First(prompt, end), layer});
        }
      }
      if (all) return blocks * block_;
    }
    return 0;
  }
  // Blocks that came into a table other than by their tokens are nobody's, and
  // what was published in them is gone.
  void ForgetFresh(SequenceId id, const std::vector<Table>& before,
                   uint64_t from) {
    std::set<uint32_t> held;
    for (const auto& [other, text] : texts_) {
      if (other == id) continue;
      for (const Table& table : text.tables)
        held.insert(table.begin(), table.end());
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const Table& table = texts_.at(id).tables[layer];
      for (uint64_t i = from; i < table.size(); ++i) {
        if (table[i] == kNone ||
            (i < before[layer].size() && table[i] == before[layer][i]))
          continue;
        ASSERT_FALSE(held.contains(table[i])) << "block " << table[i];
        std::erase_if(published_, [&](const auto& entry) {
          return entry.second == table[i];
        });
      }
    }
  }

  // ---- Rows ----
  void Write(SequenceId id, uint64_t from) {
    const Text& text = texts_.at(id);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const KvLayerView view = *cache_->View(id, layer);
      for (uint64_t t = from; t < text.tokens.size(); ++t)
        *view.KeyRow(t).host_pointer<uint64_t>() = RowOf(text.tokens, t, layer);
    }
  }
  void Check() {
    for (const auto& [id, text] : texts_) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const KvLayerView view = *cache_->View(id, layer);
        for (uint64_t t = 0; t < text.tokens.size(); ++t) {
          if (!Sees(layer, text.tokens.size() + 1, t)) continue;
          ASSERT_NE(text.tables[layer][t / block_], kNone)
              << "token " << t << " of layer " << layer;
          ASSERT_EQ(*view.KeyRow(t).host_pointer<uint64_t>(),
                    RowOf(text.tokens, t, layer))
              << "token " << t << " of " << text.tokens.size() << " in layer "
              << layer;
        }
      }
    }
    std::set<uint32_t> used;
    for (const auto& [id, text] : texts_) {
      for (const Table& table : text.tables)
        used.insert(table.begin(), table.end());
    }
    used.erase(kNone);
    ASSERT_EQ(cache_->GetStatistics().free_blocks,
              GetParam().blocks - used.size());
    ASSERT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  }

  // ---- Operations ----
  void Admit() {
    Tokens prompt;
    if (!said_.empty() && Below(4) > 0) {
      prompt = said_[Below(said_.size())];
      if (Below(2) == 0) prompt.resize(Below(prompt.size() + 1));
    }
    const uint64_t more = 1 + Below(10);
    for (uint64_t i = 0; i < more && prompt.size() < kMaxTokens; ++i)
      prompt.push_back(static_cast<int32_t>(Below(2)));
    const uint64_t step = 1 + Below(40);
    const uint64_t found = Findable(prompt);
    const auto admission = cache_->AdmitPromptInSteps(prompt, step);
    if (!admission.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(admission.status()))
          << admission.status();
      ++refusals_;
      return;
    }
    ASSERT_EQ(admission->cached_tokens, found);
    hits_ += found > 0 ? 1 : 0;
    const SequenceId id = admission->sequence;
    Text text;
    text.tokens = First(prompt, *cache_->Length(id));
    text.length = text.tokens.size();
    text.tables = ReadTables(id, text.length);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint64_t i = 0; i < found / block_; ++i) {
        if (text.tables[layer][i] == kNone) continue;
        ASSERT_EQ(text.tables[layer][i],
                  published_.at({First(prompt, (i + 1) * block_), layer}));
      }
    }
    texts_[id] = std::move(text);
    ForgetFresh(id, std::vector<Table>(kLayers), found / block_);
    Write(id, found);
  }
  void Step() {
    if (texts_.empty()) return;
    const auto [id, text] = *Any();
    const uint64_t length = std::min<uint64_t>(
        kMaxTokens, text.length + (Below(4) == 0 ? Below(20) : 1));
    const SequenceStep step = {id, length};
    const absl::Status status = cache_->Step(std::span(&step, 1));
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    Text& now = texts_.at(id);
    now.tables = ReadTables(id, text.length);  // a refused one may drop, too
    if (!status.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
      ++refusals_;
      return;
    }
    now.tables = ReadTables(id, length);
    now.length = length;
    while (now.tokens.size() < length)
      now.tokens.push_back(static_cast<int32_t>(Below(2)));
    ForgetFresh(id, text.tables, 0);
    Write(id, text.length);
  }
  void Publish() {
    if (texts_.empty()) return;
    auto& [id, text] = *Any();
    const uint64_t count = Below(3) > 0 ? text.length : Below(text.length + 1);
    const std::vector<Table> before = text.tables;
    ASSERT_TRUE(cache_->Publish(id, First(text.tokens, count)).ok());
    text.tables = ReadTables(id, text.length);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint64_t i = 0; i < before[layer].size(); ++i) {
        ASSERT_EQ(text.tables[layer][i] == kNone, before[layer][i] == kNone);
        if ((i + 1) * block_ > count) {
          ASSERT_EQ(text.tables[layer][i], before[layer][i]);
        } else if (text.tables[layer][i] != kNone) {
          // Who published it first stays.
          const auto entry = published_.try_emplace(
              {First(text.tokens, (i + 1) * block_), layer},
              text.tables[layer][i]);
          ASSERT_EQ(entry.first->second, text.tables[layer][i]);
        }
      }
    }
    said_.push_back(text.tokens);
    if (said_.size() > 12)
      said_.erase(said_.begin() + static_cast<std::ptrdiff_t>(Below(12)));
  }
  void Shrink() {
    if (texts_.empty()) return;
    auto& [id, text] = *Any();
    const uint64_t length = text.length - Below(text.length + 1) / 3;
    const absl::Status status = cache_->Shrink(id, length, Fence());
    if (!status.ok()) {
      ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      return;
    }
    text.length = length;
    text.tokens.resize(length);
    text.tables = ReadTables(id, length);
  }
  void Fork() {
    if (texts_.empty()) return;
    const auto parent = Any();
    const auto id = cache_->Fork(parent->first);
    ASSERT_EQ(id.ok(), texts_.size() < kMaxSequences);
    if (!id.ok()) return;
    const Text text = parent->second;
    texts_[*id] = text;
    ASSERT_EQ(ReadTables(*id, text.length), text.tables);
  }
  void Release() {
    if (texts_.empty()) return;
    const auto text = Any();
    ASSERT_TRUE(cache_->Release(text->first, Fence()).ok());
    texts_.erase(text);
  }

  TestDevice device_{300};
  StreamId stream_;
  const KvLayout layout_;
  std::unique_ptr<BlockTableCache> cache_;
  std::mt19937_64 random_{23};
  const uint64_t block_ = GetParam().block_tokens;
  Texts texts_;
  std::vector<Tokens> said_;
  // By the tokens up to the end of a block, and layer.
  std::map<std::pair<Tokens, uint32_t>, uint32_t> published_;
  uint64_t hits_ = 0;
  uint64_t refusals_ = 0;
};

TEST_P(BlockTablePrefixModelTest, FindsWhatTheNextTokenSeesAndNothingElse) {
  for (int i = 0; i < 1500; ++i) {
    switch (Below(12)) {
      case 0:
      case 1:
        Admit();
        break;
      case 2:
        Release();
        break;
      case 3:
        Fork();
        break;
      case 4:
        Shrink();
        break;
      case 5:
      case 6:
        Publish();
        break;
      case 7:
      case 8:
        cache_->EndBatch(Fence());
        break;
      default:
        Step();
    }
    if (!HasFatalFailure()) Check();
    if (HasFatalFailure()) FAIL() << "operation " << i;
  }
  EXPECT_GT(hits_, 20u);
  EXPECT_GT(refusals_, 0u);
  EXPECT_GT(cache_->GetStatistics().dropped_blocks, 20u);
  EXPECT_GT(cache_->GetStatistics().evictions, 20u);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, BlockTablePrefixModelTest,
    ::testing::Values(
        Setting{10, 0, {}, 4, 40, false}, Setting{7, 5, {}, 2, 90, false},
        Setting{20, 3, {.max_tokens = 16, .sinks = 2}, 4, 30, false},
        Setting{9, 4, {}, 1, 60, true}, Setting{1, 0, {}, 8, 20, false}));

}  // namespace
}  // namespace quire
