// What a load puts where, in what memory, and what it reports.

#include "quire/loader/streaming_loader.h"

#include <algorithm>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/streaming_test_util.h"
#include "quire/loader/load_order.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// Sizes on both sides of every boundary that the test's chunk sizes have, and
// tensors of no bytes between others and at both ends.
std::vector<KnownTensor> MixedTensors(const std::string& prefix,
                                      size_t largest) {
  std::vector<KnownTensor> tensors;
  for (const size_t size : std::initializer_list<size_t>{
           0, 1, 2, 3, 0, 0, 7, 64, 63, 65, 1, 1, 1, largest, 5, 0}) {
    const auto seed = static_cast<uint32_t>(tensors.size() + 1);
    tensors.push_back({absl::StrCat(prefix, tensors.size()),
                       PseudoRandomBytes(size, seed * 77)});
  }
  return tensors;
}

std::vector<KnownTensor> Concatenated(
    const std::vector<std::vector<KnownTensor>>& shards) {
  std::vector<KnownTensor> all;
  for (const auto& shard : shards)
    all.insert(all.end(), shard.begin(), shard.end());
  return all;
}

StreamingOptions Ring(int buffers, Bytes buffer_size) {
  StreamingOptions options;
  options.buffers = buffers;
  options.buffer_size = buffer_size;
  return options;
}

