// Sharing and swap against a shadow model: random prompts, forks, steps,
// shrinks, swaps and releases, while another user takes memory and kernels run
// late. Rows are a
// function of the tokens before them, so every row of every sequence can be
// checked where it lies; which pages are needed is read from the page map.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "paging/kv_cache_share_testing.h"
#include "paging/testing/random_prompt.h"

namespace quire {
namespace {

constexpr uint64_t kMaxTokens = 300;
constexpr uint32_t kMaxSequences = 10;
constexpr uint32_t kBlock = 4;

struct Setting {
  uint32_t layers_per_row;
  Bytes page_size;
  uint64_t pages;
  bool tight;  // else nothing ever has to be given up
  uint64_t map_ahead;
  uint64_t swap_pages;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.layers_per_row << " layers per row, "
       << FormatBytes(setting.page_size) << " pages"
       << (setting.tight ? ", tight" : "");
}

struct Shadow {
  Shadow(const KvCache& cache, SequenceId id, Tokens of)
      : tokens(std::move(of)), longest(tokens.size()), rows(cache, id) {}
  Tokens tokens;
  Tokens published;
  uint64_t longest;  // since it was admitted or shrunk
  TokenRows rows;
  bool swapped = false;
};

class KvCacheShareModelTest : public ::testing::TestWithParam<Setting> {
 protected:
  KvCacheShareModelTest()
      : device_(GetParam().pages, GetParam().page_size, GiB(1)) {
    KvCacheOptions options;
    options.max_sequence_length = kMaxTokens;
    options.max_sequences = kMaxSequences;
    options.prefix_block_tokens = kBlock;
    options.map_ahead = PageCount(GetParam().map_ahead);
    options.swap_space =
        Bytes(GetParam().swap_pages * GetParam().page_size.value());
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
    if (GetParam().map_ahead == 0) options.stream = stream_;
    cache_ = MakeCache(&device_, GetParam().layers_per_row, options);
    other_ = *device_.memory()->ReserveRange(PageCount(GetParam().pages),
                                             kUnnamedOwner);
  }
  ~KvCacheShareModelTest() override {
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
    EXPECT_EQ(late_errors_, 0);
    device_.memory()->ReleaseRange(other_, Fence());
    cache_.reset();
  }

  uint64_t Below(uint64_t n) { return random_() % n; }
  std::map<SequenceId, Shadow>::iterator Any() {
    return std::next(shadows_.begin(),
                     static_cast<std::ptrdiff_t>(Below(shadows_.size())));
  }
  // One that is on the device, or swapped out; null where there is none.
  std::pair<const SequenceId, Shadow>* Any(bool swapped) {
    std::vector<std::pair<const SequenceId, Shadow>*> those;
    for (auto& sequence : shadows_) {
      if (sequence.second.swapped == swapped) those.push_back(&sequence);
    }
    return those.empty() ? nullptr : those[Below(those.size())];
  }

  // By hand: 128 bytes a layer and token.
  static uint64_t PagesOf(uint64_t tokens, uint32_t first_layer) {
    const uint64_t layers =
        std::min<uint64_t>(GetParam().layers_per_row, 5 - first_layer);
    const uint64_t page = GetParam().page_size.value();
    return (tokens * layers * 128 + page - 1) / page;
  }
  static uint64_t PagesOf(uint64_t tokens) {
    uint64_t pages = 0;
    for (uint32_t layer = 0; layer < 5; layer += GetParam().layers_per_row)
      pages += PagesOf(tokens, layer);
    return pages;
  }
  // Pages that no sequence needs, which all can be had.
  uint64_t Obtainable() {
    std::map<uint64_t, PageHandle> pages;  // by address
    for (const DeviceMemory::PageMapEntry& entry :
         device_.memory()->CalculatePageMap())
      pages[entry.address.value()] = entry.page;
    std::set<PageHandle> needed;
    for (const auto& [id, shadow] : shadows_) {
      if (shadow.swapped) continue;
      for (uint32_t layer = 0; layer < 5; layer += GetParam().layers_per_row) {
        const uint64_t base = cache_->View(id, layer)->keys.value();
        for (uint64_t page = 0; page < PagesOf(shadow.longest, layer); ++page)
          needed.insert(pages.at(base + page * GetParam().page_size.value()));
      }
    }
    return GetParam().pages - other_pages_ - needed.size();
  }

