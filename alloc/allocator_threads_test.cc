// Threads that allocate on their own streams and pass what they hold to each
// other: frees come from other threads and other streams. What each thread
// writes is checked by whoever frees it.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "alloc/testing/allocator_fixture.h"
#include "alloc/testing/pattern.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

// A block with the event that ends its last writer's work.
struct Parcel {
  Pattern pattern;
  EventId written;
};

// Where threads leave and find parcels.
class Exchange {
 public:
  // Leaves one and takes what was there.
  Parcel Swap(size_t i, Parcel parcel) {
    MutexLock lock(&mutex_);
    std::swap(parcels_[i % parcels_.size()], parcel);
    return parcel;
  }
  size_t size() const { return 64; }

 private:
  Mutex mutex_;
  std::array<Parcel, 64> parcels_ ABSL_GUARDED_BY(mutex_) = {};
};

class AllocatorThreadsTest : public AllocatorFixture {
 protected:
  static constexpr int kThreads = 4;

  void Work(int thread, int steps) {
    std::mt19937_64 random(thread + 1);
    const StreamId stream = streams_[thread];
    AllocateOptions options;
    options.stream = stream;
    for (int step = 0; step < steps; ++step) {
      const uint64_t size = random() % 8 == 0
                                ? random() % (3 * kPageBytes)
                                : random() % (uint64_t{1} << (random() % 15));
      const auto address = allocator_->Allocate(Bytes(size), options);
      Parcel mine = {};
      if (address.ok()) {
        mine.pattern = {*address, size, ++generation_};
        Launch(stream, [pattern = mine.pattern] { pattern.Write(); });
        mine.written = NewEvent();
        Expect(driver_->RecordEvent(mine.written, stream));
      } else if (!absl::IsResourceExhausted(address.status())) {
        Expect(address.status());
      }
      CheckAndFree(exchange_.Swap(random(), mine), stream,
                   /*record=*/random() % 8 == 0);
      switch (random() % 64) {
        case 0:
          allocator_->Trim(Bytes(random() % (4 * kPageBytes)));
          break;
        case 1:
          Expect(allocator_->CheckInvariants());
          break;
        case 2:
          (void)allocator_->GetStatistics();
          (void)allocator_->GetLargestPossible();
          (void)allocator_->CalculateLiveAllocations();
          break;
        default:
          break;
      }
    }
  }

  void CheckAndFree(const Parcel& parcel, StreamId stream, bool record) {
    const DeviceAddress address = parcel.pattern.address;
    if (address.null()) return;
    Expect(driver_->WaitEvent(stream, parcel.written));
    Launch(stream, [this, pattern = parcel.pattern] {
      if (!pattern.Holds()) ++corrupt_;
    });
    if (record) Expect(allocator_->RecordStream(address, streams_[0]));
    if (!allocator_->Find(address).has_value()) ++wrong_;
    Expect(allocator_->Free(address, stream));
    Expect(driver_->DestroyEvent(parcel.written));
  }

  EventId NewEvent() {
    const auto event = driver_->CreateEvent(DeviceId(0));
    Expect(event.status());
    return *event;
  }
  void Launch(StreamId stream, std::function<void()> work) {
    Expect(driver_->LaunchHostFunction(stream, std::move(work)));
  }
  // From any thread.
  void Expect(const absl::Status& status) {
    if (status.ok()) return;
    ++wrong_;
    ADD_FAILURE() << status;
  }

  Exchange exchange_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<uint64_t> corrupt_{0};
  std::atomic<uint64_t> wrong_{0};
};

TEST_F(AllocatorThreadsTest, PassBlocksToEachOther) {
  for (int i = 0; i < kThreads; ++i) MakeStream();
  std::atomic<bool> done{false};
  // Somebody else takes pages from the pool and gives them back.
  std::thread neighbour([&] {
    while (!done) {
      const auto range = memory_->ReserveRange(PageCount(6), kOwner);
      if (!range.ok()) continue;
      (void)memory_->TryCommit(*range, PageCount(0), PageCount(6));
      std::this_thread::yield();
      memory_->ReleaseRange(*range, Fence());
    }
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] { Work(i, 2000); });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  neighbour.join();
  for (size_t i = 0; i < exchange_.size(); ++i) {
    CheckAndFree(exchange_.Swap(i, Parcel{}), streams_[0], false);
  }
  for (const StreamId stream : streams_) {
    EXPECT_EQ(driver_->SynchronizeStream(stream), absl::OkStatus());
  }
  EXPECT_EQ(corrupt_, 0u);
  EXPECT_EQ(wrong_, 0u);
  EXPECT_EQ(Statistics().live_allocations, 0u);
  EXPECT_EQ(Statistics().live_bytes, 0u);
  EXPECT_EQ(Statistics().total_allocations, Statistics().total_frees);
  Free(AllocatePages(kLimitPages));
}

// A free takes no lock where it can: none may come between a pass's look at a
// block and its mark that the block moves. Nothing is moved here, since threads
// keep their pointers.
TEST_F(AllocatorThreadsTest, FreeWhilePassesBegin) {
  constexpr int kFreers = 2;
  constexpr size_t kMoves = 4'000;
  constexpr int kMostPasses = 20'000;
  std::atomic<bool> done{false};
  std::vector<std::thread> freers;
  for (int i = 0; i < kFreers; ++i) {
    freers.emplace_back([this, i, &done] {
      std::mt19937_64 random(i + 1);
      AllocateOptions options;
      options.movable = true;
      // Many, then few: what is left lies far apart, and would move.
      std::vector<DeviceAddress> held(512);
      for (uint64_t step = 0; !done; ++step) {
        DeviceAddress& address = held[random() % held.size()];
        const bool grows = step / held.size() % 2 == 0;
        if (address.null() != grows) continue;
        if (grows) {
          const auto made = allocator_->Allocate(Bytes(1000), options);
          Expect(made.status());
          if (made.ok()) address = *made;
          continue;
        }
        // Refused while it moves.
        const absl::Status freed = allocator_->Free(address);
        if (absl::IsFailedPrecondition(freed)) continue;
        Expect(freed);
        address = DeviceAddress();
      }
      for (const DeviceAddress address : held) {
        if (!address.null()) Expect(allocator_->Free(address));
      }
    });
  }
  size_t moves = 0;
  for (int i = 0; i < kMostPasses && moves < kMoves; ++i) {
    const auto section = QuiescentSection::Begin(memory_.get(), {});
    Expect(section.status());
    auto pass = allocator_->BeginRelocation(*section);
    Expect(pass.status());
    moves += pass->moves().size();
    for (size_t move = 0; move < pass->moves().size(); ++move) {
      pass->SetAction(move, MoveAction::kIgnore);
    }
    pass->End();
    Expect(allocator_->CheckInvariants());
    std::this_thread::yield();
  }
  done = true;
  for (std::thread& freer : freers) freer.join();
  EXPECT_EQ(wrong_, 0u);
  EXPECT_EQ(Statistics().live_allocations, 0u);
  EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
}

}  // namespace
}  // namespace quire
