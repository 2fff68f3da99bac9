// Device maps against accelerate's (tests/golden/device_maps.py), and against
// what any map must satisfy.

#include "quire/loader/device_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "loader/checkpoint_test_util.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> NamesOf(const std::vector<MemoryPlace>& places) {
  std::vector<std::string> names;
  for (const MemoryPlace& place : places) names.push_back(PlaceName(place));
  return names;
}

std::vector<PlacementBlock> Blocks(const json& described) {
  std::vector<PlacementBlock> blocks;
  for (const json& block : described) {
    blocks.push_back({.name = block.at("name"),
                      .size = Bytes(block.at("size").get<uint64_t>()),
                      .layer = block.at("layer"),
                      .modules = block.at("modules"),
                      .tied_to = std::nullopt});
    if (block.contains("tied_to"))
      blocks.back().tied_to = block.at("tied_to").get<size_t>();
  }
  return blocks;
}

// An embedding of 100 bytes, layers of 10, a norm of 1, a head of 100 or tied.
std::vector<PlacementBlock> SmallModel(int layers, bool tied) {
  std::vector<PlacementBlock> blocks = {{"model.embed_tokens", Bytes(100)}};
  for (int i = 0; i < layers; ++i)
    blocks.push_back({"model.layers." + std::to_string(i), Bytes(10), true, 9});
  blocks.push_back({"model.norm", Bytes(1)});
  blocks.push_back({"lm_head", Bytes(tied ? 0 : 100)});
  if (tied) blocks.back().tied_to = 0;
  return blocks;
}

TEST(DeviceMapTest, IsThatOfAccelerate) {
  const std::string path =
      std::string(QUIRE_SOURCE_DIR) + "/tests/golden/device_maps.json";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  const json reference = json::parse(file);
  size_t offloaded = 0;
  size_t split = 0;
  for (const json& expected : reference.at("cases")) {
    const std::vector<PlacementBlock> blocks =
        Blocks(reference.at("models").at(expected.at("name")));
    PlacementRules rules;
    rules.policy =
        *ParsePlacementPolicy(expected.at("policy").get<std::string>());
    for (const auto& [name, limit] : expected.at("limits").items())
      rules.limits.push_back({*ParsePlace(name), Bytes(limit.get<uint64_t>())});
    // Without a limit of its own, accelerate's disk takes all the rest.
    rules.limits.push_back({kDiskPlace, Bytes(UINT64_MAX)});
    const auto map = PlanDeviceMap(blocks, rules);
    ASSERT_TRUE(map.ok()) << map.status();
    EXPECT_EQ(NamesOf(map->places),
              expected.at("places").get<std::vector<std::string>>())
        << expected.dump();
    offloaded += map->Uses(MemoryTier::kHost);
    split += map->places.front().tier == MemoryTier::kDevice &&
             map->places.back() != map->places.front();
  }
  // The cases are not all of one kind.
  EXPECT_GT(offloaded, 50u);
  EXPECT_GT(split, 50u);
}

