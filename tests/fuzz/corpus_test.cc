// Plays the inputs that are kept of each fuzz target: those to begin with, and
// those that were findings.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>

#include "tests/fuzz/targets.h"

namespace quire {
namespace {

struct Target {
  const char* name;  // of its folder in corpus/
  absl::Status (*run)(std::string_view input);
};

std::ostream& operator<<(std::ostream& out, const Target& target) {
  return out << target.name;
}

constexpr Target kTargets[] = {
    {"adapter", FuzzAdapter},
    {"allocation_trace", FuzzAllocationTrace},
    {"allocator", FuzzAllocator},
    {"device_map", FuzzDeviceMap},
    {"gguf", FuzzGguf},
    {"memory_snapshot", FuzzMemorySnapshot},
    {"model_config", FuzzModelConfig},
    {"safetensors_header", FuzzSafetensorsHeader},
    {"shard_index", FuzzShardIndex},
    {"tokenizer", FuzzTokenizer},
};

std::filesystem::path Corpus(const std::string& target) {
  return std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/fuzz/corpus" / target;
}

class FuzzCorpusTest : public testing::TestWithParam<Target> {};

TEST_P(FuzzCorpusTest, EveryInputIsRefusedOrRead) {
  size_t inputs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(Corpus(GetParam().name))) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(GetParam().run(input), absl::OkStatus()) << entry.path();
    ++inputs;
  }
  EXPECT_GT(inputs, 0u);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpusTest, testing::ValuesIn(kTargets),
                         [](const auto& test) { return test.param.name; });

TEST(FuzzCorpusFoldersTest, EveryFolderIsOfATarget) {
  for (const auto& entry : std::filesystem::directory_iterator(Corpus(""))) {
    bool known = false;
    for (const Target& target : kTargets)
      known |= entry.path().filename() == target.name;
    EXPECT_TRUE(known) << entry.path();
  }
}

}  // namespace
}  // namespace quire
