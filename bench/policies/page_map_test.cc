// Page maps of a device that was laid out by hand, and of every policy against
// what it says of itself.

#include "bench/policies/page_map.h"

#include <string>
#include <vector>

#include "bench/policies/policy_registry.h"
#include "bench/policies/policy_replay.h"
#include "bench/policies/policy_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPage = PageMap::kPage.value();

class PageMapTest : public PolicyTest {
 protected:
  HostDriver* driver() { return device_->driver(); }
  PageHandle CreatePage(uint64_t pages) {
    return *driver()->CreatePage(DeviceId(0), Bytes(pages * kPage));
  }
  void Map(uint64_t address, PageHandle page) {
    EXPECT_TRUE(driver()->Map(DeviceAddress(address), {&page, 1}).ok());
  }
};

TEST_F(PageMapTest, CountsMemoryWhereItLies) {
  EXPECT_THAT(MapPages(*driver(), {}).requested, IsEmpty());
  const PageHandle gone = CreatePage(1);
  const PageHandle wide = CreatePage(2);
  const PageHandle shared = CreatePage(1);
  const uint64_t base =
      driver()->ReserveAddress(Bytes(8 * kPage), Bytes(0))->value();
  ASSERT_TRUE(driver()->ReleasePage(gone).ok());
  Map(base, shared);
  Map(base + kPage, wide);
  Map(base + 4 * kPage, shared);

  const std::vector<LiveRange> live = {
      // The second half of `shared` and the first quarter of `wide`.
      {DeviceAddress(base + kPage / 2), Bytes(kPage)},
      // The rest of it, but for a byte.
      {DeviceAddress(base + kPage + kPage / 2), Bytes(kPage + kPage / 2 - 1)},
      // `shared` under its other address.
      {DeviceAddress(base + 4 * kPage), Bytes(3)},
      // Not mapped.
      {DeviceAddress(base + 6 * kPage), Bytes(kPage)}};
  EXPECT_THAT(MapPages(*driver(), live).requested,
              ElementsAre(PageMap::kNotHeld, kPage, kPage - 1, kPage / 2 + 3));
}

TEST(FoldPageMapTest, TellsNearlyFullFromFull) {
  PageMap map;
  map.requested = {kPage, kPage, kPage, kPage - 1, 0, 1, -1, -1, kPage / 2};
  const FoldedPageMap each = FoldPageMap(map, 10, 100);
  EXPECT_EQ(each.pages_per_cell, 1u);
  EXPECT_THAT(each.percent,
              ElementsAre(100, 100, 100, 99, 0, 1, -1, -1, 50, -1));
  const FoldedPageMap pairs = FoldPageMap(map, 10, 6);
  EXPECT_EQ(pairs.pages_per_cell, 2u);
  EXPECT_THAT(pairs.percent, ElementsAre(100, 99, 1, -1, 50));
  EXPECT_THAT(pairs.held_percent, ElementsAre(100, 100, 100, 0, 50));
}

// A policy that hands out memory twice, or claims less than it holds, is found
// out by where its memory lies.
TEST_F(PageMapTest, EveryPolicyHoldsWhatItSays) {
  const auto trace = ReadQuireCsv("op,id,bytes,stream\n" + MakeChurnRows());
  ASSERT_TRUE(trace.ok()) << trace.status();
  for (const PolicyKind& kind : PolicyKinds()) {
    SCOPED_TRACE(kind.name);
    const auto device = *SimulatedDevice::Create(GiB(16));
    const auto policy = *ParsePolicySpec(kind.name)->Create(device.get());
    PolicyLookOptions options;
    options.page_map_points = 20;
    options.page_map_event = 1000;
    const auto looks =
        LookIntoPolicy(*trace, device.get(), policy.get(), options);
    ASSERT_TRUE(looks.ok()) << looks.status();
    ASSERT_EQ(looks->page_maps.size(), 20u);
    ASSERT_TRUE(looks->page_map_at_event);
    EXPECT_EQ(looks->page_map_at_event->moment.event, 1000u);
    std::vector<PolicyPageMap> maps = looks->page_maps;
    maps.push_back(*looks->page_map_at_event);
    maps.push_back(*looks->page_map_at_end);
    for (const PolicyPageMap& map : maps) {
      SCOPED_TRACE(map.moment.event);
      uint64_t held = 0;
      uint64_t requested = 0;
      for (const int64_t bytes : map.pages.requested) {
        if (bytes == PageMap::kNotHeld) continue;
        EXPECT_LE(bytes, static_cast<int64_t>(kPage));
        held += kPage;
        requested += static_cast<uint64_t>(bytes);
      }
      EXPECT_EQ(requested, map.moment.requested.value());
      EXPECT_EQ(held, map.moment.use.reserved.value());
    }
  }
}

}  // namespace
}  // namespace quire
