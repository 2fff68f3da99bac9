// Hooks of the device memory, called on account of what an allocator does:
// never under a lock of either.

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/quiescent.h"

namespace quire {
namespace {

// Frees what it was given, one after another, and allocates meanwhile.
class Saver : public MemoryHooks {
 public:
  explicit Saver(DeviceAllocator* allocator) : allocator_(allocator) {}

  Bytes OnOutOfMemory(const OutOfMemoryVerdict& verdict) override {
    verdicts.push_back(verdict);
    if (spare.empty()) return Bytes(0);
    const Bytes size = allocator_->Find(spare.back())->requested;
    EXPECT_EQ(allocator_->Free(spare.back()), absl::OkStatus());
    spare.pop_back();
    return size;
  }
  void OnPagesMapped(const MappingChange& change) override {
    mapped += change.pages.value();
    UseAllocator();
  }
  void OnPagesUnmapped(const MappingChange& change) override {
    unmapped += change.pages.value();
    UseAllocator();
  }

  std::vector<DeviceAddress> spare;
  std::vector<OutOfMemoryVerdict> verdicts;
  uint64_t mapped = 0;
  uint64_t unmapped = 0;

 private:
  void UseAllocator() {
    (void)allocator_->GetStatistics();
    EXPECT_EQ(allocator_->CheckInvariants(), absl::OkStatus());
  }

  DeviceAllocator* const allocator_;
};

// Waits for a thread that comes to have caches of the allocator, and ends.
class Bystander : public MemoryHooks {
 public:
  Bystander(DeviceAllocator* allocator, const std::vector<StreamId>& streams)
      : allocator_(allocator), streams_(streams) {}

  void OnPagesUnmapped(const MappingChange& /*change*/) override {
    if (!armed.exchange(false)) return;
    std::thread([this] {
      for (const StreamId stream : streams_) {
        AllocateOptions options;
        options.stream = stream;
        const auto address = allocator_->Allocate(Bytes(100), options);
        ASSERT_TRUE(address.ok()) << address.status();
        EXPECT_EQ(allocator_->Free(*address, stream), absl::OkStatus());
      }
    }).join();
    called.store(true);
  }

  std::atomic<bool> armed{false};
  std::atomic<bool> called{false};

 private:
  DeviceAllocator* const allocator_;
  const std::vector<StreamId> streams_;
};

// Takes a little for another owner when pages go.
class Taker : public MemoryHooks {
 public:
  Taker(DeviceAllocator* allocator, OwnerId owner)
      : allocator_(allocator), owner_(owner) {}

  void OnPagesUnmapped(const MappingChange& /*change*/) override {
    if (std::exchange(taken, true)) return;
    AllocateOptions options;
    options.owner = owner_;
    const auto address = allocator_->Allocate(Bytes(100), options);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(allocator_->Free(*address), absl::OkStatus());
  }

  bool taken = false;

 private:
  DeviceAllocator* const allocator_;
  const OwnerId owner_;
};

class AllocatorHooksTest : public AllocatorFixture {
 protected:
  AllocatorHooksTest() : saver_(allocator_.get()) {
    memory_->AddHooks(&saver_);
  }
  ~AllocatorHooksTest() override { memory_->RemoveHooks(&saver_); }

  Saver saver_;
};

TEST_F(AllocatorHooksTest, AHookMayFreeWhatTheRequestNeeds) {
  for (int i = 0; i < 4; ++i) {
    saver_.spare.push_back(AllocatePages(kLimitPages / 4));
  }
  Free(AllocatePages(kLimitPages / 2));
  EXPECT_EQ(saver_.spare.size(), 2u);
  EXPECT_EQ(saver_.verdicts.size(), 2u);
  // Small requests are as good as large ones.
  saver_.spare.push_back(AllocatePages(kLimitPages / 2));
  Free(Allocate(100));
  EXPECT_EQ(saver_.spare.size(), 2u);
}

// To keep to a limit takes pages, which a hook is told of: what it allocates
// then is not part of what is promised afterwards.
TEST_F(AllocatorHooksTest, WhatIsPromisedComesAfterTheHooks) {
  Free(AllocatePages(10));  // which lie side by side
  Allocate(kPageBytes * 19 / 8);
  const DeviceAddress large = Allocate(kPageBytes * 21 / 4);
  Allocate(kPageBytes * 19 / 8);
  AllocatePages(kLimitPages - 12);
  // What is given up for the other owner is lost to this one.
  OwnerLimits limits;
  limits.reserved_minimum = kPage;
  ASSERT_EQ(memory_->SetOwnerLimits(kOwner, limits), absl::OkStatus());
  const DeviceAddress spare = AllocatePages(1);
  Free(large);
  Free(spare);
  ASSERT_EQ(memory_->SetLimit(Bytes((kLimitPages - 2) * kPageBytes)),
            absl::OkStatus());
  Taker taker(allocator_.get(), kOwner);
  memory_->AddHooks(&taker);
  const uint64_t largest = allocator_->GetLargestPossible().value();
  EXPECT_TRUE(taker.taken);
  EXPECT_GE(largest, 4 * kPageBytes);
  Allocate(largest);
  memory_->RemoveHooks(&taker);
}

TEST_F(AllocatorHooksTest, RunWithoutALockWhenAThreadEnds) {
  Bystander bystander(allocator_.get(), {MakeStream(), MakeStream()});
  memory_->AddHooks(&bystander);
  std::thread([&] {
    std::vector<DeviceAddress> live;
    for (int i = 0; i < 128; ++i) live.push_back(Allocate(kPageBytes / 8));
    for (size_t i = live.size(); i-- > 0;) {
      if (i % 8 == 0) continue;
      Free(live[i]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    }
    {
      const auto section = QuiescentSection::Begin(memory_.get(), {});
      ASSERT_TRUE(section.ok());
      const auto report =
          allocator_->Mesh(*section, {.smallest_slot = Bytes(0)});
      ASSERT_TRUE(report.ok());
      ASSERT_GT(report->pages_freed, PageCount(0));
    }
    // They stay in the cache of the thread. When it ends, the slabs that share
    // a page with another go.
    for (const DeviceAddress address : live) Free(address);
    bystander.armed.store(true);
  }).join();
  EXPECT_TRUE(bystander.called.load());
  memory_->RemoveHooks(&bystander);
}

TEST_F(AllocatorHooksTest, WhereNoHookHelpsTheVerdictIsTheLastOne) {
  const DeviceAddress all = AllocatePages(kLimitPages);
  ExpectOutOfMemory(100);
  EXPECT_EQ(saver_.verdicts.size(), 1u);
  // Beyond the limit nothing helps, and nobody is asked.
  ExpectOutOfMemory((kLimitPages + 1) * kPageBytes);
  EXPECT_EQ(saver_.verdicts.size(), 1u);
  Free(all);
}

TEST_F(AllocatorHooksTest, TellsOfEveryPageThatComesAndGoes) {
  std::vector<DeviceAddress> live;
  for (int i = 0; i < 5; ++i) live.push_back(AllocatePages(2));
  live.push_back(Allocate(1024));
  EXPECT_EQ(saver_.mapped - saver_.unmapped,
            memory_->GetStatistics().mapped.value() / kPageBytes);
  for (const DeviceAddress address : live) Free(address);
  allocator_->Trim();
  EXPECT_GT(saver_.mapped, 10u);
  EXPECT_EQ(saver_.mapped, saver_.unmapped);
}

}  // namespace
}  // namespace quire
