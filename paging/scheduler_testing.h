// A cache that counts pages and holds nothing but the state that a scheduler
// must respect: what the tests of the scheduler hold it against.

#ifndef QUIRE_PAGING_SCHEDULER_TESTING_H_
#define QUIRE_PAGING_SCHEDULER_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/scheduler.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

// Sequences of whole pages of kPageTokens tokens, in `pages` pages in all. With
// a window they give back the pages that no kernel sees any more. Forks share
// the pages that their tokens fill; with a window, none.
class CountingCache : public SequenceCache, public SequenceSwap {
 public:
  static constexpr uint64_t kPageTokens = 16;
  static constexpr uint64_t kTokenBytes = 4;

  CountingCache(uint64_t pages, uint64_t max_tokens, uint64_t window = 0)
      : pages_(pages), max_tokens_(max_tokens), window_(window) {}

  // The most pages that a sequence has which is computed in such steps.
  static uint64_t PeakPages(uint64_t tokens, uint64_t window,
                            uint64_t step_tokens) {
    const uint64_t all = PagesOf(tokens);
    return window == 0 ? all : std::min(all, PagesOf(window + step_tokens) + 1);
  }

  const KvLayout& layout() const override { return layout_; }
  uint64_t max_sequence_length() const override { return max_tokens_; }
  bool KeepsAllTokens() const override { return window_ == 0; }

  absl::StatusOr<SequenceId> Admit(
      uint64_t tokens,
      std::optional<KvTokenLimit> limit = std::nullopt) override {
    admitted.push_back({.limit = limit});
    if (PagesOf(tokens) > free()) return Shortage();
    const SequenceId id(++last_id_);
    Sequence& sequence = sequences_[id];
    sequence = {.length = tokens, .batch = batch_};
    sequence.GrowTo(PagesOf(tokens));
    return id;
  }

  // Has the first `prefix` tokens of every prompt.
  absl::StatusOr<PromptAdmission> AdmitPrompt(
      std::span<const int32_t> tokens) override {
    const auto sequence = Admit(tokens.size());
    if (!sequence.ok()) return sequence.status();
    const uint64_t cached = std::min<uint64_t>(prefix, tokens.size() - 1);
    *written(*sequence) = cached;
    return PromptAdmission{*sequence, cached};
  }

  absl::StatusOr<PromptAdmission> AdmitPromptInSteps(
      std::span<const int32_t> tokens, uint64_t step_tokens,
      const SequenceOptions& options = {}) override {
    admitted.push_back(options);
    if (window_ == 0) return AdmitPrompt(tokens);
    const SequenceGrowth growth = {.tokens = tokens.size(),
                                   .step_tokens = step_tokens};
    if (!HasRoomFor(std::span(&growth, 1))) return Shortage();
    return AdmitPrompt(tokens.first(std::min(tokens.size(), step_tokens)));
  }

  bool HasRoomFor(std::span<const SequenceGrowth> growths) const override {
    uint64_t pages = 0;
    for (const SequenceGrowth& growth : growths) {
      const uint64_t peak =
          PeakPages(growth.tokens, window_, growth.step_tokens);
      const uint64_t now = !growth.forks ? PagesOf(growth.backed) -
                                               BehindWindow(growth.computed + 1)
                           : window_ == 0 ? growth.backed / kPageTokens
                                          : 0;
      pages += peak - std::min(peak, now);
    }
    return pages <= free();
  }

  bool PrepareRoom(std::span<const int32_t> prompt,
                   const SequenceGrowth& growth) override {
    rooms.emplace_back(prompt.size(), growth.tokens);
    return has_time;
  }

  void EndBatch(const Fence&) override { ++batch_; }

  absl::Status Publish(SequenceId id,
                       std::span<const int32_t> tokens) override {
    EXPECT_EQ(tokens.size(), *written(id)) << "published before it was written";
    published.push_back(tokens.size());
    return absl::OkStatus();
  }

  void ExpectPrompt(std::span<const int32_t> tokens, uint64_t turn) override {
    expected.emplace_back(tokens.size(), turn);
  }
  void AdvanceTurn(uint64_t turn) override { turns.push_back(turn); }

  absl::Status Step(std::span<const SequenceStep> steps) override {
    uint64_t wanted = 0;
    for (const SequenceStep& step : steps) {
      Sequence& sequence = sequences_.at(step.sequence);
      EXPECT_FALSE(sequence.swapped);
      EXPECT_LE(step.length, max_tokens_);
      if (sequence.batch != batch_ &&
          (step.length > sequence.length ||
           (sequence.stepped && step.length == sequence.length)))
        sequence.DropTo(
            BehindWindow(std::min(sequence.length + 1, step.length)));
      const uint64_t end = PagesOf(step.length);
      wanted += end - std::min(sequence.end(), end);
    }
    if (wanted > free()) return Shortage();
    for (const SequenceStep& step : steps) {
      Sequence& sequence = sequences_.at(step.sequence);
      sequence.length = step.length;
      sequence.GrowTo(PagesOf(step.length));
      sequence.batch = batch_;
      sequence.stepped = true;
    }
    return absl::OkStatus();
  }

  absl::Status Shrink(SequenceId, uint64_t, const Fence&) override {
    return absl::UnimplementedError("a scheduler does not shrink sequences");
  }

  absl::Status Release(SequenceId id, const Fence&) override {
    return sequences_.erase(id) == 1
               ? absl::OkStatus()
               : absl::NotFoundError(absl::StrCat("sequence ", id.value()));
  }

