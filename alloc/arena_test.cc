// Homes and detours show the same bytes, pages go from everywhere at once, and
// the accounts are those of a walk.

#include "alloc/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "alloc/testing/device_memory_fixture.h"

namespace quire {
namespace {

class ArenaTest : public DeviceMemoryFixture {
 protected:
  ArenaTest() {
    // So many that a chunk of them has some pages.
    DeviceMemoryOptions options = Options();
    options.address_space = Bytes(16 * kAddressPages * kPageBytes);
    MakeMemory(options);
    auto spans = SpanTable::Create(memory_->first_address(),
                                   options.address_space, kPage);
    EXPECT_TRUE(spans.ok());
    spans_ = *std::move(spans);
    marker_ = spans_->AddMarker(nullptr, kOwner);
    arena_ = std::make_unique<Arena>(kOwner, memory_.get(), spans_.get(),
                                     &total_, marker_);
    EXPECT_EQ(memory_->Prepare(PageCount(kLimitPages)), absl::OkStatus());
  }
  ~ArenaTest() override {
    Check();
    arena_->ReleaseAll(Fence());
  }

  void Check() {
    EXPECT_EQ(arena_->CheckInvariants(/*cooling_runs=*/0, held_),
              absl::OkStatus());
    EXPECT_EQ(arena_->CheckBacking(), absl::OkStatus());
    EXPECT_EQ(total_.bytes, arena_->backed_pages() * kPageBytes);
  }
  uint64_t Grow(uint64_t pages) {
    const auto begin = arena_->Grow(pages, Bytes(0));
    EXPECT_TRUE(begin.ok()) << begin.status();
    return begin.value_or(0);
  }
  void Hold(const Piece& piece) {
    arena_->TakeFree(piece);
    arena_->BecomeBusy(piece);
    held_ += piece.length;
  }
  void Free(const Piece& piece) {
    arena_->BecomeIdle(piece);
    arena_->InsertFree(piece);
    held_ -= piece.length;
  }
  void Give(const Piece& pages) {
    arena_->TakeFree(pages);
    arena_->Give(pages, Fence());
  }
  Detour* FindDetour(uint64_t bytes) {
    return arena_->FindDetour(bytes, 0, Bytes(1), [this](const Piece& piece) {
      return arena_->free_runs()
          .FindAround(piece.begin, piece.length)
          .has_value();
    });
  }
  static volatile uint64_t& At(uint64_t address) {
    return *DeviceAddress(address).host_pointer<volatile uint64_t>();
  }

