// Slices of tensors through the ring: every byte of a slice where it belongs,
// and no other byte read.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/streaming_test_util.h"
#include "quire/loader/streaming_loader.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

// What the slice is, byte by byte.
std::string SliceOf(const std::string& tensor, const TensorSlice& slice) {
  std::string bytes;
  for (uint64_t i = 0; i < slice.count; ++i)
    bytes += tensor.substr(slice.offset + i * slice.stride, slice.run);
  return bytes;
}

// Bytes that this process has asked the kernel for so far.
uint64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t value = 0;
  while (io >> name >> value)
    if (name == "rchar:") return value;
  return 0;
}

class StreamSlicesTest : public ::testing::Test {
 protected:
  void WriteShards(const std::vector<std::vector<KnownTensor>>& shards) {
    WriteNaiveShards(folder_, shards);
    for (const auto& shard : shards)
      tensors_.insert(tensors_.end(), shard.begin(), shard.end());
    auto opened = Checkpoint::Open(folder_.path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }

  const std::string& BytesOf(const TensorInfo& tensor) const {
    return std::find_if(tensors_.begin(), tensors_.end(),
                        [&](const KnownTensor& known) {
                          return known.name == tensor.name;
                        })
        ->bytes;
  }

  TemporaryFolder folder_;
  std::vector<KnownTensor> tensors_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(StreamSlicesTest, EveryByteOfASliceIsWhereItBelongs) {
  std::vector<std::vector<KnownTensor>> shards(2);
  for (uint32_t i = 0; i < 12; ++i)
    shards[i % 2].push_back(
        {absl::StrCat("t", i), PseudoRandomBytes(200 + 61 * i, i)});
  WriteShards(shards);
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    LoadTarget target(KiB(64));
    std::vector<SlicePlacement> placements;
    uint64_t end = target.base().value() + 3;
    uint64_t total = 0;
    for (const TensorInfo& tensor : checkpoint_->tensors()) {
      TensorSlice slice;
      slice.tensor = random() % 9 == 0 ? nullptr : &tensor;
      slice.run = random() % 40;
      slice.stride = slice.run + random() % 3 * (random() % 50);
      const uint64_t size = tensor.size.value();
      slice.offset = random() % (size - slice.run);
      const uint64_t room = size - slice.offset - slice.run;
      slice.count = slice.tensor == nullptr
                        ? 0
                        : 1 + random() % (room / (slice.stride + 1) + 1);
      placements.push_back({slice, DeviceAddress(end)});
      total += slice.run * slice.count;
      end += slice.run * slice.count + 1;
    }
    StreamingOptions options;
    options.buffers = 1 + round % 3;
    options.buffer_size = Bytes(1 + random() % 300);
    options.order = round % 2 == 0 ? LoadOrder::kFile : LoadOrder::kGiven;
    const auto report = StreamSlices(target.driver(), DeviceId(0), *checkpoint_,
                                     placements, options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->bytes, Bytes(total));
    uint64_t before = target.base().value() + 3;
    for (const SlicePlacement& placement : placements) {
      // The byte between two slices is nobody's.
      EXPECT_EQ(placement.destination.value(), before);
      if (placement.slice.tensor == nullptr) {
        before += 1;
        continue;
      }
      const std::string expected =
          SliceOf(BytesOf(*placement.slice.tensor), placement.slice);
      const char* const actual = placement.destination.host_pointer<char>();
      ASSERT_EQ(std::string(actual, expected.size()), expected);
      before += expected.size() + 1;
    }
  }
}

TEST_F(StreamSlicesTest, ReadsNoByteBesides) {
  constexpr uint64_t kRows = 2048;
  constexpr uint64_t kRowBytes = 2048;
  constexpr uint64_t kRanks = 4;
  WriteShards({{{"w", PseudoRandomBytes(kRows * kRowBytes, 1)}}});
  const TensorInfo& tensor = checkpoint_->tensors().front();
  const uint64_t share = kRowBytes / kRanks;
  LoadTarget target(MiB(4));
  std::string whole(kRows * kRowBytes, '\0');
  for (uint64_t rank = 0; rank < kRanks; ++rank) {
    const TensorSlice slice = {.tensor = &tensor,
                               .offset = rank * share,
                               .run = share,
                               .stride = kRowBytes,
                               .count = kRows};
    const uint64_t before = BytesRead();
    const SlicePlacement placement = {slice, target.base()};
    const auto report = StreamSlices(target.driver(), DeviceId(0), *checkpoint_,
                                     {&placement, 1});
    const uint64_t read = BytesRead() - before;
    ASSERT_TRUE(report.ok()) << report.status();
    if (before > 0) {  // the kernel tells
      EXPECT_GE(read, slice.size().value());
      EXPECT_LE(read, slice.size().value() + (16 << 10));
    }
    const char* const bytes = target.base().host_pointer<char>();
    for (uint64_t row = 0; row < kRows; ++row)
      std::copy_n(bytes + row * share, share,
                  whole.begin() +
                      static_cast<ptrdiff_t>(row * kRowBytes + rank * share));
  }
  EXPECT_EQ(whole, tensors_.front().bytes);
}

TEST_F(StreamSlicesTest, AFileThatBecameShorterIsAnErrorOfTheSlice) {
  WriteShards(
      {{{"a", PseudoRandomBytes(64, 1)}, {"b", PseudoRandomBytes(4096, 2)}}});
  const TensorInfo& tensor = checkpoint_->tensors().back();
  std::filesystem::resize_file(
      checkpoint_->files().front().path,
      checkpoint_->files().front().size.value() - 1024);
  LoadTarget target(KiB(64));
  const SlicePlacement placement = {
      {.tensor = &tensor, .offset = 8, .run = 8, .stride = 64, .count = 60},
      target.base()};
  const auto report =
      StreamSlices(target.driver(), DeviceId(0), *checkpoint_, {&placement, 1});
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr("model-1.safetensors"));
}

TEST_F(StreamSlicesTest, SlicesThatDoNotLieInTheirTensorAreRefused) {
  WriteShards({{{"w", PseudoRandomBytes(100, 1)}}});
  const TensorInfo& tensor = checkpoint_->tensors().front();
  LoadTarget target(KiB(64));
  const TensorSlice kWrong[] = {
      {&tensor, 0, 101, 101, 1},         {&tensor, 1, 100, 100, 1},
      {&tensor, 0, 10, 10, 11},          {&tensor, 0, 10, 9, 2},
      {&tensor, UINT64_MAX, 1, 1, 1},    {&tensor, 0, 1, UINT64_MAX, 3},
      {&tensor, 0, 2, UINT64_MAX / 2, 4}};
  for (const TensorSlice& slice : kWrong) {
    const SlicePlacement placement = {slice, target.base()};
    const auto report = StreamSlices(target.driver(), DeviceId(0), *checkpoint_,
                                     {&placement, 1});
    EXPECT_TRUE(absl::IsInvalidArgument(report.status())) << report.status();
    EXPECT_THAT(std::string(report.status().message()), HasSubstr("\"w\""));
  }
  const SlicePlacement nowhere = {{&tensor, 0, 10, 20, 2}, DeviceAddress()};
  EXPECT_TRUE(absl::IsInvalidArgument(
      StreamSlices(target.driver(), DeviceId(0), *checkpoint_, {&nowhere, 1})
          .status()));
  StreamingOptions checksum;
  checksum.checksum = true;
  EXPECT_TRUE(absl::IsInvalidArgument(
      StreamSlices(target.driver(), DeviceId(0), *checkpoint_, {}, checksum)
          .status()));
}

}  // namespace
}  // namespace quire
