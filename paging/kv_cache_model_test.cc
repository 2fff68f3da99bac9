// The KV cache against a shadow model: plain arrays for the contents, and for
// the pages a count by hand of what the lengths need. In between kernels that
// run late read what was released, until their fence.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

constexpr uint64_t kMaxTokens = 400;
constexpr uint32_t kMaxSequences = 12;

struct Setting {
  uint32_t layers_per_row;
  Bytes page_size;
  uint64_t pages;
  uint64_t headroom;
  uint64_t map_ahead;
  bool values_apart = false;
  // Of layers 0, 2 and 4, or, as a limit, of all; 0: none.
  uint64_t window = 0;
  uint64_t sinks = 0;
  bool limit = false;
  bool eager = false;

  bool windowed(uint64_t layer) const {
    return window > 0 && (limit || layer % 2 == 0);
  }
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.layers_per_row << " layers per row, "
       << FormatBytes(setting.page_size) << " pages"
       << (setting.values_apart ? ", values apart" : "");
  if (setting.window > 0)
    *out << ", " << (setting.limit ? "limit" : "window") << " of "
         << setting.window << " tokens and " << setting.sinks << " sinks"
         << (setting.eager ? ", eager" : "");
}

// Elements of one token: [layer][key, value][element].
constexpr uint32_t kTokenElements = 5 * 2 * kTestElements;

// What the addresses of one sequence hold.
struct Shadow {
  std::vector<KvLayerView> views;  // by layer
  std::vector<uint32_t> elements;  // by token
  uint64_t longest = 0;            // since it was admitted or shrunk
  // Kernels see no window but of this many tokens and more.
  uint64_t base = 0;
  bool batch_ended = false;  // since its last step

  static bool Keeps(const Setting& setting, uint64_t base, uint64_t layer,
                    uint64_t token) {
    return !setting.windowed(layer) || token < setting.sinks ||
           token + setting.window >= base;
  }
  // Pages of which a layer keeps a token: counted one by one, 128 bytes a layer
  // and token, in one array or two.
  static uint64_t PagesOf(const Setting& setting, uint64_t tokens,
                          uint64_t base) {
    // A row has layers of one kind.
    std::vector<uint64_t> kinds[2];
    const bool mixed = setting.window > 0 && !setting.limit;
    for (uint64_t layer = 0; layer < 5; ++layer)
      kinds[mixed && layer % 2 != 0].push_back(layer);
    const uint64_t arrays = setting.values_apart ? 2 : 1;
    const uint64_t page = setting.page_size.value();
    uint64_t pages = 0;
    for (const std::vector<uint64_t>& layers : kinds) {
      for (size_t i = 0; i < layers.size(); i += setting.layers_per_row) {
        const uint64_t row =
            std::min<uint64_t>(setting.layers_per_row, layers.size() - i) *
            128 / arrays;
        uint64_t next = 0;  // page
        for (uint64_t token = 0; token < tokens; ++token) {
          if (!Keeps(setting, base, layers[i], token)) continue;
          const uint64_t end = (token * row + row + page - 1) / page;
          next = std::max(next, token * row / page);
          pages += arrays * (end - std::min(next, end));
          next = std::max(next, end);
        }
      }
    }
    return pages;
  }

  uint64_t length() const { return elements.size() / kTokenElements; }
  uint32_t* Address(uint64_t index) const {
    const uint64_t token = index / kTokenElements;
    const uint64_t in_token = index % kTokenElements;
    const KvLayerView& view = views[in_token / (2 * kTestElements)];
    const bool value = in_token / kTestElements % 2 != 0;
    const DeviceAddress row = value ? view.ValueRow(token) : view.KeyRow(token);
    return DeviceAddress(row.value() +
                         in_token % kTestElements * sizeof(uint32_t))
        .host_pointer<uint32_t>();
  }
  // The first token that differs where it is kept, or the length.
  uint64_t FirstWrongToken(const Setting& setting) const {
    for (uint64_t i = 0; i < elements.size(); ++i) {
      const uint64_t layer = i % kTokenElements / (2 * kTestElements);
      const uint64_t token = i / kTokenElements;
      if (Keeps(setting, base, layer, token) && *Address(i) != elements[i])
        return token;
    }
    return length();
  }
};