class StreamingLoaderTest : public ::testing::Test {
 protected:
  std::unique_ptr<Checkpoint> OpenCheckpoint() {
    auto checkpoint = Checkpoint::Open(folder_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return *std::move(checkpoint);
  }

  TemporaryFolder folder_;
};

// What has arrived is there, while the rest is not read.
TEST_F(StreamingLoaderTest, TellsWhenTheFirstPlacementsHaveArrived) {
  const std::vector<std::vector<KnownTensor>> shards = {
      MixedTensors("a", 1500), MixedTensors("b", 700), MixedTensors("c", 0)};
  WriteNaiveShards(folder_, shards);
  const auto checkpoint = OpenCheckpoint();
  const std::vector<KnownTensor> tensors = Concatenated(shards);
  for (const int buffers : {1, 3}) {
    for (const uint64_t size : {7, 64, 1 << 20}) {
      LoadTarget target(KiB(64));
      const auto placements = target.PlaceAll(*checkpoint);
      StreamingOptions options = Ring(buffers, Bytes(size));
      options.order = LoadOrder::kGiven;
      options.milestones = {0, 1, 10, 10, 25, placements.size()};
      std::vector<size_t> arrived;
      options.arrived = [&](size_t count) {
        arrived.push_back(count);
        for (const TensorPlacement& placement :
             std::span(placements).first(count)) {
          const auto known = std::find_if(
              tensors.begin(), tensors.end(), [&](const KnownTensor& tensor) {
                return tensor.name == placement.tensor->name;
              });
          EXPECT_EQ(std::string(placement.destination.host_pointer<char>(),
                                placement.tensor->size.value()),
                    known->bytes);
        }
      };
      const auto report = StreamTensors(target.driver(), DeviceId(0),
                                        *checkpoint, placements, options);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(arrived, options.milestones);
      target.ExpectHolds(placements, tensors);
    }
  }
}

TEST_F(StreamingLoaderTest, RefusesMilestonesThatMeanNothing) {
  WriteNaiveCheckpoint(folder_, {{"a", "1234"}});
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(KiB(64));
  const auto placements = target.PlaceAll(*checkpoint);
  const auto code = [&](const StreamingOptions& options) {
    return StreamTensors(target.driver(), DeviceId(0), *checkpoint, placements,
                         options)
        .status()
        .code();
  };
  StreamingOptions options = Ring(1, Bytes(8));
  options.milestones = {1};
  options.arrived = [](size_t) {};
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options.order = LoadOrder::kGiven;
  EXPECT_EQ(code(options), absl::StatusCode::kOk);
  options.milestones = {1, 0};
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options.milestones = {1};
  options.arrived = nullptr;
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
}

TEST(LoadProgressTest, HasARateAndATimeThatIsLeft) {
  const LoadProgress nothing{Bytes(0), Bytes(100), 0};
  EXPECT_EQ(nothing.bytes_per_second(), 0);
  EXPECT_EQ(nothing.seconds_left(), 0);
  const LoadProgress some{Bytes(20), Bytes(100), 2};
  EXPECT_EQ(some.bytes_per_second(), 10);
  EXPECT_EQ(some.seconds_left(), 8);
}

TEST_F(StreamingLoaderTest, OrdersByLayerWhateverTheNames) {
  WriteNaiveCheckpoint(folder_, {{"lm_head.weight", "1"},
                                 {"model.embed_tokens.weight", "2"},
                                 {"model.layers.0.mlp.up.weight", "3"},
                                 {"model.layers.10.mlp.up.weight", "4"},
                                 {"model.layers.2.mlp.up.bias", "5"},
                                 {"model.layers.2.mlp.up.weight", "6"},
                                 {"model.norm.weight", "7"}});
  const auto checkpoint = OpenCheckpoint();
  const LayerOrder order = OrderByLayer(*checkpoint);
  std::vector<std::string> names;
  for (const TensorInfo* tensor : order.tensors) names.push_back(tensor->name);
  EXPECT_THAT(names,
              testing::ElementsAre(
                  "model.embed_tokens.weight", "model.layers.0.mlp.up.weight",
                  "model.layers.2.mlp.up.bias", "model.layers.2.mlp.up.weight",
                  "model.layers.10.mlp.up.weight", "lm_head.weight",
                  "model.norm.weight"));
  std::vector<std::string> groups;
  std::vector<size_t> ends;
  for (const LoadGroup& group : order.groups) {
    groups.push_back(group.name);
    ends.push_back(group.end);
  }
  EXPECT_THAT(groups, testing::ElementsAre("embedding", "model.layers.0",
                                           "model.layers.2", "model.layers.10",
                                           "head"));
  EXPECT_THAT(ends, testing::ElementsAre(1, 2, 4, 5, 7));
}

TEST_F(StreamingLoaderTest, CarriesEveryByteThroughRingsOfEverySize) {
  const std::vector<std::vector<KnownTensor>> shards = {
      MixedTensors("a", 1500), MixedTensors("b", 700), MixedTensors("c", 0)};
  WriteNaiveShards(folder_, shards);
  const auto checkpoint = OpenCheckpoint();
  const std::vector<KnownTensor> tensors = Concatenated(shards);
  for (const int buffers : {1, 2, 3, 8}) {
    for (const uint64_t size : {1, 2, 3, 7, 64, 65, 1000, 4096, 1 << 20}) {
      SCOPED_TRACE(testing::Message() << buffers << " buffers of " << size);
      LoadTarget target(KiB(64));
      const auto placements = target.PlaceAll(*checkpoint);
      StreamingOptions options = Ring(buffers, Bytes(size));
      options.checksum = true;
      const auto report = StreamTensors(target.driver(), DeviceId(0),
                                        *checkpoint, placements, options);
      ASSERT_TRUE(report.ok()) << report.status();
      target.ExpectHolds(placements, tensors);
      EXPECT_EQ(report->bytes, checkpoint->total_size());
      EXPECT_LE(report->staging_peak.value(), size * buffers);
      EXPECT_EQ(report->staging_peak,
                *StagingBytes(*checkpoint, placements, options));
      EXPECT_GE(report->chunks, checkpoint->total_size().value() / size);
      ASSERT_EQ(report->crc32.size(), tensors.size());
      for (const KnownTensor& tensor : tensors)
        EXPECT_EQ(report->crc32.at(tensor.name), NaiveCrc32(tensor.bytes));
    }
  }
}

TEST_F(StreamingLoaderTest, CarriesTensorsLargerThanTheWholeRing) {
  const std::vector<KnownTensor> tensors = {
      {"head", PseudoRandomBytes(3, 1)},
      {"embedding", PseudoRandomBytes((5 << 20) + 123, 2)},
      {"tail", PseudoRandomBytes(1 << 20, 3)}};
  WriteNaiveCheckpoint(folder_, tensors);
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(MiB(8));
  const auto placements = target.PlaceAll(*checkpoint);
  const auto report = StreamTensors(target.driver(), DeviceId(0), *checkpoint,
                                    placements, Ring(3, KiB(256)));
  ASSERT_TRUE(report.ok()) << report.status();
  target.ExpectHolds(placements, tensors);
  EXPECT_EQ(report->staging_peak, KiB(768));
  EXPECT_THAT(report->crc32, IsEmpty());
}

TEST_F(StreamingLoaderTest, ReadsOneChunkForTensorsThatLieSideBySide) {
  std::vector<KnownTensor> tensors;
  for (uint32_t i = 0; i < 100; ++i)
    tensors.push_back({absl::StrCat("t", i), PseudoRandomBytes(i, i)});
  WriteNaiveCheckpoint(folder_, tensors);
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(KiB(64));
  const auto placements = target.PlaceAll(*checkpoint);
  const auto report =
      StreamTensors(target.driver(), DeviceId(0), *checkpoint, placements);
  ASSERT_TRUE(report.ok()) << report.status();
  target.ExpectHolds(placements, tensors);
  EXPECT_EQ(report->chunks, 1u);
  // The ring is no larger than what passes through it.
  EXPECT_EQ(report->staging_peak, report->bytes);
}

// Chunks that gaps keep small take small buffers.
TEST_F(StreamingLoaderTest, PinsNoMoreThanPassesThroughABuffer) {
  std::vector<KnownTensor> tensors;
  for (uint32_t i = 0; i < 8; ++i)
    tensors.push_back(
        {absl::StrCat("t", i), PseudoRandomBytes(100 + 10 * i, i)});
  WriteNaiveCheckpoint(folder_, tensors);
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(KiB(64));
  auto placements = target.PlaceAll(*checkpoint);
  // The odd ones are left out, so that each of the others is a chunk.
  std::erase_if(placements, [](const TensorPlacement& placement) {
    return (placement.tensor->name.back() - '0') % 2 == 1;
  });
  const StreamingOptions options = Ring(3, MiB(1));
  const auto report = StreamTensors(target.driver(), DeviceId(0), *checkpoint,
                                    placements, options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->chunks, 4u);
  // t0 and t6 pass through the first buffer, t2 and t4 through the others.
  EXPECT_EQ(report->staging_peak, Bytes(160 + 120 + 140));
  EXPECT_EQ(*StagingBytes(*checkpoint, placements, options),
            report->staging_peak);
}

TEST_F(StreamingLoaderTest, LeavesOutWhatIsNotPlaced) {
  const auto tensors = MixedTensors("t", 500);
  WriteNaiveCheckpoint(folder_, tensors);
  const auto checkpoint = OpenCheckpoint();
  for (size_t keep = 1; keep < 5; ++keep) {
    LoadTarget target(KiB(64));
    std::vector<TensorPlacement> placements;
    Bytes bytes;
    for (const TensorPlacement& placement : target.PlaceAll(*checkpoint)) {
      if (placement.tensor->offset % 5 >= keep) continue;
      placements.push_back(placement);
      bytes = *CheckedAdd(bytes, placement.tensor->size);
    }
    StreamingOptions options = Ring(2, Bytes(16));
    options.checksum = true;
    const auto report = StreamTensors(target.driver(), DeviceId(0), *checkpoint,
                                      placements, options);
    ASSERT_TRUE(report.ok()) << report.status();
    target.ExpectHolds(placements, tensors);
    EXPECT_EQ(report->bytes, bytes);
    EXPECT_EQ(report->crc32.size(), placements.size());
  }
}

TEST_F(StreamingLoaderTest, PlacesOneTensorTwice) {
  const std::vector<KnownTensor> tensors = {{"tied", PseudoRandomBytes(900, 4)},
                                            {"next", PseudoRandomBytes(9, 5)}};
  WriteNaiveCheckpoint(folder_, tensors);
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(KiB(64));
  auto placements = target.PlaceAll(*checkpoint);
  placements.push_back(
      {checkpoint->Find("tied"),
       DeviceAddress(placements.front().destination.value() + 5000)});
  StreamingOptions options = Ring(2, Bytes(100));
  options.checksum = true;
  const auto report = StreamTensors(target.driver(), DeviceId(0), *checkpoint,
                                    placements, options);
  ASSERT_TRUE(report.ok()) << report.status();
  target.ExpectHolds(placements, tensors);
  EXPECT_EQ(report->bytes, Bytes(2 * 900 + 9));
  EXPECT_THAT(report->crc32,
              UnorderedElementsAre(Pair("tied", NaiveCrc32(tensors[0].bytes)),
                                   Pair("next", NaiveCrc32(tensors[1].bytes))));
}

TEST_F(StreamingLoaderTest, TakesNothingWhereThereIsNothingToLoad) {
  WriteNaiveCheckpoint(folder_, {{"empty", ""}});
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(KiB(64));
  const uint64_t before = target.driver()->GetCallStatistics().total_count();
  StreamingOptions options;
  options.checksum = true;
  int progress_calls = 0;
  options.progress = [&](const LoadProgress& progress) {
    ++progress_calls;
    EXPECT_EQ(progress.total, Bytes(0));
  };
  const auto none =
      StreamTensors(target.driver(), DeviceId(0), *checkpoint, {}, options);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_THAT(none->crc32, IsEmpty());
  const TensorPlacement empty = {checkpoint->Find("empty"), DeviceAddress()};
  const auto report = StreamTensors(target.driver(), DeviceId(0), *checkpoint,
                                    {&empty, 1}, options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->staging_peak, Bytes(0));
  EXPECT_THAT(report->crc32, UnorderedElementsAre(Pair("empty", 0u)));
  EXPECT_EQ(progress_calls, 2);
  EXPECT_EQ(target.driver()->GetCallStatistics().total_count(), before);
}

TEST_F(StreamingLoaderTest, RefusesRingsOutsideTheBound) {
  WriteNaiveCheckpoint(folder_, {{"t", "abc"}});
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(KiB(64));
  const auto placements = target.PlaceAll(*checkpoint);
  for (const StreamingOptions& options :
       {Ring(0, MiB(1)), Ring(-1, MiB(1)), Ring(1, Bytes(0)), Ring(9, MiB(8)),
        Ring(1, Bytes(kMaxStagingBytes.value() + 1)),
        Ring(2, Bytes(UINT64_MAX))}) {
    const auto report = StreamTensors(target.driver(), DeviceId(0), *checkpoint,
                                      placements, options);
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(report.status().message()), HasSubstr("67108864"));
  }
}

