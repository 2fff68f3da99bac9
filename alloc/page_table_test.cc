// Against a plain map of what is held.

#include "alloc/page_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace quire {
namespace {

std::vector<uint64_t> Held(const PageTable& table) {
  std::vector<uint64_t> held;
  table.ForEach([&](const PageTable::Entry& entry) {
    held.push_back(entry.page.handle.value());
  });
  return held;
}

TEST(PageTableTest, AHandleIsNeverGivenTwice) {
  PageTable table;
  const PageHandle first = table.Add(DeviceId(0), 10, 0);
  ASSERT_TRUE(table.Release(first).ok());
  EXPECT_EQ(Held(table), std::vector<uint64_t>{});
  const PageHandle second = table.Add(DeviceId(0), 10, 0);
  EXPECT_NE(second, first);
  EXPECT_TRUE(absl::IsNotFound(table.Find(first).status()));
  EXPECT_TRUE(absl::IsNotFound(table.Release(first).status()));
  EXPECT_TRUE(table.Find(second).ok());
}

TEST(PageTableTest, HandlesThatWereNeverGivenAreUnknown) {
  PageTable table;
  EXPECT_TRUE(absl::IsNotFound(table.Find(PageHandle()).status()));
  EXPECT_TRUE(absl::IsNotFound(table.Find(PageHandle(1)).status()));
  table.Add(DeviceId(0), 10, 0);
  for (const uint64_t handle :
       {uint64_t{0}, uint64_t{2}, uint64_t{1000000}, UINT64_MAX}) {
    EXPECT_TRUE(absl::IsNotFound(table.Find(PageHandle(handle)).status()))
        << handle;
  }
}

TEST(PageTableTest, ARunIsOfOneDevice) {
  PageTable table;
  const PageHandle a = table.Add(DeviceId(0), 10, 0);
  const PageHandle b = table.Add(DeviceId(1), 10, 0);
  std::vector<PhysicalPage> run;
  EXPECT_TRUE(absl::IsInvalidArgument(table.FindRun({}, &run)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      table.FindRun(std::vector<PageHandle>{a, b}, &run)));
  EXPECT_EQ(table.FindRun(std::vector<PageHandle>{a, a}, &run),
            absl::OkStatus());
  EXPECT_EQ(run.size(), 2u);
}

TEST(PageTableTest, HoldsWhatAPlainMapHolds) {
  struct Model {
    uint64_t mappings = 0;
    bool released = false;
  };
  std::mt19937_64 random(11);
  PageTable table;
  std::map<uint64_t, Model> model;
  uint64_t given = 0;
  for (int step = 0; step < 30000; ++step) {
    // Up to some hundred, and down to none, over and over.
    const bool grows = step / 1500 % 2 == 0;
    const uint64_t kind = random() % 8;
    if (model.empty() || (grows ? kind < 4 : kind == 0)) {
      ++given;
      ASSERT_EQ(table.Add(DeviceId(0), 10, given * 10), PageHandle(given));
      model[given];
      continue;
    }
    const auto entry =
        random() % 4 == 0
            ? model.begin()
            : std::next(model.begin(),
                        static_cast<std::ptrdiff_t>(random() % model.size()));
    const PageHandle handle(entry->first);
    Model& page = entry->second;
    ASSERT_EQ(table.Find(handle).ok(), !page.released);
    ASSERT_EQ(table.MappingCount(handle), page.mappings);
    std::optional<PhysicalPage> freed;
    const bool drops = page.mappings > 0 && random() % 2 == 0;
    if (drops) {
      freed = table.DropMapping(handle);
      --page.mappings;
    } else if (!page.released && (!grows || random() % 4 == 0)) {
      const auto released = table.Release(handle);
      ASSERT_TRUE(released.ok());
      freed = *released;
      page.released = true;
    } else if (!page.released) {
      table.AddMapping(handle);
      ++page.mappings;
    }
    const bool gone = page.released && page.mappings == 0;
    ASSERT_EQ(freed.has_value(), gone);
    if (!gone) continue;
    EXPECT_EQ(freed->backing, entry->first * 10);
    model.erase(entry);
    ASSERT_TRUE(absl::IsNotFound(table.Release(handle).status()));
  }
  std::vector<uint64_t> held;
  for (const auto& [handle, page] : model) held.push_back(handle);
  EXPECT_EQ(Held(table), held);
  EXPECT_GT(given, 5000u);
}

}  // namespace
}  // namespace quire