class KvCacheModelTest : public ::testing::TestWithParam<Setting> {
 protected:
  KvCacheModelTest()
      : device_(GetParam().pages, GetParam().page_size, MiB(512)) {
    KvCacheOptions options;
    options.max_sequence_length = kMaxTokens;
    options.max_sequences = kMaxSequences;
    options.headroom = PageCount(GetParam().headroom);
    options.map_ahead = PageCount(GetParam().map_ahead);
    options.page_ahead.max_steps = 40;
    options.eager_reclaim = GetParam().eager;
    KvModelShape shape(kTestShape);
    if (GetParam().limit) {
      options.limit = {GetParam().window + GetParam().sinks, GetParam().sinks};
    } else {
      for (const size_t layer : {0, 2, 4}) {
        shape.layers[layer].window = GetParam().window;
        shape.layers[layer].sinks = GetParam().sinks;
      }
    }
    cache_ = MakeCache(&device_,
                       *KvLayout::Create(shape, {GetParam().layers_per_row,
                                                 GetParam().values_apart}),
                       options);
    stream_ = *device_.driver()->CreateStream(DeviceId(0));
    other_ = *device_.memory()->ReserveRange(PageCount(GetParam().pages),
                                             kUnnamedOwner);
  }
  ~KvCacheModelTest() override {
    EXPECT_TRUE(device_.driver()->DestroyStream(stream_).ok());
    EXPECT_EQ(late_errors_, 0);
    device_.memory()->ReleaseRange(other_, Fence());
    cache_.reset();
  }

  uint64_t Below(uint64_t n) { return random_() % n; }

  // Of a new sequence.
  static uint64_t PagesOf(uint64_t tokens) {
    return Shadow::PagesOf(GetParam(), tokens, 0);
  }
  static uint64_t PagesOf(const Shadow& shadow) {
    return Shadow::PagesOf(GetParam(), shadow.longest, shadow.base);
  }
  // Pages that nobody needs: all of them can be had, parked, spare, cooling or
  // free as they may be.
  uint64_t Obtainable() const {
    uint64_t needed = other_pages_;
    for (const auto& [id, shadow] : shadows_) needed += PagesOf(shadow);
    return GetParam().pages - needed;
  }
  uint64_t ExpectedAdmissible() const {
    if (shadows_.size() == kMaxSequences) return 0;
    uint64_t tokens = 0;
    while (tokens < kMaxTokens &&
           PagesOf(tokens + 1) + GetParam().headroom <= Obtainable())
      ++tokens;
    return tokens;
  }

  void Write(Shadow* shadow, uint64_t length) {
    const uint64_t from = shadow->elements.size();
    shadow->elements.resize(length * kTokenElements);
    for (uint64_t i = from; i < shadow->elements.size(); ++i) {
      shadow->elements[i] = static_cast<uint32_t>(random_());
      *shadow->Address(i) = shadow->elements[i];
    }
    shadow->longest = std::max(shadow->longest, length);
  }

  std::map<SequenceId, Shadow>::iterator Any() {
    return std::next(shadows_.begin(),
                     static_cast<std::ptrdiff_t>(Below(shadows_.size())));
  }

  void Admit() {
    const uint64_t tokens =
        Below(4) == 0 ? Below(kMaxTokens + 1) : Below(kMaxTokens / 4);
    const bool fits = shadows_.size() < kMaxSequences &&
                      PagesOf(tokens) + GetParam().headroom <= Obtainable();
    ASSERT_EQ(cache_->AdmissibleTokens(), ExpectedAdmissible());
    const auto id = cache_->Admit(tokens);
    ASSERT_EQ(id.ok(), fits) << id.status();
    if (!id.ok()) {
      ++refusals_;
      return;
    }
    Shadow& shadow = shadows_[*id];
    for (uint32_t layer = 0; layer < 5; ++layer)
      shadow.views.push_back(*cache_->View(*id, layer));
    Write(&shadow, tokens);
  }

  void Step() {
    std::vector<SequenceStep> steps;
    uint64_t grown = 0;
    for (auto& [id, shadow] : shadows_) {
      if (Below(3) == 0) continue;
      const uint64_t by = Below(8) == 0 ? Below(120) : Below(3);
      const uint64_t length = std::min(kMaxTokens, shadow.length() + by);
      steps.push_back({id, length});
      // Also where the step fails.
      if (shadow.batch_ended)
        shadow.base =
            std::max(shadow.base, std::min(shadow.length() + 1, length));
      Shadow after;
      after.base = shadow.base;
      after.longest = std::max(shadow.longest, length);
      grown += PagesOf(after) - PagesOf(shadow);
    }
    std::shuffle(steps.begin(), steps.end(), random_);
    const bool fits = grown <= Obtainable();
    const absl::Status status = cache_->Step(steps);
    ASSERT_EQ(status.ok(), fits) << status;
    if (!fits) ++refusals_;
    for (const SequenceStep& step : steps) {
      Shadow& shadow = shadows_[step.sequence];
      if (fits) {
        Write(&shadow, step.length);
        shadow.batch_ended = false;
      }
      ASSERT_EQ(*cache_->Length(step.sequence), shadow.length());
    }
  }