  // The longest beginning, in whole blocks, of anything that was published.
  uint64_t Known(const Tokens& tokens) const {
    uint64_t known = 0;
    for (const Tokens& published : history_) {
      const size_t size =
          std::min(published.size(), tokens.empty() ? 0 : tokens.size() - 1);
      const uint64_t common = static_cast<uint64_t>(
          std::mismatch(published.begin(),
                        published.begin() + static_cast<std::ptrdiff_t>(size),
                        tokens.begin())
              .first -
          published.begin());
      known = std::max(known, common / kBlock * kBlock);
    }
    return known;
  }

  void Prompt() {
    const Tokens tokens = RandomPrompt(&random_, history_, kMaxTokens);
    const uint64_t obtainable = Obtainable();
    const uint64_t known = Known(tokens);
    const PromptOptions options = {Below(4) == 0 ? StreamId() : stream_,
                                   static_cast<int32_t>(Below(3)), clock_ + 20};
    const auto admission = cache_->AdmitPrompt(tokens, options);
    if (!admission.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(admission.status()));
      ASSERT_TRUE(shadows_.size() == kMaxSequences ||
                  PagesOf(tokens.size()) > obtainable)
          << admission.status();
      ++refusals_;
      return;
    }
    const uint64_t cached = admission->cached_tokens;
    ASSERT_LE(cached, known);
    if (!GetParam().tight && options.stream != StreamId()) {
      ASSERT_EQ(cached, known);
    }
    Begin(admission->sequence, tokens, cached);
    if (Below(4) != 0) Publish(&*shadows_.find(admission->sequence));
  }

  // The first `cached` rows are there.
  void Begin(SequenceId id, const Tokens& tokens, uint64_t cached) {
    const Shadow& shadow =
        shadows_.try_emplace(id, *cache_, id, tokens).first->second;
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    const Tokens there(tokens.begin(),
                       tokens.begin() + static_cast<std::ptrdiff_t>(cached));
    ASSERT_EQ(shadow.rows.FirstWrong(there), cached);
    shadow.rows.Write(tokens, cached);
  }

  void Publish(std::pair<const SequenceId, Shadow>* sequence) {
    auto& [id, shadow] = *sequence;
    shadow.published = shadow.tokens;
    shadow.published.resize(shadow.tokens.size() -
                            Below(2) * Below(shadow.tokens.size() + 1));
    ASSERT_TRUE(cache_->Publish(id, shadow.published).ok());
    history_.push_back(shadow.published);
  }

  void Fork() {
    const auto* const parent = Any(/*swapped=*/false);
    if (parent == nullptr) return;
    const Tokens tokens = parent->second.tokens;
    const uint64_t obtainable = Obtainable();
    const auto child = cache_->Fork(parent->first, stream_);
    if (!child.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(child.status()));
      ASSERT_TRUE(shadows_.size() == kMaxSequences ||
                  PagesOf(tokens.size()) > obtainable)
          << child.status();
      ++refusals_;
      return;
    }
    Begin(*child, tokens, tokens.size());
  }

