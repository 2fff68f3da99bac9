// What HostAddressSpace does where the kernel refuses, on a kernel that models
// its mappings and refuses on demand. HostDriver's test covers the rest, on the
// real one.

#include "alloc/host_address_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <string>
#include <vector>

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kPage = 4096;
constexpr int kFile = 3;

// Keeps one state per 4 KiB: free, reserved or mapped to an offset.
class FakeKernel : public HostKernel {
 public:
  static constexpr uint64_t kReserved = UINT64_MAX;

  int Reserve(uint64_t size, uint64_t* address) override {
    if (refuse_reserve) return ENOMEM;
    *address = next_;
    next_ += size + kPage;
    Set(*address, size, kReserved);
    return 0;
  }
  int ReserveAt(uint64_t address, uint64_t size) override {
    if (addresses_are_taken) return EEXIST;
    for (uint64_t a = address; a < address + size; a += kPage) {
      if (pages.contains(a)) return EEXIST;
    }
    Set(address, size, kReserved);
    return 0;
  }
  int MapFile(uint64_t address, uint64_t size, int fd,
              uint64_t offset) override {
    EXPECT_EQ(fd, kFile);
    if (maps_before_refusal-- == 0) return ENOMEM;
    for (uint64_t i = 0; i < size; i += kPage) {
      pages[address + i] = offset + i;
    }
    return 0;
  }
  int Cover(uint64_t address, uint64_t size) override {
    if (refuse_cover) return ENOMEM;
    Set(address, size, kReserved);
    return 0;
  }
  int Unmap(uint64_t address, uint64_t size) override {
    if (refuse_unmap) return ENOMEM;
    for (uint64_t a = address; a < address + size; a += kPage) {
      EXPECT_EQ(pages.erase(a), 1u) << "not ours to unmap";
    }
    return 0;
  }

  std::map<uint64_t, uint64_t> pages;
  int maps_before_refusal = -1;  // never
  bool refuse_reserve = false;
  bool refuse_cover = false;
  bool refuse_unmap = false;
  bool addresses_are_taken = false;

 private:
  void Set(uint64_t address, uint64_t size, uint64_t state) {
    for (uint64_t i = 0; i < size; i += kPage) pages[address + i] = state;
  }
  uint64_t next_ = 1 << 20;
};

class HostAddressSpaceTest : public ::testing::Test {
 protected:
  HostAddressSpaceTest() { base_ = *space_.Reserve(8 * kPage, 0); }

  // Pages whose offsets do not touch: each needs a call to the kernel.
  static std::vector<PhysicalPage> ScatteredPages(int count) {
    std::vector<PhysicalPage> pages;
    for (int i = 0; i < count; ++i) {
      pages.push_back({PageHandle(i + 1), DeviceId(0), kPage, 2 * i * kPage});
    }
    return pages;
  }
  std::vector<uint64_t> KernelStates(int count) {
    std::vector<uint64_t> states;
    for (int i = 0; i < count; ++i) {
      const auto page = kernel_.pages.find(base_ + i * kPage);
      states.push_back(page == kernel_.pages.end() ? 1 : page->second);
    }
    return states;
  }

  static constexpr uint64_t kReserved = FakeKernel::kReserved;
  static constexpr uint64_t kFree = 1;  // no offset is 1

  FakeKernel kernel_;
  HostAddressSpace space_{&kernel_, kPage, /*mapping_limit=*/100, {kFile}};
  uint64_t base_ = 0;
  std::vector<PageHandle> mapped_;
  std::vector<PageHandle> unmapped_;
};

TEST_F(HostAddressSpaceTest, AMapRefusedMidwayIsRolledBack) {
  for (int refused = 0; refused < 3; ++refused) {
    kernel_.maps_before_refusal = refused;
    const absl::Status status = space_.Map(base_, ScatteredPages(3), &mapped_);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("kernel mappings"));
    EXPECT_THAT(mapped_, IsEmpty());
    EXPECT_EQ(space_.kernel_mappings(), 1u);
    EXPECT_THAT(KernelStates(3), ElementsAre(kReserved, kReserved, kReserved));
  }
  kernel_.maps_before_refusal = -1;
  EXPECT_TRUE(space_.Map(base_, ScatteredPages(3), &mapped_).ok());
  EXPECT_THAT(mapped_,
              ElementsAre(PageHandle(1), PageHandle(2), PageHandle(3)));
}