  MappedTotal total_;
  std::unique_ptr<SpanTable> spans_;
  Span* marker_ = nullptr;
  std::unique_ptr<Arena> arena_;
  uint64_t held_ = 0;
};

TEST_F(ArenaTest, PagesThatAreMadeOneAfterAnotherLieSideBySide) {
  const uint64_t begin = Grow(2);
  EXPECT_EQ(Grow(1), begin + 2 * kPageBytes);
  EXPECT_EQ(arena_->free_runs().largest(), 3 * kPageBytes);
  EXPECT_EQ(arena_->free_pages(), 3u);
  EXPECT_EQ(spans_->Find(DeviceAddress(begin)), marker_);
}

TEST_F(ArenaTest, ADetourShowsTheBytesOfItsPieces) {
  if (!driver_->device_memory_is_host_memory()) GTEST_SKIP();
  const uint64_t begin = Grow(6);
  // The end of one page, a whole one, the beginning of another.
  const Pieces pieces = {{begin + kPageBytes / 2, kPageBytes / 2},
                         {begin + 4 * kPageBytes, kPageBytes},
                         {begin + 2 * kPageBytes, kPageBytes / 4}};
  for (const Piece& piece : pieces) Hold(piece);
  const auto detour = arena_->MakeDetour(pieces, Bytes(0));
  ASSERT_TRUE(detour.ok()) << detour.status();
  EXPECT_EQ((*detour)->bytes, kPageBytes * 7 / 4);
  uint64_t at = (*detour)->base;
  for (const Piece& piece : pieces) {
    for (uint64_t i = 0; i < piece.length;
         i += kPieceGrain, at += kPieceGrain) {
      At(at) = at;
      EXPECT_EQ(At(piece.begin + i), at);
    }
  }
  arena_->LeaveDetour(*detour, StreamId());
  for (const Piece& piece : pieces) Free(piece);
}

TEST_F(ArenaTest, AnIdleDetourIsFoundWhileItsBytesAreUnused) {
  const uint64_t begin = Grow(4);
  const Pieces pieces = {{begin, kPageBytes},
                         {begin + 2 * kPageBytes, kPageBytes}};
  for (const Piece& piece : pieces) Hold(piece);
  Detour* const detour = *arena_->MakeDetour(pieces, Bytes(0));
  EXPECT_EQ(FindDetour(2 * kPageBytes), nullptr);
  arena_->LeaveDetour(detour, StreamId());
  EXPECT_EQ(FindDetour(2 * kPageBytes), nullptr);
  for (const Piece& piece : pieces) Free(piece);
  EXPECT_EQ(FindDetour(2 * kPageBytes), detour);
  EXPECT_EQ(FindDetour(2 * kPageBytes - kPieceGrain), nullptr);
  const Piece part = {begin + 2 * kPageBytes + 1024, 512};
  Hold(part);
  EXPECT_EQ(FindDetour(2 * kPageBytes), nullptr);
  Free(part);
  EXPECT_EQ(FindDetour(2 * kPageBytes), detour);
}

// Whatever the order in which they were left, each round of a program takes
// them in that of the round before.
TEST_F(ArenaTest, DetoursAreTakenInTheOrderOfTheLastRound) {
  constexpr size_t kDetours = 5;
  const uint64_t begin = Grow(2 * kDetours);
  std::vector<Detour*> detours;
  for (size_t i = 0; i < kDetours; ++i) {
    const Pieces pieces = {{begin + (2 * i + 1) * kPageBytes, kPageBytes},
                           {begin + 2 * i * kPageBytes, kPageBytes}};
    for (const Piece& piece : pieces) Hold(piece);
    detours.push_back(*arena_->MakeDetour(pieces, Bytes(0)));
  }
  for (Detour* const detour : detours) {
    arena_->LeaveDetour(detour, StreamId());
    for (const Piece& piece : detour->pieces) Free(piece);
  }
  std::mt19937 random(5);
  for (int round = 0; round < 10; ++round) {
    std::vector<Detour*> taken;
    for (size_t i = 0; i < kDetours; ++i) {
      taken.push_back(FindDetour(2 * kPageBytes));
      ASSERT_NE(taken.back(), nullptr);
      arena_->TakeDetour(taken.back());
      for (const Piece& piece : taken.back()->pieces) Hold(piece);
    }
    EXPECT_EQ(taken, detours);
    std::shuffle(taken.begin(), taken.end(), random);
    for (Detour* const detour : taken) {
      arena_->LeaveDetour(detour, StreamId());
      for (const Piece& piece : detour->pieces) Free(piece);
    }
  }
  // One that is gone is nobody's successor.
  arena_->DropDetour(detours[2], Fence());
  detours.erase(detours.begin() + 2);
  for (size_t i = 0; i < detours.size(); ++i) {
    Detour* const detour = FindDetour(2 * kPageBytes);
    ASSERT_NE(detour, nullptr);
    arena_->TakeDetour(detour);
    for (const Piece& piece : detour->pieces) Hold(piece);
  }
  EXPECT_EQ(FindDetour(2 * kPageBytes), nullptr);
  for (Detour* const detour : detours) {
    arena_->LeaveDetour(detour, StreamId());
    for (const Piece& piece : detour->pieces) Free(piece);
  }
}

TEST_F(ArenaTest, APageThatGoesTakesItsDetoursWithIt) {
  const uint64_t begin = Grow(4);
  // Two pieces of one page.
  const Pieces pieces = {{begin + kPageBytes - 512, 512},
                         {begin + 2 * kPageBytes, kPageBytes},
                         {begin, 1024}};
  for (const Piece& piece : pieces) Hold(piece);
  Detour* const detour = *arena_->MakeDetour(pieces, Bytes(0));
  arena_->LeaveDetour(detour, StreamId());
  for (const Piece& piece : pieces) Free(piece);
  Give({begin, kPageBytes});
  EXPECT_EQ(FindDetour(kPageBytes + 1536), nullptr);
  EXPECT_EQ(memory_->GetStatistics().live, Bytes(3 * kPageBytes));
  Check();
  // Its place at home is the next page's.
  EXPECT_TRUE(arena_->CanGrowAt(begin, 1));
  EXPECT_EQ(Grow(1), begin);
}

TEST_F(ArenaTest, PartsOfPagesThatAreGivenUpWaitForTheirFence) {
  const StreamId stream = MakeStream();
  const uint64_t begin = Grow(4);
  const Piece piece = {begin + kPageBytes / 2, 3 * kPageBytes};
  Hold(piece);
  Gate gate(driver_.get(), stream);
  const auto fence =
      Fence::Record(faulty_.get(), DeviceId(0), std::span(&stream, 1));
  ASSERT_TRUE(fence.ok()) << fence.status();
  arena_->BecomeIdle(piece);
  held_ -= piece.length;
  arena_->GiveUp(piece, *fence);
  EXPECT_EQ(arena_->backed_pages(), 2u);
  EXPECT_EQ(arena_->ending_bytes(), kPageBytes);
  EXPECT_EQ(arena_->free_runs().bytes(), kPageBytes);
  EXPECT_FALSE(arena_->CanGrowAt(begin + kPageBytes, 1));
  Check();
  gate.Open();
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
  arena_->Poll();
  EXPECT_EQ(arena_->ending_bytes(), 0u);
  EXPECT_EQ(arena_->free_pages(), 2u);
  EXPECT_TRUE(arena_->CanGrowAt(begin + kPageBytes, 2));
}

TEST_F(ArenaTest, TheOldestDetoursGoFirstAndAllAtTheEnd) {
  const uint64_t begin = Grow(8);
  std::vector<Detour*> detours;
  for (uint64_t i = 0; i < 4; ++i) {
    const Piece piece = {begin + i * 2 * kPageBytes, (1 + i) * 512};
    Hold(piece);
    detours.push_back(*arena_->MakeDetour({piece}, Bytes(0)));
    arena_->LeaveDetour(detours.back(), StreamId());
    Free(piece);
  }
  const auto may_record = [](StreamId /*stream*/) { return true; };
  EXPECT_EQ(arena_->TrimDetours(/*keep=*/3, may_record), 1u);
  EXPECT_EQ(FindDetour(512), nullptr);
  EXPECT_EQ(FindDetour(1024), detours[1]);
  EXPECT_EQ(arena_->TrimDetours(/*keep=*/0, may_record), 3u);
  EXPECT_EQ(FindDetour(1024), nullptr);
}

TEST_F(ArenaTest, ADetourWhoseStreamMayNotBeAskedStays) {
  const StreamId stream = MakeStream();
  const Piece piece = {Grow(1), 512};
  Hold(piece);
  arena_->LeaveDetour(*arena_->MakeDetour({piece}, Bytes(0)), stream);
  Free(piece);
  EXPECT_EQ(arena_->TrimDetours(0, [](StreamId) { return false; }), 0u);
  EXPECT_EQ(arena_->TrimDetours(0, [](StreamId) { return true; }), 1u);
}

TEST_F(ArenaTest, AddressesGoBackWithTheLastPage) {
  const uint64_t begin = Grow(3);
  EXPECT_FALSE(spans_->WasUsed(DeviceAddress(begin + 3 * kPageBytes)));
  Give({begin, 3 * kPageBytes});
  EXPECT_EQ(memory_->GetStatistics().reserved, Bytes(0));
  EXPECT_EQ(spans_->Find(DeviceAddress(begin)), nullptr);
  // What lay there is remembered.
  EXPECT_TRUE(spans_->WasUsed(DeviceAddress(begin + 3 * kPageBytes - 1)));
}

// Random pieces come and go; what is told of pages is counted byte by byte.
TEST_F(ArenaTest, AgreesWithAMapOfBytes) {
  constexpr uint64_t kPages = 12;
  constexpr uint64_t kGrains = kPages * kPageBytes / kPieceGrain;
  const uint64_t begin = Grow(kPages);
  std::vector<bool> held(kGrains);
  std::mt19937_64 random(5);
  std::vector<Piece> pieces;
  for (int step = 0; step < 4000; ++step) {
    if (random() % 2 == 0 && !pieces.empty()) {
      const size_t i = random() % pieces.size();
      Free(pieces[i]);
      for (uint64_t at = pieces[i].begin; at < pieces[i].end();
           at += kPieceGrain) {
        held[(at - begin) / kPieceGrain] = false;
      }
      pieces[i] = pieces.back();
      pieces.pop_back();
    } else {
      const uint64_t bytes = (1 + random() % (kGrains / 4)) * kPieceGrain;
      const auto fit = arena_->free_runs().FindFit(bytes, Bytes(1));
      if (!fit) continue;
      pieces.push_back({*fit, bytes});
      Hold(pieces.back());
      for (uint64_t at = *fit; at < *fit + bytes; at += kPieceGrain) {
        ASSERT_FALSE(held[(at - begin) / kPieceGrain]);
        held[(at - begin) / kPieceGrain] = true;
      }
    }
    uint64_t idle = 0;
    constexpr uint64_t kGrainsOfPage = kPageBytes / kPieceGrain;
    for (uint64_t page = 0; page < kPages; ++page) {
      bool any = false;
      for (uint64_t i = 0; i < kGrainsOfPage; ++i) {
        any = any || held[page * kGrainsOfPage + i];
      }
      idle += any ? 0 : 1;
    }
    ASSERT_EQ(arena_->idle_pages(), idle);
    ASSERT_EQ(arena_->free_pages(), idle);
  }
  for (const Piece& piece : pieces) Free(piece);
}

}  // namespace
}  // namespace quire
