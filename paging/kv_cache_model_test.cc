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
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.layers_per_row << " layers per row, "
       << FormatBytes(setting.page_size) << " pages"
       << (setting.values_apart ? ", values apart" : "");
}

// Elements of one token: [layer][key, value][element].
constexpr uint32_t kTokenElements = 5 * 2 * kTestElements;

// What the addresses of one sequence hold.
struct Shadow {
  std::vector<KvLayerView> views;  // by layer
  std::vector<uint32_t> elements;  // by token
  uint64_t longest = 0;            // since it was admitted or shrunk

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
  // The first token that differs, or the length.
  uint64_t FirstWrongToken() const {
    for (uint64_t i = 0; i < elements.size(); ++i) {
      if (*Address(i) != elements[i]) return i / kTokenElements;
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
    cache_ = MakeCache(
        &device_,
        TestLayout(GetParam().layers_per_row, GetParam().values_apart),
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

  // Counted by hand: 128 bytes a layer and token, in one array or two.
  static uint64_t PagesOf(uint64_t tokens) {
    const uint64_t page = GetParam().page_size.value();
    const uint64_t arrays = GetParam().values_apart ? 2 : 1;
    uint64_t pages = 0;
    for (uint32_t layer = 0; layer < 5; layer += GetParam().layers_per_row) {
      const uint64_t layers =
          std::min<uint64_t>(GetParam().layers_per_row, 5 - layer);
      pages += arrays * ((tokens * layers * 128 / arrays + page - 1) / page);
    }
    return pages;
  }
  // Pages that nobody needs: all of them can be had, parked, spare, cooling or
  // free as they may be.
  uint64_t Obtainable() const {
    uint64_t needed = other_pages_;
    for (const auto& [id, shadow] : shadows_) needed += PagesOf(shadow.longest);
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
    for (const auto& [id, shadow] : shadows_) {
      if (Below(3) == 0) continue;
      const uint64_t by = Below(8) == 0 ? Below(120) : Below(3);
      const uint64_t length = std::min(kMaxTokens, shadow.length() + by);
      steps.push_back({id, length});
      if (length > shadow.longest)
        grown += PagesOf(length) - PagesOf(shadow.longest);
    }
    std::shuffle(steps.begin(), steps.end(), random_);
    const bool fits = grown <= Obtainable();
    const absl::Status status = cache_->Step(steps);
    ASSERT_EQ(status.ok(), fits) << status;
    if (!fits) ++refusals_;
    for (const SequenceStep& step : steps) {
      Shadow& shadow = shadows_[step.sequence];
      if (fits) Write(&shadow, step.length);
      ASSERT_EQ(*cache_->Length(step.sequence), shadow.length());
    }
  }

  // What is mapped ahead is as obtainable as before: the other operations say.
  void PrepareAhead() {
    const uint64_t live = device_.live_pages();
    const auto pages = cache_->PrepareAhead(static_cast<uint32_t>(Below(60)));
    ASSERT_TRUE(pages.ok()) << pages.status();
    ASSERT_EQ(device_.live_pages(), live + pages->value());
    pages_ahead_ += pages->value();
  }

  // Half of the time a kernel that started before runs on for a while, and
  // calls `kernel` at its end.
  template <typename Kernel>
  Fence LateKernel(Kernel kernel) {
    if (Below(2) == 0) return Fence();
    EXPECT_TRUE(device_.driver()
                    ->LaunchHostFunction(
                        stream_,
                        [kernel, wait = std::chrono::microseconds(Below(300))] {
                          std::this_thread::sleep_for(wait);
                          kernel();
                        })
                    .ok());
    return *Fence::Record(device_.driver(), DeviceId(0),
                          std::span(&stream_, 1));
  }

  // The sequence goes on, and may overwrite what it has: its late kernels are
  // its own affair, so this one only delays the fence.
  void Shrink() {
    if (shadows_.empty()) return;
    auto& [id, shadow] = *Any();
    const uint64_t length = Below(shadow.length() + 1);
    ASSERT_TRUE(cache_->Shrink(id, length, LateKernel([] {})).ok());
    shadow.elements.resize(length * kTokenElements);
    shadow.longest = length;
  }

  void Release() {
    if (shadows_.empty()) return;
    const auto it = Any();
    ASSERT_EQ(it->second.FirstWrongToken(), it->second.length());
    // Nobody may take or write what a late kernel still reads.
    const Fence fence = LateKernel([shadow = it->second, this] {
      if (shadow.FirstWrongToken() != shadow.length()) ++late_errors_;
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
    for (const auto& [id, shadow] : shadows_) tokens += shadow.length();
    const KvCacheStatistics statistics = cache_->GetStatistics();
    ASSERT_EQ(statistics.sequences, shadows_.size());
    ASSERT_EQ(statistics.tokens, tokens);
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
};

TEST_P(KvCacheModelTest, EveryElementReadsBackAndEveryPageIsCounted) {
  for (int round = 0; round < 700; ++round) {
    SCOPED_TRACE(round);
    switch (Below(11)) {
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
    }
    if (HasFatalFailure()) return;
    CheckBooks();
    if (HasFatalFailure()) return;
    if (!shadows_.empty()) {
      const auto it = Any();
      ASSERT_EQ(it->second.FirstWrongToken(), it->second.length());
    }
  }
  for (const auto& [id, shadow] : shadows_)
    ASSERT_EQ(shadow.FirstWrongToken(), shadow.length());
  // The memory was tight, and regions went from hand to hand.
  EXPECT_GT(refusals_, 20);
  EXPECT_GT(pages_ahead_, 0u);
  EXPECT_GT(cache_->GetStatistics().adoptions, 20u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, KvCacheModelTest,
                         ::testing::Values(Setting{1, KiB(4), 150, 0, 0},
                                           Setting{2, KiB(4), 150, 7, 0},
                                           Setting{2, KiB(4), 150, 3, 1, true},
                                           Setting{5, KiB(4), 150, 0, 1},
                                           Setting{1, KiB(16), 70, 5, 1},
                                           Setting{5, KiB(64), 12, 1, 0},
                                           Setting{3, KiB(64), 16, 0, 0}));

}  // namespace
}  // namespace quire
