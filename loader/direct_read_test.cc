// Loads that pass the page cache by: the same bytes, whatever their places in
// blocks of the disk. Where the file system of the tests knows no such reads,
// they fall back to others, and must be right as well.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loader/streaming_test_util.h"
#include "quire/loader/streaming_loader.h"

namespace quire {
namespace {

using testing::HasSubstr;

class DirectReadTest : public testing::Test {
 protected:
  // Two shards, with tensors on both sides of every boundary of a block.
  DirectReadTest() {
    std::vector<std::vector<KnownTensor>> shards(2);
    for (const size_t size : {1, 4095, 4096, 0, 4097, 3, 12288, 20000, 8191}) {
      const size_t i = tensors_.size();
      tensors_.push_back({absl::StrCat("tensor", i),
                          PseudoRandomBytes(size, static_cast<uint32_t>(i))});
      shards[i % 2].push_back(tensors_.back());
    }
    WriteNaiveShards(folder_, shards);
    checkpoint_ = Checkpoint::Open(folder_.path()).value();
    placements_ = target_.PlaceAll(*checkpoint_);
    options_.direct = true;
    options_.checksum = true;
  }
  absl::StatusOr<LoadReport> Load() {
    return StreamTensors(target_.driver(), DeviceId(0), *checkpoint_,
                         placements_, options_);
  }

  TemporaryFolder folder_;
  std::vector<KnownTensor> tensors_;
  LoadTarget target_{KiB(256)};
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<TensorPlacement> placements_;
  StreamingOptions options_;
};

TEST_F(DirectReadTest, BringsEveryByte) {
  for (const LoadOrder order : {LoadOrder::kFile, LoadOrder::kGiven}) {
    for (const int buffers : {1, 3}) {
      for (const uint64_t size : {4096, 12288, 1 << 20}) {
        SCOPED_TRACE(testing::Message() << buffers << " buffers of " << size);
        options_.order = order;
        options_.buffers = buffers;
        options_.buffer_size = Bytes(size);
        const auto report = Load();
        ASSERT_TRUE(report.ok()) << report.status();
        target_.ExpectHolds(placements_, tensors_);
        EXPECT_LE(report->staging_peak.value(), size * buffers);
        EXPECT_EQ(report->staging_peak,
                  *StagingBytes(*checkpoint_, placements_, options_));
        for (const KnownTensor& tensor : tensors_)
          EXPECT_EQ(report->crc32.at(tensor.name), NaiveCrc32(tensor.bytes));
      }
    }
  }
}

TEST_F(DirectReadTest, SaysWhetherTheCacheWasPassedBy) {
  options_.direct = false;
  auto report = Load();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->direct);
  options_.direct = true;
  report = Load();
  ASSERT_TRUE(report.ok()) << report.status();
  if (!report->direct)
    GTEST_SKIP() << "the file system of " << folder_.path()
                 << " has no direct reads";
}

TEST_F(DirectReadTest, TakesWholeBlocksOnly) {
  options_.buffer_size = Bytes(4095);
  const auto report = Load();
  EXPECT_TRUE(absl::IsInvalidArgument(report.status()));
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("4095"));
}

TEST_F(DirectReadTest, RefusesSlices) {
  options_.checksum = false;
  const SlicePlacement slice = {WholeTensor(placements_.front().tensor),
                                placements_.front().destination};
  const auto report = StreamSlices(target_.driver(), DeviceId(0), *checkpoint_,
                                   {&slice, 1}, options_);
  EXPECT_TRUE(absl::IsInvalidArgument(report.status())) << report.status();
}

TEST_F(DirectReadTest, FindsAFileThatShrinksWhileItIsRead) {
  constexpr off_t kEnd = 300;
  options_.buffers = 1;
  options_.buffer_size = Bytes(4096);
  options_.order = LoadOrder::kGiven;
  options_.milestones = {1};
  options_.arrived = [this](size_t) {
    for (const CheckpointFile& file : checkpoint_->files())
      EXPECT_EQ(truncate(file.path.c_str(), kEnd), 0);
  };
  const auto report = Load();
  EXPECT_EQ(report.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr(".safetensors"));
}

}  // namespace
}  // namespace quire
