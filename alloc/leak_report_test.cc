#include "quire/alloc/leak_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "alloc/testing/run_in_child.h"
#include "alloc/testing/runtime_fixture.h"
#include "alloc/testing/test_driver.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LeakReportTest : public RuntimeFixture {
 protected:
  explicit LeakReportTest(RuntimeOptions options = {})
      : RuntimeFixture(options) {
    llama_ = runtime_->owners()->Register("llama");
    weights_ = runtime_->owners()->Register("weights", llama_);
    kv_ = runtime_->owners()->Register("kv", llama_);
    stream_ = *runtime_->driver()->CreateStream(DeviceId(0));
  }
  ~LeakReportTest() override {
    EXPECT_TRUE(runtime_->driver()->DestroyStream(stream_).ok());
  }

  DeviceAddress Allocate(uint64_t size, StreamId stream = StreamId()) {
    AllocateOptions options;
    options.owner = weights_;
    options.stream = stream;
    const auto address = runtime_->allocator()->Allocate(Bytes(size), options);
    EXPECT_TRUE(address.ok()) << address.status();
    return address.value_or(DeviceAddress());
  }
  void Free(DeviceAddress address) {
    EXPECT_TRUE(runtime_->allocator()->Free(address).ok());
  }

  OwnerId llama_;
  OwnerId weights_;
  OwnerId kv_;
  StreamId stream_;
};

TEST_F(LeakReportTest, WhatWasFreedIsNoLeak) {
  for (const uint64_t size : {uint64_t{100}, 3 * kPageBytes, uint64_t{0}}) {
    Free(Allocate(size));
  }
  const auto range = runtime_->memory()->ReserveRange(PageCount(4), kv_);
  ASSERT_TRUE(range.ok());
  ASSERT_TRUE(
      runtime_->memory()->Commit(*range, PageCount(0), PageCount(4)).ok());
  runtime_->memory()->ReleaseRange(*range, Fence());
  EXPECT_TRUE(FindLeaks(*runtime_).empty());
  EXPECT_EQ(FormatLeaks({}), "");
}

TEST_F(LeakReportTest, WhatIsHeldIsGroupedByOwnerSizeAndStream) {
  for (int i = 0; i < 3; ++i) Allocate(1000);
  Allocate(1000, stream_);
  Allocate(2 * kPageBytes, stream_);
  Free(Allocate(500));
  const auto range = runtime_->memory()->ReserveRange(PageCount(4), kv_);
  ASSERT_TRUE(range.ok());
  ASSERT_TRUE(
      runtime_->memory()->Commit(*range, PageCount(1), PageCount(2)).ok());

  const std::vector<LeakReport> leaks = FindLeaks(*runtime_);
  ASSERT_EQ(leaks.size(), 2u);
  EXPECT_EQ(leaks[0].owner, "llama/weights");
  EXPECT_EQ(leaks[0].allocations, 5u);
  EXPECT_EQ(leaks[0].requested, Bytes(4000 + 2 * kPageBytes));
  EXPECT_EQ(leaks[0].pages, Bytes(0));
  ASSERT_EQ(leaks[0].groups.size(), 3u);
  EXPECT_EQ(leaks[0].groups[0].size, Bytes(2 * kPageBytes));
  EXPECT_EQ(leaks[0].groups[0].stream, stream_);
  EXPECT_EQ(leaks[0].groups[1].count, 3u);
  EXPECT_EQ(leaks[0].groups[1].total, Bytes(3000));
  EXPECT_EQ(leaks[0].groups[2].count, 1u);
  EXPECT_TRUE(leaks[0].sites.empty());
  EXPECT_EQ(leaks[1].owner, "llama/kv");
  EXPECT_EQ(leaks[1].allocations, 0u);
  EXPECT_EQ(leaks[1].pages, Bytes(2 * kPageBytes));

  const std::string text = FormatLeaks(leaks);
  EXPECT_THAT(text, HasSubstr("\"llama/weights\" still holds on device 0: "
                              "131.91 KiB in 5 allocations"));
  EXPECT_THAT(text, HasSubstr("3 of 1000 B, 2.93 KiB"));
  EXPECT_THAT(text, HasSubstr("1 of 131072 B on stream"));
  EXPECT_THAT(text, HasSubstr("128.00 KiB in pages of its own"));
}

TEST_F(LeakReportTest, OneOwnerIsAskedAboutWithThoseBelowIt) {
  Allocate(1000);
  const auto range = runtime_->memory()->ReserveRange(PageCount(4), kv_);
  ASSERT_TRUE(range.ok());
  ASSERT_TRUE(
      runtime_->memory()->Commit(*range, PageCount(1), PageCount(2)).ok());
  LeakOptions options;
  options.owner = llama_;
  EXPECT_EQ(FindLeaks(*runtime_, options).size(), 2u);
  options.owner = kv_;
  ASSERT_EQ(FindLeaks(*runtime_, options).size(), 1u);
  EXPECT_EQ(FindLeaks(*runtime_, options)[0].owner, "llama/kv");
  options.owner = runtime_->owners()->Register("another");
  EXPECT_TRUE(FindLeaks(*runtime_, options).empty());
}

TEST_F(LeakReportTest, EachDeviceHasItsOwn) {
  ASSERT_TRUE(runtime_->allocator(DeviceId(1))->Allocate(Bytes(1)).ok());
  const std::vector<LeakReport> leaks = FindLeaks(*runtime_);
  ASSERT_EQ(leaks.size(), 1u);
  EXPECT_EQ(leaks[0].device, DeviceId(1));
  EXPECT_EQ(leaks[0].owner, "unnamed");
}

