// The truth is a byte map of each physical page: who has which byte, and
// whether it is mapped. What a plan costs is compared with the best of all
// plans there are.

#include "alloc/seam_packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace quire {
namespace {

constexpr uint64_t kPage = 16 * kSeamBytes;

uint64_t BytesOf(const SeamPlan& plan) {
  return plan.head.length + plan.whole_pages * kPage + plan.tail.length;
}

TEST(SeamPackerTest, ARunOfAllocationsLeavesNoGaps) {
  // 1.5625 pages each, as 1280 x 1280 half-precision weights on 2 MiB pages.
  SeamPacker packer(kPage);
  uint64_t pages = 0;
  for (int i = 0; i < 32; ++i) {
    SeamPlan plan = packer.Plan(25 * kSeamBytes, true);
    packer.Place(&plan);
    EXPECT_EQ(BytesOf(plan), 25 * kSeamBytes);
    pages += plan.new_pages();
  }
  EXPECT_EQ(pages, 50u);  // 32 * 25 / 16
}

TEST(SeamPackerTest, EndsInTheSmallestRoomThatHoldsIt) {
  SeamPacker packer(kPage);
  // Two pages with room before a head: of 3 and of 5 units.
  SeamPlan plans[4];
  for (int i = 0; i < 4; ++i) {
    const uint64_t units[] = {3, 29, 5, 27};
    plans[i] = packer.Plan(units[i] * kSeamBytes, true);
    packer.Place(&plans[i]);
  }
  EXPECT_EQ(plans[1].head.length, 13 * kSeamBytes);
  EXPECT_EQ(plans[3].head.length, 11 * kSeamBytes);
  packer.Remove(plans[0].tail);
  packer.Remove(plans[2].tail);
  const SeamPlan plan = packer.Plan((16 + 4) * kSeamBytes, true);
  EXPECT_TRUE(plan.head.none());
  EXPECT_EQ(plan.whole_pages, 1u);
  EXPECT_EQ(plan.tail.page, plans[3].head.page);
  EXPECT_EQ(plan.new_pages(), 1u);
}

TEST(SeamPackerTest, BeginsOnABorderWhereItMust) {
  SeamPacker packer(kPage);
  SeamPlan first = packer.Plan(20 * kSeamBytes, true);
  packer.Place(&first);
  const SeamPlan aligned = packer.Plan(12 * kSeamBytes, false);
  EXPECT_TRUE(aligned.head.none());
  EXPECT_TRUE(aligned.tail_is_new);
  const SeamPlan free = packer.Plan(12 * kSeamBytes, true);
  EXPECT_EQ(free.head.offset, 4 * kSeamBytes);
  EXPECT_EQ(free.new_pages(), 0u);
}

TEST(SeamPackerTest, RoomThatIsStillInUseIsNotGivenAway) {
  SeamPacker packer(kPage);
  SeamPlan first = packer.Plan(20 * kSeamBytes, true);
  packer.Place(&first);
  SeamPlan second = packer.Plan(12 * kSeamBytes, true);
  packer.Place(&second);
  EXPECT_TRUE(packer.Unmap(second.head));
  EXPECT_EQ(packer.ending_bytes(), 12 * kSeamBytes);
  EXPECT_GT(packer.Plan(12 * kSeamBytes, true).new_pages(), 0u);
  packer.EndUse(second.head);
  EXPECT_EQ(packer.Plan(12 * kSeamBytes, true).new_pages(), 0u);
  // With its last mapping the page goes, whatever is still in use there.
  EXPECT_FALSE(packer.Unmap(first.tail));
  EXPECT_EQ(packer.page_count(), 0u);
  packer.EndUse(first.tail);
  EXPECT_EQ(packer.ending_bytes(), 0u);
}

class SeamPackerModelTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  struct Byte {
    uint64_t allocation = 0;  // 0: free
    bool mapped = false;
  };
  struct Live {
    uint64_t id;
    SeamPlan plan;
    bool idle = false;
  };

