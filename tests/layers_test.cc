// The layers, read from the includes: each folder sees only what stands below
// it, public headers include no internal ones, and bench/ uses public headers
// only.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::set<std::string>>& AllowedLayers() {
  static const std::map<std::string, std::set<std::string>> kAllowed = {
      {"alloc", {"alloc"}},
      {"paging", {"alloc", "paging"}},
      {"loader", {"alloc", "loader"}},
      {"model", {"alloc", "paging", "loader", "model"}},
      {"bench", {"alloc", "paging", "loader", "model", "bench"}},
  };
  return kAllowed;
}

struct Include {
  fs::path file;
  int line;
  std::string target;
};

// Every include of the folder's C++ files.
std::vector<Include> IncludesOf(const fs::path& folder) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re");
  std::vector<Include> includes;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cc" && extension != ".cuh" &&
        extension != ".cu")
      continue;
    std::ifstream file(entry.path());
    std::string text;
    for (int line = 1; std::getline(file, text); ++line) {
      std::smatch match;
      if (std::regex_search(text, match, kInclude))
        includes.push_back({entry.path(), line, match[1]});
    }
  }
  return includes;
}

// The folder that an include points into; empty for outside libraries.
std::string LayerOf(const std::string& target) {
  const std::string path =
      target.starts_with("quire/") ? target.substr(6) : target;
  const std::string folder = path.substr(0, path.find('/'));
  return AllowedLayers().contains(folder) ? folder : "";
}

// Test support is shared with the tests of every folder above.
bool IsTestSupport(const std::string& target) {
  return target.find("/testing/") != std::string::npos;
}
bool IsOfTests(const fs::path& file) {
  return file.stem().string().find("_test") != std::string::npos;
}

class LayersTest : public testing::TestWithParam<std::string> {};

TEST_P(LayersTest, IncludesOnlyWhatStandsBelow) {
  const std::string folder = GetParam();
  const std::set<std::string>& allowed = AllowedLayers().at(folder);
  const std::vector<Include> includes =
      IncludesOf(fs::path(QUIRE_SOURCE_DIR) / folder);
  ASSERT_FALSE(includes.empty());
  for (const Include& include : includes) {
    const std::string layer = LayerOf(include.target);
    if (layer.empty()) continue;
    EXPECT_TRUE(allowed.contains(layer)) << include.file << ":" << include.line
                                         << " includes " << include.target;
    const bool is_public_target = include.target.starts_with("quire/");
    const bool is_public_header =
        include.file.string().find("/include/quire/") != std::string::npos;
    EXPECT_TRUE(is_public_target || !is_public_header)
        << include.file << ":" << include.line
        << ": a public header includes an internal one: " << include.target;
    EXPECT_TRUE(is_public_target || layer == folder ||
                (IsTestSupport(include.target) && IsOfTests(include.file)))
        << include.file << ":" << include.line
        << ": an internal header of another folder: " << include.target;
  }
}

INSTANTIATE_TEST_SUITE_P(AllFolders, LayersTest,
                         testing::Values("alloc", "paging", "loader", "model",
                                         "bench"),
                         [](const auto& test) { return test.param; });

TEST(TopLevelTest, HoldsExactlyTheFixedEntries) {
  const std::set<std::string> expected = {"CMakeLists.txt",
                                          "CMakePresets.json",
                                          "LICENSE",
                                          "README.md",
                                          "alloc",
                                          "paging",
                                          "loader",
                                          "model",
                                          "bench",
                                          "tests",
                                          "docs"};
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(QUIRE_SOURCE_DIR)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(".") && name != "build") found.insert(name);
  }
  EXPECT_EQ(found, expected);
}

}  // namespace