TEST_F(StreamingLoaderTest, RefusesPlacementsThatGoNowhere) {
  WriteNaiveCheckpoint(folder_, {{"weight", "abc"}});
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(KiB(64));
  const TensorPlacement good = target.PlaceAll(*checkpoint).front();
  TensorInfo other_file = *good.tensor;
  other_file.file = 1;
  TensorInfo too_long = *good.tensor;
  too_long.size = Bytes(4);
  TensorInfo overflowing = *good.tensor;
  overflowing.offset = UINT64_MAX;
  for (const TensorPlacement& bad :
       {TensorPlacement{good.tensor, DeviceAddress()},
        TensorPlacement{good.tensor, DeviceAddress(UINT64_MAX - 1)},
        TensorPlacement{&other_file, good.destination},
        TensorPlacement{&too_long, good.destination},
        TensorPlacement{&overflowing, good.destination}}) {
    const std::vector<TensorPlacement> placements = {good, bad};
    const auto report =
        StreamTensors(target.driver(), DeviceId(0), *checkpoint, placements);
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(report.status().message()), HasSubstr("weight"));
  }
  const TensorPlacement none = {nullptr, good.destination};
  EXPECT_EQ(StreamTensors(target.driver(), DeviceId(0), *checkpoint, {&none, 1})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(StreamingLoaderTest, ReportsProgressFromNothingToAll) {
  const auto tensors = MixedTensors("t", 5000);
  WriteNaiveCheckpoint(folder_, tensors);
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(KiB(64));
  const auto placements = target.PlaceAll(*checkpoint);
  StreamingOptions options = Ring(2, Bytes(100));
  std::vector<uint64_t> done;
  const auto caller = std::this_thread::get_id();
  options.progress = [&](const LoadProgress& progress) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(progress.total, checkpoint->total_size());
    EXPECT_GE(progress.seconds, 0);
    done.push_back(progress.done.value());
    if (progress.done == progress.total)
      target.ExpectHolds(placements, tensors);
  };
  ASSERT_TRUE(StreamTensors(target.driver(), DeviceId(0), *checkpoint,
                            placements, options)
                  .ok());
  ASSERT_GE(done.size(), 2u);
  EXPECT_EQ(done.front(), 0u);
  EXPECT_EQ(done.back(), checkpoint->total_size().value());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
}