  absl::StatusOr<uint64_t> Length(SequenceId id) const override {
    const auto it = sequences_.find(id);
    if (it == sequences_.end())
      return absl::NotFoundError(absl::StrCat("sequence ", id.value()));
    return it->second.length;
  }

  uint64_t AdmissibleTokens() const override {
    return std::min(free() * kPageTokens, max_tokens_);
  }

  CacheUse Use() const override {
    return {.needed = BytesOf(used()),
            .held = BytesOf(used()),
            .capacity = BytesOf(pages_)};
  }

  absl::StatusOr<Bytes> FreedByRelease(SequenceId id) const override {
    const std::vector<Page>& pages = sequences_.at(id).pages;
    return BytesOf(static_cast<uint64_t>(std::ranges::count_if(
        pages, [](const Page& page) { return page.use_count() == 1; })));
  }

  absl::StatusOr<SequenceId> Fork(SequenceId id) override {
    const Sequence& parent = sequences_.at(id);
    EXPECT_FALSE(parent.swapped);
    EXPECT_EQ(parent.length, parent.written) << "forked before it was written";
    const uint64_t shared = window_ == 0 ? parent.length / kPageTokens : 0;
    if (refuse_forks) return absl::InternalError("no forks");
    if (parent.end() - parent.begin - shared > free()) return Shortage();
    Sequence child = parent;
    child.batch = batch_;
    child.pages.resize(shared);
    child.GrowTo(parent.end());
    const SequenceId fork(++last_id_);
    sequences_[fork] = std::move(child);
    return fork;
  }

  absl::StatusOr<KvLayerView> View(SequenceId, uint32_t) const override {
    return absl::UnimplementedError("a scheduler does not look at rows");
  }

  absl::Status CheckInvariants() const override { return absl::OkStatus(); }

  absl::Status SwapOut(SequenceId id, const Fence&) override {
    if (refuse_swaps) return absl::ResourceExhaustedError("no host memory");
    Sequence& sequence = sequences_.at(id);
    EXPECT_FALSE(sequence.swapped);
    sequence.swapped = true;
    sequence.out = sequence.end();
    sequence.pages.clear();
    return absl::OkStatus();
  }

  absl::Status SwapIn(SequenceId id) override {
    Sequence& sequence = sequences_.at(id);
    EXPECT_TRUE(sequence.swapped);
    if (refuse_swaps || sequence.out - sequence.begin > free())
      return Shortage();
    sequence.swapped = false;
    sequence.GrowTo(sequence.out);
    return absl::OkStatus();
  }

  // The tokens of a sequence whose keys and values were computed: a step that
  // leaves one out would attend to nothing.
  uint64_t* written(SequenceId id) { return &sequences_.at(id).written; }
  // The first token that the sequence still has.
  uint64_t first_kept(SequenceId id) const {
    return sequences_.at(id).begin * kPageTokens;
  }
  // Another one took pages, or gave them back.
  void set_pages(uint64_t pages) { pages_ = pages; }
  bool empty() const { return sequences_.empty(); }

  bool refuse_swaps = false;
  bool refuse_forks = false;
  bool has_time = true;  // to make room for admissions
  std::vector<std::pair<uint64_t, uint64_t>> rooms;  // known tokens, and all
  std::vector<SequenceOptions> admitted;             // or refused
  uint64_t prefix = 0;
  std::vector<uint64_t> published;                      // tokens of each call
  std::vector<std::pair<uint64_t, uint64_t>> expected;  // tokens and turn
  std::vector<uint64_t> turns;

 private:
  // As many as there are of them, sequences have it.
  using Page = std::shared_ptr<int>;
  struct Sequence {
    uint64_t length = 0;
    uint64_t begin = 0;  // the number of the first page
    std::vector<Page> pages;
    uint64_t out = 0;  // the end of what was swapped out
    uint64_t written = 0;
    uint64_t batch = 0;
    bool stepped = false;
    bool swapped = false;

    uint64_t end() const { return begin + pages.size(); }
    void GrowTo(uint64_t new_end) {
      while (end() < new_end) pages.push_back(std::make_shared<int>());
    }
    void DropTo(uint64_t new_begin) {
      for (; begin < new_begin; ++begin) pages.erase(pages.begin());
    }
  };

  static uint64_t PagesOf(uint64_t tokens) {
    return (tokens + kPageTokens - 1) / kPageTokens;
  }
  // Pages that the window of a sequence of `length` tokens has left.
  uint64_t BehindWindow(uint64_t length) const {
    return window_ == 0 || length <= window_ ? 0
                                             : (length - window_) / kPageTokens;
  }
  static Bytes BytesOf(uint64_t pages) {
    return Bytes(pages * kPageTokens * kTokenBytes);
  }
  static absl::Status Shortage() {
    return absl::ResourceExhaustedError("no pages");
  }
  uint64_t used() const {
    std::set<Page> pages;
    for (const auto& [id, sequence] : sequences_)
      pages.insert(sequence.pages.begin(), sequence.pages.end());
    return pages.size();
  }
  uint64_t free() const { return pages_ - std::min(pages_, used()); }

  const KvLayout layout_ = *KvLayout::Create({1, 1, 1, KvDType::kF16}, 1);
  uint64_t pages_;
  const uint64_t max_tokens_;
  const uint64_t window_;
  uint64_t batch_ = 1;
  uint64_t last_id_ = 0;
  std::map<SequenceId, Sequence> sequences_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_SCHEDULER_TESTING_H_
