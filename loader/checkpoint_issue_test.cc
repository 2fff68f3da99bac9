// What others reported of loaders of checkpoints, as tests of this one: memory
// that a load takes, and files that disagree.
//
// Named after the reports: Vllm29403 is
// github.com/vllm-project/vllm/issues/29403.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "loader/checkpoint_test_util.h"
#include "loader/gptq_test_util.h"
#include "loader/tensors_test_util.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/runtime.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/gptq.h"
#include "quire/loader/process_memory.h"
#include "quire/loader/streaming_loader.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

Bytes AnonymousMemory() {
  const auto memory = ReadProcessMemory();
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory.ok() ? memory->anonymous : Bytes(0);
}

class CheckpointIssueTest : public testing::Test {
 protected:
  CheckpointIssueTest() { folder_.Write("config.json", "{}"); }

  // A file whose weights are a hole: of any size, on a disk of any size.
  void WriteHollow(const std::string& name, const std::string& header,
                   Bytes data) {
    const std::string path = folder_.Write(name, Safetensors(header));
    fs::resize_file(path, fs::file_size(path) + data.value());
  }

  // Every tensor of the folder to a device of `memory`, whose pages carry none.
  absl::StatusOr<LoadReport> Load(Bytes memory, StreamingOptions options = {}) {
    auto checkpoint = Checkpoint::Open(folder_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    HostDriverOptions device;
    device.memory_per_device = memory;
    device.backing = HostDriverOptions::Backing::kNone;
    auto runtime = Runtime::Create(*HostDriver::Create(device), {});
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    std::vector<TensorPlacement> placements;
    for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
      const auto address = (*runtime)->allocator()->Allocate(tensor.size);
      EXPECT_TRUE(address.ok()) << address.status();
      if (!address.ok()) return address.status();
      placements.push_back({&tensor, *address});
    }
    auto report = StreamTensors((*runtime)->driver(), DeviceId(0), **checkpoint,
                                placements, options);
    for (const TensorPlacement& placement : placements)
      EXPECT_TRUE((*runtime)->allocator()->Free(placement.destination).ok());
    return report;
  }

  std::string OpenError() {
    const auto checkpoint = Checkpoint::Open(folder_.path());
    EXPECT_FALSE(checkpoint.ok());
    return std::string(checkpoint.status().message());
  }

  TemporaryFolder folder_;
};

std::string HollowTensor(const std::string& name, Bytes begin, Bytes size) {
  return Entry(name, "U8", absl::StrCat("[", size.value(), "]"),
               Offsets(begin.value(), SaturatingAdd(begin, size).value()));
}

// A host with 15 GiB was killed loading 5.7 GiB: what a load takes must not
// depend on the checkpoint. Here one tensor is four times what may be staged.
TEST_F(CheckpointIssueTest, OneCompression58HostMemoryOfALoadIsBounded) {
  WriteHollow("model.safetensors",
              Header(HollowTensor("embed", Bytes(0), MiB(256))), MiB(256));
  const Bytes before = AnonymousMemory();
  auto sampler = AnonymousPeakSampler::Start();
  ASSERT_TRUE(sampler.ok());
  const auto report = Load(MiB(320));
  const Bytes peak = (*sampler)->Stop();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->bytes, MiB(256));
  EXPECT_LE(report->staging_peak, kMaxStagingBytes);
  EXPECT_LE(SaturatingSubtract(peak, before), MiB(128));
}

// 122B parameters killed a host with 128 GB: opening reads the index alone.
TEST_F(CheckpointIssueTest, OneCompression12OpeningReadsNoWeight) {
  constexpr int kShards = 40;
  constexpr Bytes kShard = GiB(6);
  nlohmann::json index;
  for (int i = 1; i <= kShards; ++i) {
    const std::string file =
        absl::StrFormat("model-%05d-of-%05d.safetensors", i, kShards);
    const std::string tensor = absl::StrCat("model.layers.", i, ".weight");
    WriteHollow(file, Header(HollowTensor(tensor, Bytes(0), kShard)), kShard);
    index["weight_map"][tensor] = file;
  }
  folder_.Write("model.safetensors.index.json", index.dump());
  const Bytes before = AnonymousMemory();
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->total_size(), GiB(240));
  EXPECT_LE(SaturatingSubtract(AnonymousMemory(), before), MiB(32));
}

// A private mapping of the file that is pinned becomes memory that cannot be
// given back: no file is ever mapped.
TEST_F(CheckpointIssueTest, RtpLlm1218NoFileIsMapped) {
  WriteHollow("model.safetensors", Header(HollowTensor("a", Bytes(0), MiB(16))),
              MiB(16));
  int looks = 0;
  StreamingOptions options;
  options.progress = [&](const LoadProgress&) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      EXPECT_EQ(line.find(folder_.path()), std::string::npos) << line;
    ++looks;
  };
  ASSERT_TRUE(Load(MiB(32), options).ok());
  EXPECT_GT(looks, 0);
}

