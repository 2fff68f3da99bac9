#include "alloc/slot_record.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace quire {
namespace {

TEST(SlotRecordTest, KeepsEachFieldApart) {
  for (const uint32_t waste : {0u, 1u, 255u, 4097u, SlotRecord::kMaxWaste}) {
    for (const uint32_t stream : {0u, 1u, 14u, 15u, SlotRecord::kOtherStream}) {
      for (const bool inherits : {false, true}) {
        const SlotRecord live = SlotRecord::Live(waste, stream, inherits);
        EXPECT_EQ(live.use(), SlotUse::kLive);
        EXPECT_EQ(live.waste(), waste);
        EXPECT_EQ(live.stream(), stream);
        EXPECT_EQ(live.inherits(), inherits);
        EXPECT_FALSE(live.special());
        EXPECT_FALSE(live.movable());
        const SlotRecord both = live.WithMovable(true).WithSpecial(true);
        EXPECT_TRUE(both.special() && both.movable());
        EXPECT_EQ(both.WithMovable(false).WithSpecial(false).word(),
                  live.word());
        const SlotRecord freed = both.Freed();
        EXPECT_EQ(freed.use(), SlotUse::kFreed);
        EXPECT_FALSE(freed.special() || freed.movable());
        EXPECT_EQ(freed.inherits(), inherits);
      }
    }
  }
  EXPECT_EQ(SlotRecord().use(), SlotUse::kUnused);
  EXPECT_FALSE(SlotRecord().special());
}

TEST(SlotRecordTest, IsPlainlyLiveForItsStreamWhereItInherits) {
  EXPECT_TRUE(SlotRecord::Live(0, 3, false).plainly_live_for(5));
  EXPECT_TRUE(SlotRecord::Live(0, 3, true).plainly_live_for(3));
  EXPECT_FALSE(SlotRecord::Live(0, 3, true).plainly_live_for(5));
  // Nobody knows which of several it is.
  constexpr uint32_t kOther = SlotRecord::kOtherStream;
  EXPECT_FALSE(SlotRecord::Live(0, kOther, true).plainly_live_for(kOther));
  EXPECT_FALSE(
      SlotRecord::Live(0, 3, false).WithSpecial(true).plainly_live_for(3));
  EXPECT_FALSE(SlotRecord::Live(0, 3, false).Freed().plainly_live_for(3));
  EXPECT_FALSE(SlotRecord().plainly_live_for(0));
}

// Every record that two bytes have room for, beside one that they have not.
TEST(SlotRecordTest, ShortPlacesKeepAllButHighStreams) {
  uint16_t words[3] = {0xabcd, 0, 0xabcd};
  const SlotRecordPlace place = SlotRecordPlace::Short(&words[1]);
  EXPECT_TRUE(place.is_short());
  EXPECT_EQ(place.address(), &words[1]);
  for (uint32_t waste = 0; waste <= SlotRecord::kMaxShortWaste; ++waste) {
    for (uint32_t stream = 0; stream <= SlotRecord::kOtherStream; ++stream) {
      for (uint32_t flags = 0; flags < 16; ++flags) {
        const SlotRecord live = SlotRecord::Live(waste, stream, flags & 1)
                                    .WithMovable(flags & 2)
                                    .WithSpecial(flags & 4);
        const SlotRecord record = (flags & 8) != 0 ? live.Freed() : live;
        place.store(record);
        ASSERT_EQ(place.load().use(), record.use());
        if (record.use() == SlotUse::kLive) {
          ASSERT_EQ(place.load().waste(), waste);
        }
        ASSERT_EQ(place.load().stream(),
                  stream < 15 ? stream : SlotRecord::kOtherStream);
        ASSERT_EQ(place.load().inherits(), record.inherits());
        ASSERT_EQ(place.load().movable(), record.movable());
        ASSERT_EQ(place.load().special(), record.special());
      }
    }
  }
  EXPECT_EQ(words[0], 0xabcd);
  EXPECT_EQ(words[2], 0xabcd);
  place.store(SlotRecord());
  EXPECT_EQ(place.load().use(), SlotUse::kUnused);
}

TEST(SlotRecordTest, LongPlacesKeepAll) {
  uint32_t words[3] = {0, 0, 0xabcdef01};
  const SlotRecordPlace first = SlotRecordPlace::Long(&words[0]);
  const SlotRecordPlace place = first + sizeof(uint32_t);
  EXPECT_EQ(place - first, sizeof(uint32_t));
  EXPECT_FALSE(place.is_short());
  const SlotRecord record =
      SlotRecord::Live(SlotRecord::kMaxWaste, 62, true).WithMovable(true);
  place.store(record);
  EXPECT_EQ(place.load().word(), record.word());
  EXPECT_EQ(first.load().word(), 0u);
  EXPECT_EQ(words[2], 0xabcdef01);
}

}  // namespace
}  // namespace quire