TEST_F(StreamingLoaderTest, LoadsAtTheSameTimeDoNotDisturbEachOther) {
  const auto tensors = MixedTensors("t", 50000);
  WriteNaiveCheckpoint(folder_, tensors);
  const auto checkpoint = OpenCheckpoint();
  LoadTarget target(MiB(1));
  const auto first = target.PlaceAll(*checkpoint);
  auto second = first;
  for (TensorPlacement& placement : second) {
    placement.destination =
        DeviceAddress(placement.destination.value() + KiB(512).value());
  }
  auto both = first;
  both.insert(both.end(), second.begin(), second.end());
  absl::Status other;
  std::thread thread([&] {
    other = StreamTensors(target.driver(), DeviceId(0), *checkpoint, second,
                          Ring(3, Bytes(500)))
                .status();
  });
  const auto report = StreamTensors(target.driver(), DeviceId(0), *checkpoint,
                                    first, Ring(2, Bytes(300)));
  thread.join();
  EXPECT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(other.ok()) << other;
  target.ExpectHolds(both, tensors);
}

// ---- ReadManifest -----------------------------------------------------------

class ManifestTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { folder_.Write("manifest.json", text); }
  TemporaryFolder folder_;
};

TEST_F(ManifestTest, ReadsTheChecksumOfEveryTensor) {
  Write(R"({"seed": 1, "files": {
      "one.safetensors": {"bytes": 4, "tensors": {
          "a": {"dtype": "F16", "shape": [2], "bytes": 4, "crc32": "00000000"},
          "b": {"crc32": "fedcba98"}}},
      "two.safetensors": {"tensors": {"c": {"crc32": "0012AbCd"}}}}})");
  const auto manifest = ReadManifest(folder_.path());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_THAT(*manifest,
              UnorderedElementsAre(Pair("a", 0u), Pair("b", 0xfedcba98u),
                                   Pair("c", 0x0012abcdu)));
}