// A streaming loader kept the whole checkpoint in host memory: after a load,
// what it staged is gone, too.
TEST_F(CheckpointIssueTest, Vllm44430NothingIsKeptAfterALoad) {
  WriteHollow("model.safetensors",
              Header(HollowTensor("a", Bytes(0), MiB(192))), MiB(192));
  ASSERT_TRUE(Load(MiB(256)).ok());  // what a first load leaves: libraries
  const Bytes before = AnonymousMemory();
  ASSERT_TRUE(Load(MiB(256)).ok());
  EXPECT_LE(SaturatingSubtract(AnonymousMemory(), before), MiB(64));
}

// A second buffer on the device, of the size of a shard, ran out of memory: a
// device that holds the weights and nothing else suffices.
TEST_F(CheckpointIssueTest, Vllm29403NoSecondBufferOnTheDevice) {
  WriteHollow("model.safetensors",
              Header(HollowTensor("a", Bytes(0), MiB(64)),
                     HollowTensor("b", MiB(64), MiB(64))),
              MiB(128));
  const auto report = Load(MiB(128));
  EXPECT_TRUE(report.ok()) << report.status();
}

// A file of Git LFS that was not downloaded: its text is no header length.
TEST_F(CheckpointIssueTest, Vllm3637Transformers27923AGitLfsPointerIsNamed) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid "
      "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e23"
      "93\nsize 12345\n";
  folder_.Write("model.safetensors", pointer);
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("model.safetensors"),
                                 HasSubstr("Git LFS pointer")));
  folder_.Write("model.safetensors", Safetensors(Header()));
  folder_.Write("config.json", pointer);
  EXPECT_THAT(OpenError(),
              AllOf(HasSubstr("config.json"), HasSubstr("Git LFS pointer")));
}

TEST_F(CheckpointIssueTest, Qwen462ATruncatedShardIsNamed) {
  const std::string shard =
      Safetensors(Header(Entry("a", "U8", "[64]", Offsets(0, 64))), 63);
  folder_.Write("model-00001-of-00001.safetensors", shard);
  folder_.Write("model.safetensors.index.json",
                R"({"weight_map":{"a":"model-00001-of-00001.safetensors"}})");
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("model-00001-of-00001.safetensors"),
                                 HasSubstr("truncated")));
}

TEST_F(CheckpointIssueTest, Sglang32279AShardThatTheIndexNamesIsAbsent) {
  folder_.Write("a.safetensors", FileOf({{"a", {"U8", {1}, ""}}}));
  folder_.Write("model.safetensors.index.json",
                R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})");
  EXPECT_THAT(OpenError(), HasSubstr("b.safetensors"));
}