  void Step() {
    std::vector<SequenceStep> steps;
    uint64_t grown = 0;
    for (const auto& [id, shadow] : shadows_) {
      if (shadow.swapped || Below(3) == 0) continue;
      const uint64_t by = Below(8) == 0 ? Below(100) : Below(3);
      const uint64_t length = std::min(kMaxTokens, shadow.tokens.size() + by);
      steps.push_back({id, length});
      // A page in every group may have to be copied first.
      if (length > shadow.longest)
        grown += PagesOf(length) - PagesOf(shadow.longest);
    }
    const uint64_t unshared = cache_->GetStatistics().pages_unshared;
    const uint64_t obtainable = Obtainable();
    const absl::Status status = cache_->Step(steps);
    const bool copied = cache_->GetStatistics().pages_unshared > unshared;
    if (!status.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
      ASSERT_GT(grown + 5 * steps.size(), obtainable) << status;
      ++refusals_;
      return;
    }
    if (!copied) {
      ASSERT_LE(grown, obtainable);
    }
    for (const SequenceStep& step : steps) {
      Shadow& shadow = shadows_.find(step.sequence)->second;
      const uint64_t from = shadow.tokens.size();
      while (shadow.tokens.size() < step.length)
        shadow.tokens.push_back(static_cast<int32_t>(random_()));
      shadow.longest = std::max<uint64_t>(shadow.longest, step.length);
      shadow.rows.Write(shadow.tokens, from);
    }
  }

  // Half of the time a kernel that started before runs on for a while.
  template <typename Kernel>
  Fence LateKernel(Kernel kernel) {
    if (Below(2) == 0) return Fence();
    const std::chrono::microseconds wait(Below(200));
    return device_.LaunchLate(stream_, wait, kernel);
  }

  void Shrink() {
    auto* const any = Any(/*swapped=*/false);
    if (any == nullptr) return;
    auto& [id, shadow] = *any;
    const uint64_t length = Below(shadow.tokens.size() + 1);
    ASSERT_TRUE(cache_->Shrink(id, length, LateKernel([] {})).ok());
    shadow.tokens.resize(length);
    shadow.longest = length;
    // Others may have what was published, or nobody any more.
    if (shadow.published.size() > length) {
      shadow.published.resize(length);
      if (!GetParam().tight) history_.clear();
    }
  }

  void Release() {
    if (shadows_.empty()) return;
    const auto it = Any();
    const Fence fence =
        it->second.swapped ? LateKernel([] {}) : LateReader(it->second);
    ASSERT_TRUE(cache_->Release(it->first, fence).ok());
    shadows_.erase(it);
  }
  Fence LateReader(const Shadow& shadow) {
    return LateKernel([shadow, this] {
      if (shadow.rows.FirstWrong(shadow.tokens) != shadow.tokens.size())
        ++late_errors_;
    });
  }

  void SwapOut() {
    auto* const any = Any(/*swapped=*/false);
    if (any == nullptr) return;
    auto& [id, shadow] = *any;
    const absl::Status status = cache_->SwapOut(id, LateReader(shadow));
    if (!status.ok()) {
      // Host memory is set aside for all of its pages, shared or not.
      ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
      const Bytes taken = cache_->GetStatistics().swap_taken;
      ASSERT_GT(PagesOf(shadow.longest) +
                    taken.value() / GetParam().page_size.value(),
                GetParam().swap_pages);
      ++refusals_;
      return;
    }
    shadow.swapped = true;
    // It is not found any more until it publishes again, unless others have it.
    if (!GetParam().tight) history_.clear();
  }
  void SwapIn() {
    auto* const any = Any(/*swapped=*/true);
    if (any == nullptr) return;
    auto& [id, shadow] = *any;
    const uint64_t obtainable = Obtainable();
    const absl::Status status = cache_->SwapIn(id);
    if (!status.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
      ASSERT_GT(PagesOf(shadow.longest), obtainable) << status;
      ++refusals_;
      return;
    }
    shadow.swapped = false;
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    CheckRows(shadow);
  }

  void Other() {
    if (!GetParam().tight) return;
    if (Below(2) == 0) {
      ASSERT_TRUE(
          device_.memory()
              ->Decommit(other_, PageCount(0), PageCount(other_pages_), Fence())
              .ok());
      other_pages_ = 0;
      return;
    }
    const uint64_t more =
        std::min(Below(GetParam().pages / 3), GetParam().pages - other_pages_);
    const bool fits = more <= Obtainable();
    const absl::Status status = device_.memory()->Commit(
        other_, PageCount(other_pages_), PageCount(more));
    ASSERT_EQ(status.ok(), fits) << status;
    if (fits) other_pages_ += more;
  }