TEST_F(LeakReportTest, NamesMoveNoCursorAndEndNoLine) {
  AllocateOptions options;
  options.owner = runtime_->owners()->Register("a\x1b[2Jb\nfake \xff\"");
  ASSERT_TRUE(runtime_->allocator()->Allocate(Bytes(8), options).ok());
  EXPECT_THAT(FormatLeaks(FindLeaks(*runtime_)),
              ::testing::StartsWith(
                  R"("a\x1b[2Jb\nfake \xff\"" still holds on device 0:)"));
}

// An interval that no allocation of more than a few bytes escapes.
class SampledLeakReportTest : public LeakReportTest {
 protected:
  SampledLeakReportTest() : LeakReportTest({.sample_interval = Bytes(1)}) {}
};

TEST_F(SampledLeakReportTest, SamplesSayWhereItWasMade) {
  for (int i = 0; i < 3; ++i) Allocate(1000);
  Allocate(50000);
  Free(Allocate(70000));
  const std::vector<LeakReport> leaks = FindLeaks(*runtime_);
  ASSERT_EQ(leaks.size(), 1u);
  uint64_t samples = 0;
  uint64_t bytes = 0;
  for (const LeakReport::Site& site : leaks[0].sites) {
    EXPECT_FALSE(site.callers.empty());
    samples += site.samples;
    bytes += site.estimated.value();
  }
  EXPECT_EQ(samples, 4u);
  EXPECT_EQ(bytes, 53000u);
  EXPECT_THAT(FormatLeaks(leaks), HasSubstr("made here"));
}

TEST_F(SampledLeakReportTest, ListsAreShort) {
  for (uint64_t size = 1; size <= 20; ++size) Allocate(1000 * size);
  LeakOptions options;
  options.groups = 2;
  options.sites = 0;
  const std::vector<LeakReport> leaks = FindLeaks(*runtime_, options);
  ASSERT_EQ(leaks.size(), 1u);
  ASSERT_EQ(leaks[0].groups.size(), 2u);
  EXPECT_EQ(leaks[0].groups[0].size, Bytes(20000));
  EXPECT_EQ(leaks[0].groups[1].size, Bytes(19000));
  EXPECT_EQ(leaks[0].allocations, 20u);
  EXPECT_TRUE(leaks[0].sites.empty());
}

// ---- Without being asked ----------------------------------------------------

class ToldLeaksTest : public ::testing::Test {
 protected:
  std::unique_ptr<Runtime> MakeRuntime() {
    HostDriverOptions driver_options;
    driver_options.granularity = KiB(64);
    driver_options.memory_per_device = MiB(8);
    auto driver = TestDriver::Create(driver_options);
    EXPECT_TRUE(driver.ok()) << driver.status();
    RuntimeOptions options;
    options.page_size = KiB(64);
    options.on_leaks = [this](const std::vector<LeakReport>& leaks) {
      EXPECT_FALSE(leaks.empty());
      for (const LeakReport& leak : leaks) told_.push_back(leak.owner);
    };
    auto runtime = Runtime::Create(*std::move(driver), options);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return *std::move(runtime);
  }
  static DeviceAddress Allocate(Runtime* runtime, const char* owner) {
    AllocateOptions options;
    options.owner = runtime->RegisterOwner(owner);
    const auto address = runtime->allocator()->Allocate(KiB(1), options);
    EXPECT_TRUE(address.ok()) << address.status();
    return address.value_or(DeviceAddress());
  }

  std::vector<std::string> told_;
};

TEST_F(ToldLeaksTest, ARuntimeTellsOfWhatIsHeldAtItsEnd) {
  auto runtime = MakeRuntime();
  Allocate(runtime.get(), "weights");
  Allocate(runtime.get(), "kv");
  EXPECT_THAT(told_, IsEmpty());
  runtime.reset();
  EXPECT_THAT(told_, ElementsAre("weights", "kv"));
}

TEST_F(ToldLeaksTest, AViewTellsOfItsOwnersAlone) {
  auto runtime = MakeRuntime();
  auto llama = Runtime::CreateView(runtime.get(), "llama");
  auto draft = Runtime::CreateView(llama.get(), "draft");
  const DeviceAddress of_draft = Allocate(draft.get(), "kv");
  const DeviceAddress of_llama = Allocate(llama.get(), "weights");
  const DeviceAddress of_nobody = Allocate(runtime.get(), "weights");
  draft.reset();
  EXPECT_THAT(told_, ElementsAre("llama/draft/kv"));
  told_.clear();
  ASSERT_TRUE(runtime->allocator()->Free(of_draft).ok());
  llama.reset();
  EXPECT_THAT(told_, ElementsAre("llama/weights"));
  told_.clear();
  ASSERT_TRUE(runtime->allocator()->Free(of_llama).ok());
  // Nothing is left to tell.
  Runtime::CreateView(runtime.get(), "llama").reset();
  ASSERT_TRUE(runtime->allocator()->Free(of_nobody).ok());
  runtime.reset();
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(ToldLeaksTest, AForkedChildTellsNothing) {
  auto runtime = MakeRuntime();
  Allocate(runtime.get(), "weights");
  EXPECT_EQ(RunInChild([&] {
              runtime.reset();
              return told_.empty() ? 0 : 1;
            }),
            0);
  runtime.reset();
  EXPECT_THAT(told_, ElementsAre("weights"));
}

}  // namespace
}  // namespace quire