  // Where all layers drop tokens the fork has rows of its own.
  void Fork() {
    if (shadows_.empty() || !GetParam().limit) return;
    const auto parent = Any();
    Shadow child = parent->second;
    child.longest = child.length();
    child.batch_ended = false;
    child.views.clear();
    const bool fits =
        shadows_.size() < kMaxSequences && PagesOf(child) <= Obtainable();
    const auto id = cache_->Fork(parent->first, stream_);
    ASSERT_EQ(id.ok(), fits) << id.status();
    if (!fits) {
      ++refusals_;
      return;
    }
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    // The copies are complete, and this sees it.
    ASSERT_TRUE(cache_->PrepareAhead(0).ok());
    for (uint32_t layer = 0; layer < 5; ++layer)
      child.views.push_back(*cache_->View(*id, layer));
    ASSERT_EQ(child.FirstWrongToken(GetParam()), child.length());
    shadows_[*id] = std::move(child);
    ++forks_;
  }

  // A kernel of the batch reads, late, what the next steps drop.
  void EndBatch() {
    if (shadows_.empty() || GetParam().window == 0) return;
    const auto it = Any();
    const Shadow& shadow = it->second;
    std::vector<const uint32_t*> addresses;
    for (uint64_t token = 0; token + GetParam().window < shadow.length();
         ++token) {
      if (Shadow::Keeps(GetParam(), shadow.base, 0, token))
        addresses.push_back(shadow.Address(token * kTokenElements));
    }
    cache_->EndBatch(LateKernel([addresses] {
      for (const uint32_t* address : addresses)
        (void)*static_cast<const volatile uint32_t*>(address);
    }));
    for (auto& [id, each] : shadows_) each.batch_ended = true;
  }

  // What is mapped ahead is as obtainable as before: the other operations say.
  // Its pages are free ones or parked ones.
  void PrepareAhead() {
    const uint64_t live = device_.live_pages();
    const Bytes committed = cache_->GetStatistics().committed;
    const auto pages = cache_->PrepareAhead(static_cast<uint32_t>(Below(60)));
    ASSERT_TRUE(pages.ok()) << pages.status();
    ASSERT_LE(device_.live_pages(), live + pages->value());
    const uint64_t more =
        cache_->GetStatistics().committed.value() - committed.value();
    // Less where pages behind windows went back.
    if (GetParam().window == 0) {
      ASSERT_EQ(more, pages->value() * GetParam().page_size.value());
    }
    pages_ahead_ += pages->value();
  }

  // Half of the time a kernel that started before runs on for a while, and
  // calls `kernel` at its end. With windows always, so that the fence covers
  // the kernels of EndBatch too.
  template <typename Kernel>
  Fence LateKernel(Kernel kernel) {
    if (GetParam().window == 0 && Below(2) == 0) return Fence();
    const std::chrono::microseconds wait(Below(300));
    return device_.LaunchLate(stream_, wait, kernel);
  }

  // The sequence goes on, and may overwrite what it has: its late kernels are
  // its own affair, so this one only delays the fence.
  void Shrink() {
    if (shadows_.empty()) return;
    auto& [id, shadow] = *Any();
    const uint64_t length = Below(shadow.length() + 1);
    // Late kernels of its own read what it may write again.
    ASSERT_TRUE(device_.driver()->SynchronizeStream(stream_).ok());
    const absl::Status status = cache_->Shrink(id, length, LateKernel([] {}));
    // Rows that the windows from there on see may be gone.
    const uint64_t base = shadow.base;
    const bool gone =
        Shadow::PagesOf(GetParam(), base, std::min(base, length + 1)) >
        Shadow::PagesOf(GetParam(), base, base);
    ASSERT_EQ(status.code(), gone ? absl::StatusCode::kFailedPrecondition
                                  : absl::StatusCode::kOk)
        << status;
    if (gone) {
      ++refusals_back_;
      return;
    }
    shadow.elements.resize(length * kTokenElements);
    shadow.longest = length;
    // What was not dropped is seen again.
    shadow.base = std::min(shadow.base, length + 1);
  }

  void Release() {
    if (shadows_.empty()) return;
    const auto it = Any();
    ASSERT_EQ(it->second.FirstWrongToken(GetParam()), it->second.length());
    // Nobody may take or write what a late kernel still reads.
    const Fence fence = LateKernel([shadow = it->second, this] {
      if (shadow.FirstWrongToken(GetParam()) != shadow.length()) ++late_errors_;
    });
    ASSERT_TRUE(cache_->Release(it->first, fence).ok());
    shadows_.erase(it);
  }