// Whatever the sizes: no place has more than its limit, tied blocks are
// together, places come in order, and a model for which one place suffices is
// not taken apart by `sequential`.
TEST(DeviceMapTest, KeepsLimitsTiesAndOrder) {
  std::mt19937_64 rng(1);
  const auto pick = [&](uint64_t below) { return rng() % below; };
  size_t refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<PlacementBlock> blocks =
        SmallModel(1 + static_cast<int>(pick(9)), pick(2) == 0);
    uint64_t total = 0;
    for (PlacementBlock& block : blocks) {
      if (!block.tied_to) block.size = Bytes(1 + pick(200));
      total += block.size.value();
    }
    PlacementRules rules;
    rules.policy = static_cast<PlacementPolicy>(pick(4));
    rules.buffered_blocks = static_cast<uint32_t>(pick(4));
    rules.host_buffers = pick(2) == 0;
    for (int device = 0; device < static_cast<int>(1 + pick(3)); ++device)
      rules.limits.push_back({DevicePlace(device), Bytes(pick(total + 50))});
    if (pick(2) == 0) rules.limits.push_back({kHostPlace, Bytes(pick(total))});
    if (pick(2) == 0) rules.limits.push_back({kDiskPlace, Bytes(pick(total))});
    const auto map = PlanDeviceMap(blocks, rules);
    if (!map.ok()) {
      EXPECT_EQ(map.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(std::string(map.status().message()),
                  HasSubstr("bytes are missing"));
      ++refused;
      EXPECT_FALSE(rules.policy == PlacementPolicy::kSequential &&
                   total <= rules.limits.front().limit.value());
      continue;
    }
    for (const MemoryLimit& limit : rules.limits)
      EXPECT_LE(map->BytesOn(limit.place, blocks), limit.limit);
    MemoryPlace last = map->places.front();
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].tied_to) {
        EXPECT_EQ(map->places[i], map->places[*blocks[i].tied_to]);
        continue;
      }
      EXPECT_LE(last, map->places[i]);
      last = map->places[i];
    }
    if (rules.policy == PlacementPolicy::kSequential &&
        total <= rules.limits.front().limit.value()) {
      EXPECT_EQ(map->BytesOn(rules.limits.front().place, blocks), Bytes(total));
    }
  }
  EXPECT_GT(refused, 100u);
}

TEST(DeviceMapTest, NamesWhatIsMissing) {
  PlacementRules rules;
  rules.policy = PlacementPolicy::kSequential;
  // Room for the embedding, two layers, and the head as a buffer.
  rules.limits = {{DevicePlace(0), Bytes(220)}, {kHostPlace, Bytes(60)}};
  rules.host_buffers = false;
  const auto map = PlanDeviceMap(SmallModel(3, false), rules);
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.status().code(), absl::StatusCode::kResourceExhausted);
  // The last layer and the norm have left 49 of the host's 60 to the head.
  EXPECT_THAT(std::string(map.status().message()),
              AllOf(HasSubstr("lm_head"), HasSubstr("100 bytes"),
                    HasSubstr("51 bytes are missing")));
}

TEST(DeviceMapTest, SaysWhatAnUnusedDeviceWouldHaveNeeded) {
  PlacementRules rules;
  rules.policy = PlacementPolicy::kSequential;
  rules.limits = {{DevicePlace(0), Bytes(150)}, {kHostPlace, Bytes(1000)}};
  const auto map = PlanDeviceMap(SmallModel(3, false), rules);
  ASSERT_TRUE(map.ok()) << map.status();
  ASSERT_EQ(map->unused.size(), 1u);
  EXPECT_EQ(map->unused[0].place, DevicePlace(0));
  // The embedding, and the head that may have to run from there.
  EXPECT_EQ(map->unused[0].needed, Bytes(200));
}

TEST(DeviceMapTest, ContradictoryRulesAreRefused) {
  PlacementRules rules;
  EXPECT_FALSE(PlanDeviceMap(SmallModel(1, false), rules).ok());
  rules.limits = {{kHostPlace, Bytes(1000)}, {DevicePlace(0), Bytes(1000)}};
  EXPECT_FALSE(PlanDeviceMap(SmallModel(1, false), rules).ok());
  rules.limits = {{DevicePlace(0), Bytes(1000)}};
  std::vector<PlacementBlock> blocks = SmallModel(1, true);
  blocks[0].tied_to = 3;
  EXPECT_FALSE(PlanDeviceMap(blocks, rules).ok());
}

TEST(MaxMemoryTest, IsReadAndSorted) {
  const auto limits = ParseMaxMemory("disk:100GiB,cpu:20GB,1:512MiB,0:8GiB");
  ASSERT_TRUE(limits.ok()) << limits.status();
  std::vector<std::string> text;
  for (const MemoryLimit& limit : *limits)
    text.push_back(PlaceName(limit.place) + "=" +
                   std::to_string(limit.limit.value()));
  EXPECT_THAT(text, ElementsAre("0=8589934592", "1=536870912",
                                "cpu=20000000000", "disk=107374182400"));
}

