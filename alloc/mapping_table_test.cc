// Against one entry for each unit of addresses.

#include "alloc/mapping_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "alloc/testing/expect_status.h"

namespace quire {
namespace {

constexpr uint64_t kUnit = 4096;
constexpr uint64_t kBase = 0x100 * kUnit;

PhysicalPage Page(uint64_t handle, uint64_t units = 1, int device = 0) {
  return {PageHandle(handle), DeviceId(device), units * kUnit,
          handle * 100 * kUnit};
}

class MappingTableTest : public testing::Test {
 protected:
  void Map(uint64_t address, const std::vector<PhysicalPage>& pages) {
    auto mappings = table_.PlanMap(address, pages);
    ASSERT_TRUE(mappings.ok()) << mappings.status();
    table_.AddMappings(*std::move(mappings));
  }
  std::vector<uint64_t> Handles(uint64_t address, uint64_t size) const {
    std::vector<uint64_t> handles;
    for (const PageMapping& mapping : table_.FindOverlapping(address, size)) {
      handles.push_back(mapping.page.handle.value());
    }
    return handles;
  }

  MappingTable table_{kUnit};
};

TEST_F(MappingTableTest, PagesInTheMiddleOfACallGoAlone) {
  table_.AddReservation(kBase, 8 * kUnit);
  Map(kBase, {Page(1), Page(2), Page(3), Page(4), Page(5)});
  ASSERT_TRUE(table_.CheckUnmap(kBase + kUnit, 2 * kUnit).ok());
  table_.RemoveMappings(kBase + kUnit, 2 * kUnit);
  EXPECT_EQ(Handles(kBase, 8 * kUnit), (std::vector<uint64_t>{1, 4, 5}));
  Map(kBase + 2 * kUnit, {Page(9)});
  EXPECT_EQ(Handles(kBase, 8 * kUnit), (std::vector<uint64_t>{1, 9, 4, 5}));
  EXPECT_TRUE(table_.CheckUnmap(kBase + 2 * kUnit, 3 * kUnit).ok());
  EXPECT_FALSE(table_.CheckUnmap(kBase, 5 * kUnit).ok());
}

TEST_F(MappingTableTest, RefusesToUnmapAPartOfAPage) {
  table_.AddReservation(kBase, 8 * kUnit);
  Map(kBase, {Page(1, 2), Page(2, 2)});
  EXPECT_STATUS(kFailedPrecondition, "part of page 1",
                table_.CheckUnmap(kBase + kUnit, 3 * kUnit));
  EXPECT_STATUS(kFailedPrecondition, "part of page 2",
                table_.CheckUnmap(kBase, 3 * kUnit));
}

TEST_F(MappingTableTest, AQuarantinedPageStaysAmongItsNeighbours) {
  table_.AddReservation(kBase, 4 * kUnit);
  Map(kBase, {Page(1), Page(2), Page(3)});
  table_.Quarantine({kBase + kUnit, Page(2)});
  EXPECT_EQ(Handles(kBase, 4 * kUnit), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_STATUS(kFailedPrecondition, "quarantine",
                table_.CheckUnmap(kBase, 3 * kUnit));
  EXPECT_FALSE(table_.CheckAccess(kBase, 2 * kUnit).ok());
  EXPECT_TRUE(table_.CheckAccess(kBase, kUnit).ok());
}

TEST_F(MappingTableTest, AccessIsToMemoryOfOneDevice) {
  table_.AddReservation(kBase, 4 * kUnit);
  Map(kBase, {Page(1), Page(2)});
  Map(kBase + 2 * kUnit, {Page(3, 1, 1)});
  EXPECT_EQ(*table_.CheckAccess(kBase + 8, 2 * kUnit - 8), DeviceId(0));
  EXPECT_EQ(*table_.CheckAccess(kBase + 2 * kUnit, 8), DeviceId(1));
  EXPECT_FALSE(table_.CheckAccess(kBase, 3 * kUnit).ok());
  EXPECT_FALSE(table_.CheckAccess(kBase + 2 * kUnit, 2 * kUnit).ok());
}

// Calls of all lengths, of many arrays too, and of pages of several sizes.
TEST_F(MappingTableTest, AgreesWithOneEntryForEachUnit) {
  struct Model {
    uint64_t handle;
    uint64_t begin;  // of its page, in units
    uint64_t end;
  };
  constexpr uint64_t kUnits = 3000;
  std::mt19937_64 random(7);
  std::map<uint64_t, Model> units;
  uint64_t last_handle = 0;
  table_.AddReservation(kBase, kUnits * kUnit);
  for (int step = 0; step < 4000; ++step) {
    const uint64_t first = random() % kUnits;
    const uint64_t most = random() % 8 == 0 ? 1200 : 12;
    const uint64_t count = 1 + random() % std::min(most, kUnits - first);
    const uint64_t address = kBase + first * kUnit;
    const auto begin = units.lower_bound(first);
    const auto end = units.lower_bound(first + count);
    if (random() % 2 == 0) {
      std::vector<PhysicalPage> pages;
      for (uint64_t left = count; left > 0;) {
        const uint64_t size = std::min<uint64_t>(left, 1 + random() % 3);
        pages.push_back(Page(++last_handle, size));
        left -= size;
      }
      auto mappings = table_.PlanMap(address, pages);
      ASSERT_EQ(mappings.ok(), begin == end) << mappings.status();
      if (!mappings.ok()) continue;
      table_.AddMappings(*std::move(mappings));
      uint64_t at = first;
      for (const PhysicalPage& page : pages) {
        const uint64_t size = page.size / kUnit;
        for (uint64_t i = 0; i < size; ++i) {
          units[at + i] = {page.handle.value(), at, at + size};
        }
        at += size;
      }
    } else {
      const bool whole =
          static_cast<uint64_t>(std::distance(begin, end)) == count &&
          begin->second.begin == first &&
          std::prev(end)->second.end == first + count;
      const absl::Status unmaps = table_.CheckUnmap(address, count * kUnit);
      ASSERT_EQ(unmaps.ok(), whole) << unmaps;
      if (!whole) continue;
      if (random() % 2 == 0) {
        table_.RemoveMappings(address, count * kUnit);
      } else {
        const std::vector<uint64_t> before = Handles(address, count * kUnit);
        std::vector<uint64_t> taken;
        for (const PageMapping& mapping :
             table_.TakeMappings(address, count * kUnit)) {
          taken.push_back(mapping.page.handle.value());
        }
        ASSERT_EQ(taken, before);
      }
      units.erase(begin, end);
    }
    // All that there is, by walking, and a part of it.
    std::vector<uint64_t> expected;
    for (const auto& [unit, model] : units) {
      if (model.begin == unit) expected.push_back(model.handle);
    }
    std::vector<uint64_t> found;
    table_.ForEachMapping([&](const PageMapping& mapping) {
      found.push_back(mapping.page.handle.value());
    });
    ASSERT_EQ(found, expected);
    const uint64_t from = random() % kUnits;
    expected.clear();
    for (auto it = units.lower_bound(from);
         it != units.end() && it->first < from + 20; ++it) {
      if (expected.empty() || expected.back() != it->second.handle) {
        expected.push_back(it->second.handle);
      }
    }
    ASSERT_EQ(Handles(kBase + from * kUnit, 20 * kUnit), expected);
  }
  EXPECT_GT(last_handle, 1000u);
  table_.RemoveReservation(kBase);
  EXPECT_EQ(Handles(kBase, kUnits * kUnit), std::vector<uint64_t>{});
}

}  // namespace
}  // namespace quire