  void Check() {
    ASSERT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    ASSERT_TRUE(device_.memory()->CheckInvariants().ok())
        << device_.memory()->CheckInvariants();
    const KvCacheStatistics statistics = cache_->GetStatistics();
    const uint64_t page = GetParam().page_size.value();
    ASSERT_EQ(statistics.committed.value() / page +
                  statistics.parked.value() / page + other_pages_,
              device_.live_pages());
    // The memory counts slots that cool as well.
    ASSERT_LE(statistics.shared, device_.memory()->GetStatistics().shared);
    uint32_t swapped = 0;
    for (const auto& [id, shadow] : shadows_) swapped += shadow.swapped ? 1 : 0;
    ASSERT_EQ(statistics.swapped_sequences, swapped);
    ASSERT_TRUE(swapped > 0 || statistics.swap_taken.zero());
    ASSERT_LE(statistics.swap_pinned, statistics.swap_space);
  }
  void CheckRows(const Shadow& shadow) {
    if (shadow.swapped) return;
    ASSERT_EQ(shadow.rows.FirstWrong(shadow.tokens), shadow.tokens.size());
  }

  TestDevice device_;
  std::unique_ptr<KvCache> cache_;
  StreamId stream_;
  AddressRange* other_ = nullptr;
  uint64_t other_pages_ = 0;
  std::mt19937_64 random_{20260607};
  std::map<SequenceId, Shadow> shadows_;
  std::vector<Tokens> history_;  // all that was published
  uint64_t clock_ = 0;
  std::atomic<int> late_errors_{0};
  int refusals_ = 0;
};

TEST_P(KvCacheShareModelTest, EverySequenceHasItsRowsAndPagesCountOnce) {
  for (int round = 0; round < 420; ++round) {
    SCOPED_TRACE(round);
    switch (Below(15)) {
      case 0:
      case 1:
      case 2:
        Prompt();
        break;
      case 3:
      case 4:
      case 5:
        Step();
        break;
      case 6:
        Fork();
        break;
      case 7:
        Shrink();
        break;
      case 8:
      case 9:
        Release();
        break;
      case 10:
        Other();
        break;
      case 11:
        cache_->AdvanceClock(++clock_);
        if (auto* const any = Any(/*swapped=*/false)) Publish(any);
        break;
      case 12:
        SwapOut();
        break;
      case 13:
      case 14:
        SwapIn();
        break;
    }
    if (HasFatalFailure()) return;
    Check();
    if (HasFatalFailure()) return;
    if (!shadows_.empty()) CheckRows(Any()->second);
    if (HasFatalFailure()) return;
  }
  for (const auto& [id, shadow] : shadows_) CheckRows(shadow);
  if (HasFatalFailure()) return;
  const KvCacheStatistics statistics = cache_->GetStatistics();
  EXPECT_GT(statistics.prefix_hits, 10u);
  EXPECT_GT(statistics.forks, 5u);
  // A page of 102 tokens is rarely written in its middle.
  if (GetParam().page_size < KiB(64)) {
    EXPECT_GT(statistics.pages_unshared, 0u);
  }
  EXPECT_GT(statistics.swaps_out, 10u);
  EXPECT_GT(statistics.swaps_in, 5u);
  if (GetParam().tight) {
    EXPECT_GT(refusals_, 10);
    EXPECT_GT(statistics.prefixes_evicted, 5u);
    EXPECT_GT(statistics.tails_packed, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, KvCacheShareModelTest,
    ::testing::Values(Setting{1, KiB(4), 4000, false, 0, 1000},
                      Setting{5, KiB(4), 4000, false, 1, 1000},
                      Setting{1, KiB(4), 160, true, 0, 100},
                      Setting{2, KiB(4), 140, true, 1, 60},
                      Setting{5, KiB(4), 140, true, 0, 200},
                      Setting{5, KiB(64), 16, true, 0, 12},
                      Setting{3, KiB(16), 40, true, 1, 30}));

}  // namespace
}  // namespace quire