TEST(MaxMemoryTest, OtherTextIsRefusedWithItsEntry) {
  for (const char* text :
       {"", "0", "0:", ":8GiB", "gpu:8GiB", "-1:8GiB", "0:8GiB,,1:8GiB",
        "0:8GiB,0:9GiB", "cpu:lots", "99999999999:1GiB", "0:8GiB,"})
    EXPECT_FALSE(ParseMaxMemory(text).ok()) << text;
  EXPECT_THAT(std::string(ParseMaxMemory("0:1GiB,gpu:8GiB").status().message()),
              HasSubstr("gpu:8GiB"));
}

class DeviceMapFileTest : public testing::Test {
 protected:
  absl::StatusOr<DeviceMap> Read(const std::string& text, bool tied = false) {
    folder_.Write("map.json", text);
    return ReadDeviceMap(folder_.path() + "/map.json", SmallModel(2, tied), 2);
  }
  void ExpectRefused(const std::string& text, const std::string& module,
                     const std::string& problem, bool tied = false) {
    const auto map = Read(text, tied);
    ASSERT_FALSE(map.ok()) << text;
    EXPECT_EQ(map.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(map.status().message()),
        AllOf(HasSubstr("map.json"), HasSubstr(module), HasSubstr(problem)));
  }

  TemporaryFolder folder_;
};

TEST_F(DeviceMapFileTest, PrefixesCoverBlocks) {
  const auto map = Read(
      R"({"model.embed_tokens": 0, "model.layers.0": "cpu",
          "model.layers.1": "disk", "model.norm": 1, "lm_head": "1"})");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_THAT(NamesOf(map->places), ElementsAre("0", "cpu", "disk", "1", "1"));
  const auto wide = Read(R"({"model": 1, "lm_head": "cpu"})");
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_THAT(NamesOf(wide->places), ElementsAre("1", "1", "1", "1", "cpu"));
  // As accelerate writes devices.
  const auto named = Read(R"({"model": "cuda:1", "lm_head": "cuda:0"})");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT(NamesOf(named->places), ElementsAre("1", "1", "1", "1", "0"));
  const auto all = Read(R"({"": "cpu"})", true);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->BytesOn(kHostPlace, SmallModel(2, true)), Bytes(121));
}

TEST_F(DeviceMapFileTest, APlanIsAMap) {
  const auto map =
      Read(R"({"fits": true, "device_map": {"model": 0, "lm_head": "cpu"}})");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->places.back(), kHostPlace);
}

TEST_F(DeviceMapFileTest, EveryBlockIsCoveredOnce) {
  ExpectRefused(R"({"model": 0})", "lm_head", "no place");
  ExpectRefused(R"({"model": 0, "model.layers.1": 1, "lm_head": 0})",
                "model.layers.1", "twice");
  ExpectRefused(R"({"model": 0, "lm_head": 0, "lm_head": 1})", "lm_head",
                "twice");
  ExpectRefused(R"({"model": 0, "lm_head": 0, "visual": 1})", "visual",
                "none of this model");
  // A prefix ends where a name does.
  ExpectRefused(R"({"model": 0, "lm_head": 0, "model.layers.": 1})",
                "model.layers.", "none of this model");
  ExpectRefused(R"({"model": 0, "lm_hea": 0})", "lm_hea", "none of this model");
  ExpectRefused(R"({"": 0, "model.layers.0.mlp": 1})", "model.layers.0.mlp",
                "not split");
}

TEST_F(DeviceMapFileTest, PlacesAreChecked) {
  ExpectRefused(R"({"model": 2, "lm_head": 0})", "model", "there are 2");
  for (const char* place : {"-1", "1.5", "\"gpu\"", "null", "[0]", "true"})
    ExpectRefused(R"({"model": 0, "lm_head": )" + std::string(place) + "}",
                  "lm_head", "expected");
  ExpectRefused(R"({"model": 0, "lm_head": 1})", "lm_head", "shares", true);
}

TEST_F(DeviceMapFileTest, WhatIsNoObjectIsRefused) {
  EXPECT_FALSE(Read("[]").ok());
  EXPECT_FALSE(Read("{").ok());
  EXPECT_EQ(
      ReadDeviceMap(folder_.path() + "/none.json", SmallModel(1, false), 1)
          .status()
          .code(),
      absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quire
