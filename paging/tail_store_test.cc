// The tail store against a model: what was written to a tail is there until it
// is freed, and no more pages are kept than hold something.

#include "paging/tail_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "paging/kv_cache_testing.h"

namespace quire {
namespace {

class TailStoreTest : public ::testing::Test {
 protected:
  TailStoreTest() {
    source_ = *device_.memory()->ReserveRange(PageCount(1), kUnnamedOwner);
  }
  ~TailStoreTest() override {
    store_.reset();
    device_.memory()->ReleaseRange(source_, Fence());
  }
  // A tail on a page of its own, as its region gives it up.
  TailStore::Tail TakeOver(Bytes size) {
    DeviceMemory* const memory = device_.memory();
    EXPECT_TRUE(memory->Commit(source_, PageCount(0), PageCount(1)).ok());
    const PageHandle page = memory->PageAt(source_, PageCount(0));
    auto tail = store_->TakeOver(std::span(&page, 1), 0, size, Fence());
    EXPECT_TRUE(tail.ok()) << tail.status();
    EXPECT_TRUE(
        memory->Decommit(source_, PageCount(0), PageCount(1), Fence()).ok());
    return *std::move(tail);
  }
  void Write(const TailStore::Tail& tail, uint8_t first) {
    for (const TailStore::Place& place :
         store_->PlacesOf(tail, 0, tail.size.value())) {
      for (uint64_t i = 0; i < place.size.value(); ++i)
        place.address.host_pointer<uint8_t>()[i] =
            static_cast<uint8_t>(first + place.from + i);
    }
  }
  bool Holds(const TailStore::Tail& tail, uint8_t first) {
    uint64_t next = 0;
    for (const TailStore::Place& place :
         store_->PlacesOf(tail, 0, tail.size.value())) {
      if (place.from != next) return false;
      for (uint64_t i = 0; i < place.size.value(); ++i, ++next) {
        if (place.address.host_pointer<uint8_t>()[i] !=
            static_cast<uint8_t>(first + next))
          return false;
      }
    }
    return next == tail.size.value();
  }

  TestDevice device_{64};
  std::unique_ptr<TailStore> store_ =
      std::make_unique<TailStore>(device_.memory(), kUnnamedOwner);
  AddressRange* source_ = nullptr;
};

TEST_F(TailStoreTest, IsEmptyAtFirst) {
  EXPECT_EQ(store_->pages(), PageCount(0));
  EXPECT_FALSE(store_->Take(Bytes(1)));
  EXPECT_TRUE(store_->IsIdle());
  EXPECT_TRUE(store_->CheckInvariants({}).ok());
}

TEST_F(TailStoreTest, APageGoesBackWithItsLastTail) {
  const TailStore::Tail first = TakeOver(Bytes(1000));  // 16 chunks of 64
  const auto second = store_->Take(Bytes(3072));        // the other 48
  ASSERT_TRUE(second);
  EXPECT_FALSE(store_->Take(Bytes(1)));
  store_->Free(first);
  EXPECT_EQ(device_.live_pages(), 1u);
  const auto third = store_->Take(Bytes(1024));
  ASSERT_TRUE(third);
  store_->Free(*second);
  store_->Free(*third);
  EXPECT_EQ(store_->pages(), PageCount(0));
  EXPECT_EQ(device_.live_pages(), 0u);
}

TEST_F(TailStoreTest, APartOfATailIsFoundAcrossPages) {
  const TailStore::Tail a = TakeOver(Bytes(4032));  // leaves a chunk
  const TailStore::Tail b = TakeOver(Bytes(3968));  // leaves two
  const auto split = store_->Take(Bytes(150));
  ASSERT_TRUE(split);
  ASSERT_EQ(split->pieces.size(), 2u);
  const auto places = store_->PlacesOf(*split, 60, 130);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].from, 60u);
  EXPECT_EQ(places[0].size, Bytes(4));
  EXPECT_EQ(places[1].from, 64u);
  EXPECT_EQ(places[1].size, Bytes(66));
  for (const TailStore::Tail& tail : {a, b, *split}) store_->Free(tail);
}

TEST_F(TailStoreTest, APageThatIsReadCoolsBeforeItGoes) {
  BlockedStream blocked(device_.driver());
  const TailStore::Tail tail = TakeOver(Bytes(64));
  store_->AddReader(blocked.Record());
  EXPECT_FALSE(store_->IsIdle());
  EXPECT_FALSE(store_->OffStream(blocked.stream()));
  EXPECT_TRUE(store_->OffStream(StreamId()));
  store_->Free(tail);
  EXPECT_EQ(device_.cooling_pages(), 1u);
  blocked.Unblock();
  EXPECT_TRUE(store_->IsIdle());
  EXPECT_FALSE(store_->OffStream(StreamId()));
}

TEST_F(TailStoreTest, TailsKeepTheirBytesWhateverComesAndGoes) {
  std::mt19937 random(7);
  std::vector<std::pair<TailStore::Tail, uint8_t>> tails;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    if (random() % 2 == 0 && tails.size() < 60) {
      const Bytes size(1 + random() % 3072);
      const bool fits = store_->ChunksOf(size) <= store_->free_chunks();
      std::optional<TailStore::Tail> tail = store_->Take(size);
      ASSERT_EQ(tail.has_value(), fits);
      if (!tail) tail = TakeOver(size);
      tails.push_back({*std::move(tail), static_cast<uint8_t>(random())});
      Write(tails.back().first, tails.back().second);
    } else if (!tails.empty()) {
      std::swap(tails[random() % tails.size()], tails.back());
      ASSERT_TRUE(Holds(tails.back().first, tails.back().second));
      store_->Free(tails.back().first);
      tails.pop_back();
    }
    std::vector<const TailStore::Tail*> all;
    for (const auto& [tail, first] : tails) all.push_back(&tail);
    ASSERT_TRUE(store_->CheckInvariants(all).ok())
        << store_->CheckInvariants(all);
    ASSERT_EQ(device_.live_pages(), store_->pages().value());
  }
  for (const auto& [tail, first] : tails) {
    EXPECT_TRUE(Holds(tail, first));
    store_->Free(tail);
  }
}

}  // namespace
}  // namespace quire
