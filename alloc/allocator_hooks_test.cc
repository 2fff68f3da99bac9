// Hooks of the device memory, called on account of what an allocator does:
// never under a lock of either.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "alloc/testing/allocator_fixture.h"
#include "quire/alloc/allocator.h"
#include "quire/alloc/memory_hooks.h"

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
