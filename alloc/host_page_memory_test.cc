#include "alloc/host_page_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>

namespace quire {
namespace {

constexpr uint64_t kUnit = 4096;

std::unique_ptr<HostPageMemory> Make(uint64_t units, bool backed) {
  return *HostPageMemory::Create(DeviceId(0), units * kUnit, backed);
}

TEST(HostPageMemoryTest, HandsOutOffsetsInRuns) {
  const auto memory = Make(16, /*backed=*/false);
  for (uint64_t i = 0; i < 8; ++i)
    EXPECT_EQ(*memory->Allocate(kUnit), i * kUnit);
  // Freed in any order, neighbours become one run again, lowest first.
  for (const uint64_t i : {3, 1, 2}) memory->Free(i * kUnit, kUnit);
  EXPECT_EQ(*memory->Allocate(3 * kUnit), 1 * kUnit);
  for (const uint64_t i : {6, 7}) memory->Free(i * kUnit, kUnit);
  EXPECT_EQ(*memory->Allocate(4 * kUnit), 6 * kUnit);
}

TEST(HostPageMemoryTest, OnlyTheSumOfSizesIsLimited) {
  const auto memory = Make(4, /*backed=*/false);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(memory->Allocate(kUnit).ok());
  EXPECT_EQ(memory->Allocate(kUnit).status().code(),
            absl::StatusCode::kResourceExhausted);
  memory->Free(0, kUnit);
  memory->Free(2 * kUnit, kUnit);
  EXPECT_TRUE(memory->Allocate(2 * kUnit).ok());
  EXPECT_EQ(memory->used(), memory->capacity());
}

TEST(HostPageMemoryTest, HugeSizesAreRefusedWithoutOverflow) {
  const auto memory =
      *HostPageMemory::Create(DeviceId(0), UINT64_MAX, /*backed=*/false);
  ASSERT_TRUE(memory->Allocate(kUnit).ok());
  EXPECT_EQ(memory->Allocate(UINT64_MAX).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory->Allocate(UINT64_MAX - kUnit).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(HostPageMemoryTest, AFreedRangeHoldsNoMemoryAndReadsAsZeros) {
  const auto memory = Make(256, /*backed=*/true);
  const uint64_t size = 256 * kUnit;
  const uint64_t offset = *memory->Allocate(size);
  void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                            memory->fd(), offset);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const bytes = static_cast<volatile uint8_t*>(mapped);
  for (uint64_t i = 0; i < size; i += kUnit) bytes[i] = 1;
  struct stat before {};
  ASSERT_EQ(fstat(memory->fd(), &before), 0);
  EXPECT_GE(before.st_blocks * 512u, size);
  memory->Free(offset, size);
  struct stat after {};
  ASSERT_EQ(fstat(memory->fd(), &after), 0);
  EXPECT_EQ(after.st_blocks, 0);
  EXPECT_EQ(bytes[0], 0);
  munmap(mapped, size);
}

TEST(HostPageMemoryTest, RangesNeverOverlapAndUseIsExact) {
  std::mt19937 random(7);
  const auto memory = Make(1000, /*backed=*/false);
  std::map<uint64_t, uint64_t> live;
  uint64_t used = 0;
  for (int step = 0; step < 20000; ++step) {
    const uint64_t size = (1 + random() % 9) * kUnit;
    if (random() % 2 == 0) {
      const auto offset = memory->Allocate(size);
      ASSERT_EQ(offset.ok(), used + size <= memory->capacity());
      if (!offset.ok()) continue;
      const auto next = live.lower_bound(*offset);
      if (next != live.end()) {
        ASSERT_LE(*offset + size, next->first);
      }
      if (next != live.begin()) {
        const auto before = std::prev(next);
        ASSERT_LE(before->first + before->second, *offset);
      }
      live[*offset] = size;
      used += size;
    } else if (!live.empty()) {
      auto victim = live.lower_bound(random() % (2000 * kUnit));
      if (victim == live.end()) victim = live.begin();
      memory->Free(victim->first, victim->second);
      used -= victim->second;
      live.erase(victim);
    }
    ASSERT_EQ(memory->used(), used);
  }
  for (const auto& [offset, size] : live) memory->Free(offset, size);
  EXPECT_EQ(*memory->Allocate(kUnit), 0u) << "all runs are one again";
}

}  // namespace
}  // namespace quire