  std::vector<Byte>& Page(uint64_t id) {
    auto& page = pages_[id];
    page.resize(kPage / kSeamBytes);
    return page;
  }
  void Enter(uint64_t id, const SeamPiece& piece) {
    if (piece.none()) return;
    auto& page = Page(piece.page);
    ASSERT_LE(piece.offset + piece.length, kPage);
    for (uint64_t i = piece.offset; i < piece.offset + piece.length;
         i += kSeamBytes) {
      ASSERT_EQ(page[i / kSeamBytes].allocation, 0u);
      page[i / kSeamBytes] = {id, true};
    }
  }
  void Leave(const SeamPiece& piece, bool used) {
    if (piece.none()) return;
    auto& page = Page(piece.page);
    for (uint64_t i = piece.offset; i < piece.offset + piece.length;
         i += kSeamBytes) {
      page[i / kSeamBytes].mapped = false;
      if (!used) page[i / kSeamBytes].allocation = 0;
    }
    DropUnmapped();
  }
  void DropUnmapped() {
    std::erase_if(pages_, [](const auto& entry) {
      return std::none_of(entry.second.begin(), entry.second.end(),
                          [](const Byte& byte) { return byte.mapped; });
    });
  }
  uint64_t Before(const std::vector<Byte>& page) const {
    uint64_t n = 0;
    while (n < page.size() && page[n].allocation == 0) ++n;
    return n;
  }
  uint64_t Behind(const std::vector<Byte>& page) const {
    uint64_t n = 0;
    while (n < page.size() && page[page.size() - 1 - n].allocation == 0) ++n;
    return n;
  }
  // Fewest new pages, of all ways to begin and to end.
  uint64_t FewestNewPages(uint64_t units, bool within) const {
    constexpr uint64_t kUnits = kPage / kSeamBytes;
    uint64_t fewest = (units + kUnits - 1) / kUnits;
    const auto end = [&](uint64_t rest, uint64_t except) {
      const uint64_t tail = rest % kUnits;
      bool fits = tail == 0;
      for (const auto& [id, page] : pages_) {
        if (id != except && Before(page) >= tail) fits = true;
      }
      fewest = std::min(fewest, rest / kUnits + (fits ? 0 : 1));
    };
    end(units, 0);
    if (!within) return fewest;
    for (const auto& [id, page] : pages_) {
      const uint64_t room = Behind(page);
      if (room > 0 && room <= units) end(units - room, id);
      if (room >= units && units < kUnits) fewest = 0;
    }
    return fewest;
  }

  std::map<uint64_t, std::vector<Byte>> pages_;
};

TEST_P(SeamPackerModelTest, AgreesWithAMapOfBytes) {
  std::mt19937_64 random(GetParam());
  SeamPacker packer(kPage);
  std::vector<Live> live;
  std::vector<SeamPiece> ending;
  for (uint64_t step = 1; step < 4000; ++step) {
    if (live.empty() || (live.size() < 40 && random() % 2 == 0)) {
      const uint64_t units = 1 + random() % 50;
      const bool within = random() % 4 != 0;
      SeamPlan plan = packer.Plan(units * kSeamBytes, within);
      ASSERT_EQ(BytesOf(plan), units * kSeamBytes);
      ASSERT_EQ(plan.new_pages(), FewestNewPages(units, within));
      if (!within) {
        ASSERT_TRUE(plan.head.none());
      }
      packer.Place(&plan);
      Enter(step, plan.head);
      Enter(step, plan.tail);
      live.push_back({step, plan});
    } else if (random() % 8 == 0) {
      Live& changed = live[random() % live.size()];
      changed.idle = !changed.idle;
      packer.SetIdle(changed.plan.head, changed.idle);
      packer.SetIdle(changed.plan.tail, changed.idle);
    } else if (!ending.empty() && random() % 4 == 0) {
      packer.EndUse(ending.back());
      if (pages_.contains(ending.back().page)) Leave(ending.back(), false);
      ending.pop_back();
    } else {
      std::swap(live[random() % live.size()], live.back());
      for (const SeamPiece& piece :
           {live.back().plan.head, live.back().plan.tail}) {
        if (piece.none()) continue;
        if (random() % 2 == 0) {
          packer.Remove(piece);
          Leave(piece, false);
        } else {
          packer.Unmap(piece);
          Leave(piece, true);
          ending.push_back(piece);
        }
      }
      live.pop_back();
    }
    ASSERT_EQ(packer.CheckInvariants(), absl::OkStatus()) << step;
    ASSERT_EQ(packer.page_count(), pages_.size());
    uint64_t mapped = 0;
    uint64_t used = 0;
    uint64_t idle = 0;
    for (const auto& [id, page] : pages_) {
      bool busy = false;
      for (const Byte& byte : page) {
        mapped += byte.mapped ? kSeamBytes : 0;
        used += byte.allocation != 0 && !byte.mapped ? kSeamBytes : 0;
        for (const Live& one : live) {
          if (byte.mapped && one.id == byte.allocation && !one.idle) {
            busy = true;
          }
        }
      }
      idle += busy ? 0 : 1;
    }
    ASSERT_EQ(packer.mapped_bytes(), mapped);
    ASSERT_EQ(packer.ending_bytes(), used);
    ASSERT_EQ(packer.idle_pages(), idle);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SeamPackerModelTest,
                         ::testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace quire
