// Runs of addresses against a plain map of taken pages.

#include "alloc/address_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "alloc/testing/test_driver.h"

namespace quire {
namespace {

constexpr Bytes kPage = KiB(64);

std::unique_ptr<TestDriver> MakeDriver() {
  HostDriverOptions options;
  options.granularity = kPage;
  options.memory_per_device = MiB(1);
  auto driver = TestDriver::Create(options);
  EXPECT_TRUE(driver.ok()) << driver.status();
  return *std::move(driver);
}

std::unique_ptr<AddressSpace> MakeSpace(Driver* driver, uint64_t pages) {
  const Bytes size(pages * kPage.value());
  auto space = AddressSpace::Create(driver, size, size, kPage);
  EXPECT_TRUE(space.ok()) << space.status();
  return *std::move(space);
}

// The shortest free run of `taken` that can hold the request, found by looking
// at every page. Nullopt where there is none.
std::optional<uint64_t> ShortestFit(const AddressSpace& space,
                                    const std::vector<bool>& taken,
                                    uint64_t pages, uint64_t alignment) {
  std::optional<uint64_t> best;
  for (uint64_t from = 0; from < taken.size();) {
    uint64_t to = from;
    while (to < taken.size() && !taken[to]) ++to;
    uint64_t at = from;
    while (at < to && space.AddressOf(at).value() % alignment != 0) ++at;
    if (at + pages <= to && (!best || to - from < *best)) best = to - from;
    from = to + 1;
  }
  return best;
}

TEST(AddressSpaceTest, RandomTakesAndReturnsAgreeWithAMapOfPages) {
  const auto driver = MakeDriver();
  constexpr uint64_t kPages = 96;
  struct Run {
    uint64_t first;
    uint64_t pages;
  };
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto space = MakeSpace(driver.get(), kPages);
    std::mt19937 random(seed);
    std::vector<bool> taken(kPages, false);
    std::vector<Run> runs;
    for (int step = 0; step < 400; ++step) {
      if (random() % 5 < 3) {
        const uint64_t pages = 1 + random() % 12;
        const uint64_t alignment = kPage.value() << (random() % 4);
        const auto fit = ShortestFit(*space, taken, pages, alignment);
        const auto first = space->Take(pages, alignment);
        ASSERT_EQ(first.has_value(), fit.has_value());
        if (!first) continue;
        ASSERT_EQ(space->AddressOf(*first).value() % alignment, 0u);
        // Best fit: the free run around the result is a shortest one.
        uint64_t from = *first;
        uint64_t to = *first;
        while (from > 0 && !taken[from - 1]) --from;
        while (to < kPages && !taken[to]) ++to;
        ASSERT_EQ(to - from, *fit);
        for (uint64_t i = 0; i < pages; ++i) {
          ASSERT_FALSE(taken[*first + i]);
          taken[*first + i] = true;
        }
        runs.push_back({*first, pages});
      } else if (!runs.empty()) {
        std::swap(runs[random() % runs.size()], runs.back());
        for (uint64_t i = 0; i < runs.back().pages; ++i) {
          taken[runs.back().first + i] = false;
        }
        space->Return(runs.back().first, runs.back().pages);
        runs.pop_back();
      }
      const auto free =
          static_cast<uint64_t>(std::count(taken.begin(), taken.end(), false));
      ASSERT_EQ(space->free_pages(), free);
      ASSERT_EQ(space->CheckInvariants(), absl::OkStatus());
    }
    // Everything coalesces.
    for (const Run& run : runs) space->Return(run.first, run.pages);
    EXPECT_EQ(space->largest_free_run(), kPages);
  }
  EXPECT_THAT(driver->Leaks(), ::testing::IsEmpty());
}

TEST(AddressSpaceTest, AlignmentsBeyondEveryAddressAreRefused) {
  const auto driver = MakeDriver();
  const auto space = MakeSpace(driver.get(), 8);
  EXPECT_EQ(space->Take(1, uint64_t{1} << 63), std::nullopt);
  EXPECT_EQ(space->Take(UINT64_MAX, 1), std::nullopt);
  EXPECT_EQ(space->free_pages(), 8u);
}

TEST(AddressSpaceTest, FindReadsWhatWasPublished) {
  const auto driver = MakeDriver();
  const auto space = MakeSpace(driver.get(), 8);
  auto* const range = reinterpret_cast<AddressRange*>(uintptr_t{8});
  space->Publish(2, 3, range);
  for (uint64_t page = 0; page < 8; ++page) {
    EXPECT_EQ(space->Find(space->AddressOf(page)),
              page >= 2 && page < 5 ? range : nullptr);
  }
  EXPECT_FALSE(space->Contains(space->AddressOf(8)));
  EXPECT_EQ(space->Find(space->AddressOf(8)), nullptr);
  EXPECT_EQ(space->Find(DeviceAddress(space->AddressOf(0).value() - 1)),
            nullptr);
}

}  // namespace
}  // namespace quire