TEST_F(HostAddressSpaceTest, ARollbackRefusedTooEndsInQuarantine) {
  kernel_.maps_before_refusal = 2;
  kernel_.refuse_cover = true;
  kernel_.refuse_unmap = true;
  EXPECT_EQ(space_.Map(base_, ScatteredPages(3), &mapped_).code(),
            absl::StatusCode::kDataLoss);
  // The two pages are still mapped in the kernel, so they stay held.
  EXPECT_THAT(mapped_, ElementsAre(PageHandle(1), PageHandle(2)));
  kernel_.maps_before_refusal = -1;
  kernel_.refuse_cover = false;
  kernel_.refuse_unmap = false;
  EXPECT_EQ(space_.Map(base_, ScatteredPages(1), &mapped_).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(space_.Unmap(base_, kPage, &unmapped_).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(space_.table().CheckAccess(base_, 1).ok());
  EXPECT_TRUE(space_.Map(base_ + 2 * kPage, ScatteredPages(1), &mapped_).ok());
  ASSERT_TRUE(space_.Unmap(base_ + 2 * kPage, kPage, &unmapped_).ok());
  // The addresses go back, and the pages with them.
  unmapped_.clear();
  ASSERT_TRUE(space_.Release(base_, 8 * kPage, &unmapped_).ok());
  EXPECT_THAT(unmapped_, ElementsAre(PageHandle(1), PageHandle(2)));
  EXPECT_THAT(kernel_.pages, IsEmpty());
  EXPECT_EQ(space_.kernel_mappings(), 0u);
}

TEST_F(HostAddressSpaceTest, UnmapFallsBackWhereTheKernelRefusesToCover) {
  ASSERT_TRUE(space_.Map(base_, ScatteredPages(2), &mapped_).ok());
  kernel_.refuse_cover = true;
  ASSERT_TRUE(space_.Unmap(base_, kPage, &unmapped_).ok());
  EXPECT_THAT(unmapped_, ElementsAre(PageHandle(1)));
  EXPECT_THAT(KernelStates(3), ElementsAre(kReserved, 2 * kPage, kReserved));
  EXPECT_TRUE(space_.Map(base_, ScatteredPages(1), &mapped_).ok());
}

TEST_F(HostAddressSpaceTest, AnUnmapThatTheKernelRefusesChangesNothing) {
  ASSERT_TRUE(space_.Map(base_, ScatteredPages(2), &mapped_).ok());
  const uint64_t before = space_.kernel_mappings();
  kernel_.refuse_cover = true;
  kernel_.refuse_unmap = true;
  const absl::Status status = space_.Unmap(base_, kPage, &unmapped_);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("kernel mappings"));
  EXPECT_THAT(unmapped_, IsEmpty());
  EXPECT_EQ(space_.kernel_mappings(), before);
  EXPECT_TRUE(space_.table().CheckAccess(base_, 2 * kPage).ok());
}

TEST_F(HostAddressSpaceTest, AddressesLostToOthersAreReportedAndLeftAlone) {
  ASSERT_TRUE(space_.Map(base_ + kPage, ScatteredPages(1), &mapped_).ok());
  kernel_.refuse_cover = true;
  kernel_.addresses_are_taken = true;
  EXPECT_EQ(space_.Unmap(base_ + kPage, kPage, &unmapped_).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_THAT(unmapped_, ElementsAre(PageHandle(1)))
      << "the page itself is unmapped";
  EXPECT_THAT(KernelStates(3), ElementsAre(kReserved, kFree, kReserved));
  EXPECT_EQ(space_.Map(base_ + kPage, ScatteredPages(1), &mapped_).code(),
            absl::StatusCode::kFailedPrecondition);
  // Release unmaps on both sides of what is no longer ours; the fake refuses
  // anything else.
  unmapped_.clear();
  ASSERT_TRUE(space_.Release(base_, 8 * kPage, &unmapped_).ok());
  EXPECT_THAT(unmapped_, IsEmpty());
  EXPECT_THAT(kernel_.pages, IsEmpty());
}

TEST_F(HostAddressSpaceTest, CountsWhatTheKernelWouldKeepApart) {
  std::vector<PhysicalPage> run;
  for (int i = 0; i < 8; ++i) {
    run.push_back({PageHandle(i + 1), DeviceId(0), kPage, i * kPage});
  }
  EXPECT_EQ(space_.kernel_mappings(), 1u);
  ASSERT_TRUE(space_.Map(base_, std::span(run).first(2), &mapped_).ok());
  EXPECT_EQ(space_.kernel_mappings(), 2u);
  // Page 4 and later leave a gap; then pages 2 and 3 close it.
  ASSERT_TRUE(
      space_.Map(base_ + 4 * kPage, std::span(run).subspan(4), &mapped_).ok());
  EXPECT_EQ(space_.kernel_mappings(), 3u);
  ASSERT_TRUE(
      space_.Map(base_ + 2 * kPage, std::span(run).subspan(2, 2), &mapped_)
          .ok());
  EXPECT_EQ(space_.kernel_mappings(), 1u);
  ASSERT_TRUE(space_.Unmap(base_ + 3 * kPage, kPage, &unmapped_).ok());
  EXPECT_EQ(space_.kernel_mappings(), 3u);
  // Another page in the gap merges with neither side.
  const PhysicalPage stranger{PageHandle(9), DeviceId(0), kPage, 99 * kPage};
  ASSERT_TRUE(space_.Map(base_ + 3 * kPage, {&stranger, 1}, &mapped_).ok());
  EXPECT_EQ(space_.kernel_mappings(), 3u);
}

TEST_F(HostAddressSpaceTest, UnmapMayExceedTheLimitByASixteenth) {
  HostAddressSpace space(&kernel_, kPage, /*mapping_limit=*/32, {kFile});
  const uint64_t base = *space.Reserve(64 * kPage, 0);
  std::vector<PhysicalPage> run;
  for (int i = 0; i < 64; ++i) {
    run.push_back({PageHandle(i + 1), DeviceId(0), kPage, i * kPage});
  }
  ASSERT_TRUE(space.Map(base, run, &mapped_).ok());
  // Every second page: each splits a mapping, until the headroom is used up.
  int unmapped = 0;
  absl::Status status;
  for (int i = 1; i < 63 && status.ok(); i += 2) {
    status = space.Unmap(base + i * kPage, kPage, &unmapped_);
    if (status.ok()) ++unmapped;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(unmapped, 16);  // 1 + 2 * 16 = 33 <= 32 + 32 / 16
  EXPECT_TRUE(space.table().CheckAccess(base + 33 * kPage, kPage).ok());
  // What needs no more mappings still works: the rest in one piece.
  EXPECT_TRUE(space.Unmap(base + 32 * kPage, 32 * kPage, &unmapped_).ok());
}

// A plan looks at devices of many TiB where `ulimit -v` leaves a few GiB.
TEST_F(HostAddressSpaceTest, DevicesWithoutMemoryNeedNoAddressesOfTheKernel) {
  constexpr uint64_t kTebibyte = uint64_t{1} << 40;
  kernel_.refuse_reserve = true;
  EXPECT_TRUE(absl::IsResourceExhausted(space_.Reserve(kPage, 0).status()));
  HostAddressSpace without(&kernel_, kPage, 100, {-1});
  const auto first = without.Reserve(kTebibyte, 0);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = without.Reserve(kTebibyte, uint64_t{1} << 45);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_GE(*first, uint64_t{1} << 56);
  EXPECT_GE(*second, *first + kTebibyte);
  EXPECT_EQ(*second % (uint64_t{1} << 45), 0u);
  std::vector<PageHandle> changed;
  const auto pages = ScatteredPages(4);
  ASSERT_TRUE(without.Map(*first, pages, &changed).ok());
  EXPECT_EQ(changed.size(), 4u);
  ASSERT_TRUE(without.Unmap(*first, 4 * kPage, &changed).ok());
  ASSERT_TRUE(without.Release(*first, kTebibyte, &changed).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      without.Reserve(uint64_t{1} << 63, 0).status()));
  HostAddressSpace mixed(&kernel_, kPage, 100, {-1, kFile});
  EXPECT_TRUE(absl::IsResourceExhausted(mixed.Reserve(kPage, 0).status()));
}

}  // namespace
}  // namespace quire