  // Another user of the memory takes pages, or gives all of its pages back.
  void Other() {
    if (Below(2) == 0) {
      ASSERT_TRUE(
          device_.memory()
              ->Decommit(other_, PageCount(0), PageCount(other_pages_), Fence())
              .ok());
      other_pages_ = 0;
      return;
    }
    const uint64_t more = Below(GetParam().pages / 4);
    const bool fits = more <= Obtainable();
    const absl::Status status = device_.memory()->Commit(
        other_, PageCount(other_pages_),
        PageCount(std::min(more, GetParam().pages - other_pages_)));
    ASSERT_EQ(status.ok(), fits) << status;
    if (fits) other_pages_ += more;
  }

  void CheckBooks() {
    ASSERT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
    ASSERT_TRUE(device_.memory()->CheckInvariants().ok())
        << device_.memory()->CheckInvariants();
    uint64_t tokens = 0;
    uint64_t rows = 0;
    for (const auto& [id, shadow] : shadows_) {
      tokens += shadow.length();
      for (uint64_t layer = 0; layer < 5; ++layer) {
        for (uint64_t token = 0; token < shadow.length(); ++token)
          rows += Shadow::Keeps(GetParam(), shadow.length(), layer, token);
      }
    }
    const KvCacheStatistics statistics = cache_->GetStatistics();
    ASSERT_EQ(statistics.sequences, shadows_.size());
    ASSERT_EQ(statistics.tokens, tokens);
    ASSERT_EQ(statistics.used, Bytes(128 * rows));
    const uint64_t page = GetParam().page_size.value();
    ASSERT_EQ(statistics.committed.value() / page +
                  statistics.parked.value() / page + other_pages_,
              device_.live_pages());
  }

  TestDevice device_;
  std::unique_ptr<KvCache> cache_;
  StreamId stream_;
  AddressRange* other_ = nullptr;
  uint64_t other_pages_ = 0;
  std::mt19937_64 random_{20240607};
  std::map<SequenceId, Shadow> shadows_;
  std::atomic<int> late_errors_{0};
  int refusals_ = 0;
  uint64_t pages_ahead_ = 0;
  int refusals_back_ = 0;
  int forks_ = 0;
};

TEST_P(KvCacheModelTest, EveryElementReadsBackAndEveryPageIsCounted) {
  for (int round = 0; round < 700; ++round) {
    SCOPED_TRACE(round);
    switch (Below(GetParam().limit ? 14 : 13)) {
      case 0:
      case 1:
      case 2:
        Admit();
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        Step();
        break;
      case 7:
        Shrink();
        break;
      case 8:
        Release();
        break;
      case 9:
        Other();
        break;
      case 10:
        PrepareAhead();
        break;
      case 11:
      case 12:
        EndBatch();
        break;
      case 13:
        Fork();
        break;
    }
    if (HasFatalFailure()) return;
    CheckBooks();
    if (HasFatalFailure()) return;
    if (!shadows_.empty()) {
      const auto it = Any();
      ASSERT_EQ(it->second.FirstWrongToken(GetParam()), it->second.length());
    }
  }
  for (const auto& [id, shadow] : shadows_)
    ASSERT_EQ(shadow.FirstWrongToken(GetParam()), shadow.length());
  // The memory was tight, and regions went from hand to hand.
  EXPECT_GT(refusals_, 20);
  EXPECT_GT(pages_ahead_, 0u);
  EXPECT_EQ(refusals_back_ > 0, GetParam().window > 0);
  EXPECT_EQ(forks_ > 0, GetParam().limit);
  EXPECT_GT(cache_->GetStatistics().adoptions, 5u);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, KvCacheModelTest,
    ::testing::Values(
        Setting{1, KiB(4), 150, 0, 0}, Setting{2, KiB(4), 150, 7, 0},
        Setting{2, KiB(4), 150, 3, 1, true}, Setting{5, KiB(4), 150, 0, 1},
        Setting{1, KiB(16), 90, 5, 1}, Setting{5, KiB(64), 12, 1, 0},
        Setting{3, KiB(64), 16, 0, 0},
        Setting{1, KiB(4), 130, 0, 0, false, 50, 0},
        Setting{5, KiB(4), 110, 3, 1, false, 40, 20, false, true},
        Setting{2, KiB(4), 90, 0, 0, true, 60, 3, true},
        Setting{5, KiB(4), 80, 2, 0, false, 70, 0, true, true}));

}  // namespace
}  // namespace quire
