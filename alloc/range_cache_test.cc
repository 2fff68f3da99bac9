#include "alloc/range_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "alloc/testing/fake_span.h"

namespace quire {
namespace {

TEST(RangeCacheTest, ServesNoMoreBytesTooManyThanAllowed) {
  FakeSpan range(0x10000, 16);
  RangeCache cache;
  cache.Insert(range.span());
  EXPECT_EQ(cache.FindFit(16, 0, Bytes(256)), range.span());
  EXPECT_EQ(cache.FindFit(15, 0, Bytes(256)), nullptr);
  EXPECT_EQ(cache.FindFit(14, 2, Bytes(256)), range.span());
  EXPECT_EQ(cache.FindFit(13, 2, Bytes(256)), nullptr);
  EXPECT_EQ(cache.FindFit(17, 2, Bytes(256)), nullptr);
  EXPECT_EQ(cache.FindFit(UINT64_MAX, UINT64_MAX, Bytes(256)), nullptr);
}

TEST(RangeCacheTest, LooksPastRangesOfTheWrongAlignment) {
  FakeSpan odd(0x10000, 8);
  FakeSpan even(0x40000, 9);
  RangeCache cache;
  cache.Insert(odd.span());
  cache.Insert(even.span());
  EXPECT_EQ(cache.FindFit(8, 1, Bytes(0x10000)), odd.span());
  EXPECT_EQ(cache.FindFit(8, 1, Bytes(0x20000)), even.span());
  EXPECT_EQ(cache.FindFit(8, 1, Bytes(0x80000)), nullptr);
}

TEST(RangeCacheTest, AgreesWithASearchOfAllRanges) {
  std::mt19937 random(3);
  std::vector<std::unique_ptr<FakeSpan>> spans;
  for (uint64_t i = 1; i <= 60; ++i) {
    spans.push_back(std::make_unique<FakeSpan>(i << 20, 1 + random() % 40));
  }
  RangeCache cache;
  std::vector<Span*> model;
  for (int step = 0; step < 20000; ++step) {
    Span* const span = spans[random() % spans.size()]->span();
    const auto at = std::find(model.begin(), model.end(), span);
    if (at == model.end()) {
      cache.Insert(span);
      model.push_back(span);
    } else {
      cache.Remove(span);
      model.erase(at);
    }
    const uint64_t bytes = 1 + random() % 45;
    const uint64_t excess = random() % 5;
    const uint64_t alignment = uint64_t{1} << (18 + random() % 6);
    Span* fit = nullptr;
    Span* covers = nullptr;
    Span* largest = nullptr;
    const auto less = [](const Span* a, const Span* b) {
      return std::tuple(a->slot_size, a->base) <
             std::tuple(b->slot_size, b->base);
    };
    for (Span* const candidate : model) {
      if (candidate->slot_size >= bytes &&
          (covers == nullptr || less(candidate, covers))) {
        covers = candidate;
      }
      if (candidate->slot_size >= bytes &&
          candidate->slot_size <= bytes + excess &&
          candidate->address().value() % alignment == 0 &&
          (fit == nullptr || less(candidate, fit))) {
        fit = candidate;
      }
      if (largest == nullptr || less(largest, candidate)) largest = candidate;
    }
    ASSERT_EQ(cache.FindFit(bytes, excess, Bytes(alignment)), fit);
    ASSERT_EQ(cache.size(), model.size());
    if (!cache.empty()) {
      ASSERT_EQ(cache.FindVictim(bytes), covers != nullptr ? covers : largest);
    }
  }
}

TEST(RangeCacheTest, SlabsTakeRangesOfWholePagesOnly) {
  FakeSpan seams(0x10000, 8192);
  seams.span()->head = {1, 512, 3584};
  FakeSpan whole(0x40000, 8192);
  RangeCache cache;
  cache.Insert(seams.span());
  EXPECT_EQ(cache.FindWholePages(2, 4096), nullptr);
  cache.Insert(whole.span());
  EXPECT_EQ(cache.FindWholePages(2, 4096), whole.span());
  EXPECT_EQ(cache.FindWholePages(1, 4096), nullptr);
}

}  // namespace
}  // namespace quire