// A tensor that stands in two shards is that of the shard which the index says.
TEST_F(CheckpointIssueTest, Vllm54230ATensorComesFromItsOwnShard) {
  folder_.Write("a.safetensors", FileOf({{"x", {"U8", {1}, "a"}}}));
  folder_.Write("b.safetensors",
                FileOf({{"x", {"U8", {1}, "b"}}, {"y", {"U8", {1}, "y"}}}));
  folder_.Write("model.safetensors.index.json",
                R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::vector<std::byte> bytes;
  ASSERT_TRUE(
      (*checkpoint)->ReadSmallTensor(*(*checkpoint)->Find("x"), &bytes).ok());
  EXPECT_THAT(bytes, ElementsAre(std::byte{'a'}));
}

// Files and tensors that no index lists are left alone, and named.
TEST_F(CheckpointIssueTest, Sglang35107WhatTheIndexDoesNotListIsLeftAlone) {
  folder_.Write("a.safetensors",
                FileOf({{"x", {"U8", {1}, ""}}, {"more", {"U8", {1}, ""}}}));
  folder_.Write("consolidated.safetensors", FileOf({{"x", {"U8", {1}, ""}}}));
  folder_.Write("model.safetensors.index.json",
                R"({"weight_map":{"x":"a.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->tensors().size(), 1u);
  EXPECT_THAT((*checkpoint)->warnings(),
              AllOf(Contains(HasSubstr("consolidated.safetensors")),
                    Contains(HasSubstr("more"))));
}

// ---- GPTQ
// --------------------------------------------------------------------

class GptqIssueTest : public CheckpointIssueTest {
 protected:
  // K inputs, N outputs, packed in `bits`, in groups.
  static void Add(const std::string& name, uint64_t k, uint64_t n, int bits,
                  uint64_t groups, Tensors* tensors) {
    const uint64_t words = 32 / static_cast<uint64_t>(bits);
    (*tensors)[name + ".qweight"] = {"I32", {k / words, n}, ""};
    (*tensors)[name + ".qzeros"] = {"I32", {groups, n / words}, ""};
    (*tensors)[name + ".scales"] = {"F16", {groups, n}, ""};
  }

  absl::StatusOr<std::vector<GptqModule>> Find(const Tensors& tensors,
                                               const std::string& config) {
    folder_.Write("model.safetensors", FileOf(tensors));
    folder_.Write("quantize_config.json", config);
    auto checkpoint = Checkpoint::Open(folder_.path());
    if (!checkpoint.ok()) return checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    const auto parsed = GptqConfig::Parse(*checkpoint_);
    if (!parsed.ok()) return parsed.status();
    return FindGptqModules(*checkpoint_, *parsed);
  }

  std::unique_ptr<Checkpoint> checkpoint_;
};

// "dynamic" gives two modules other bits and groups, and leaves one as it is:
// shapes are checked by what counts for the module.
TEST_F(GptqIssueTest, Vllm15665GptqModel1485OverridesHaveOtherShapes) {
  Tensors tensors;
  Add("model.layers.0.up", 64, 32, 8, 1, &tensors);
  Add("model.layers.0.down", 64, 32, 4, 2, &tensors);
  Add("model.layers.1.up", 64, 32, 2, 4, &tensors);
  tensors["model.layers.1.down.weight"] = {"F16", {32, 64}, ""};
  const auto modules = Find(tensors, R"({"bits":4,"group_size":32,"dynamic":{
      "+:.*\\.0\\.up":{"bits":8,"group_size":64},
      ".*\\.1\\.up":{"bits":2,"group_size":16},
      "-:.*\\.1\\.down":{}}})");
  ASSERT_TRUE(modules.ok()) << modules.status();
  std::vector<std::pair<int, uint64_t>> found;
  for (const GptqModule& module : *modules)
    found.emplace_back(module.settings.bits, module.groups);
  EXPECT_THAT(found,
              ElementsAre(std::pair(4, 2), std::pair(8, 1), std::pair(2, 4)));
}

// v1 stores a zero point less one. A zero point of 0 is stored as 2^bits - 1,
// and where the writer did not mask it, as ones in every field after it: these
// are counted, since what they were is lost.
TEST_F(GptqIssueTest, AutoGptq325And354And640ZeroPointsThatWrappedAreCounted) {
  for (const int bits : {2, 3, 4, 8}) {
    const uint32_t most = (1u << bits) - 1;
    const std::vector<uint32_t> words =
        PackBits({1, most, 0, most, most, 1, 0, 0}, bits);
    EXPECT_EQ(
        CountWrappedZeros(words.data(), /*groups=*/1, /*out_features=*/8, bits),
        3u);
  }
}

TEST_F(GptqIssueTest, Vllm48810AModuleWithoutAGroupIndex) {
  Tensors tensors;
  Add("m", 64, 32, 4, 2, &tensors);
  const auto modules =
      Find(tensors, R"({"bits":4,"group_size":32,"desc_act":true})");
  ASSERT_TRUE(modules.ok()) << modules.status();
  const auto groups = ReadGroupIndex(*checkpoint_, modules->front());
  ASSERT_TRUE(groups.ok()) << groups.status();
  for (uint32_t row = 0; row < 64; ++row) EXPECT_EQ((*groups)[row], row / 32);
}

// A group index with the values of activation order and a single group.
TEST_F(GptqIssueTest, AutoGptq292ActivationOrderWithoutGroups) {
  Tensors tensors;
  Add("m", 64, 32, 4, 1, &tensors);
  tensors["m.g_idx"] = {"I32", {64}, ""};
  const auto modules =
      Find(tensors, R"({"bits":4,"group_size":-1,"desc_act":true})");
  ASSERT_TRUE(modules.ok()) << modules.status();
  const auto groups = ReadGroupIndex(*checkpoint_, modules->front());
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(*groups, std::vector<uint32_t>(64, 0));
  // Groups that are not there are an error, not a read beyond the scales.
  tensors["m.g_idx"].bytes = BytesOfAll(std::vector<int32_t>(64, 1));
  const auto beyond =
      Find(tensors, R"({"bits":4,"group_size":-1,"desc_act":true})");
  ASSERT_TRUE(beyond.ok()) << beyond.status();
  EXPECT_THAT(
      std::string(
          ReadGroupIndex(*checkpoint_, beyond->front()).status().message()),
      HasSubstr("m.g_idx"));
}

}  // namespace
}  // namespace quire