TEST_F(ManifestTest, SaysWhereThereIsNone) {
  EXPECT_EQ(ReadManifest(folder_.path()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ManifestTest, NamesWhatIsWrong) {
  const auto in_file = [](const char* tensor) {
    return absl::StrCat(R"({"files": {"f": {"tensors": {"x": )", tensor,
                        "}}}}");
  };
  for (const auto& [text, expected] :
       std::vector<std::pair<std::string, std::string>>{
           {"", "manifest.json"},
           {"{", "manifest.json"},
           {"[]", "manifest.json"},
           {"{}", "files"},
           {R"({"files": []})", "files"},
           {R"({"files": {"f": []}})", "\"f\""},
           {R"({"files": {"f": {"tensors": 1}}})", "tensors"},
           {in_file("1"), "\"x\""},
           {in_file("{}"), "\"x\""},
           {in_file(R"({"crc32": 5})"), "\"x\""},
           {in_file(R"({"crc32": "1234567"})"), "\"x\""},
           {in_file(R"({"crc32": "123456789"})"), "\"x\""},
           {in_file(R"({"crc32": "0x123456"})"), "\"x\""},
           {in_file(R"({"crc32": "-1234567"})"), "\"x\""},
           {R"({"files": {"f": {"tensors": {"x": {"crc32": "00000000"}}},
                          "g": {"tensors": {"x": {"crc32": "00000000"}}}}})",
            "\"x\""}}) {
    Write(text);
    const auto manifest = ReadManifest(folder_.path());
    EXPECT_EQ(manifest.status().code(), absl::StatusCode::kInvalidArgument)
        << text;
    EXPECT_THAT(std::string(manifest.status().message()), HasSubstr(expected));
  }
}

}  // namespace
}  // namespace quire
