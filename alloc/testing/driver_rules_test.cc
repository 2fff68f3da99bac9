// docs/driver_rules.md against what it is about: every quotation stands where
// it is said to, every test exists, and every rule is checked in the code.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace quire {
namespace {

namespace fs = std::filesystem;

fs::path Source(const std::string& path) {
  return fs::path(QUIRE_SOURCE_DIR) / path;
}

std::string Read(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A comment as running text: without the marks of comments and of Doxygen.
std::string RunningText(std::string text) {
  static const std::regex kMarks(
      R"((\n\s*(\*+|//)[ \t]?)|(\\(p|note|ref|param\[\w+\]) )|(::)|(</?b>))");
  static const std::regex kSpace(R"(\s+)");
  return std::regex_replace(std::regex_replace(text, kMarks, " "), kSpace, " ");
}

struct Row {
  std::string section;  // its heading of the second level
  std::vector<std::string> cells;
};

// The rows of all tables, heads apart.
std::vector<Row> Rows() {
  std::vector<Row> rows;
  std::istringstream page(Read(Source("docs/driver_rules.md")));
  std::string section;
  std::string line;
  for (bool in_body = false; std::getline(page, line);) {
    if (line.starts_with("## ")) section = line.substr(3);
    if (!line.starts_with("| ")) {
      in_body = line.starts_with("|---");
      continue;
    }
    if (!in_body) continue;
    Row row = {section, {}};
    std::istringstream cells(line.substr(2));
    for (std::string cell; std::getline(cells, cell, '|');) {
      row.cells.push_back(cell.substr(0, cell.find_last_not_of(' ') + 1));
      cells >> std::ws;
    }
    rows.push_back(row);
  }
  return rows;
}

// What stands in backquotes, or in quotation marks.
std::vector<std::string> Marked(const std::string& text, char mark) {
  std::vector<std::string> found;
  for (size_t start = text.find(mark); start != std::string::npos;) {
    const size_t end = text.find(mark, start + 1);
    if (end == std::string::npos) break;
    found.push_back(text.substr(start + 1, end - start - 1));
    start = text.find(mark, end + 1);
  }
  return found;
}

std::string QuotationOf(const Row& row) {
  for (const std::string& cell : row.cells) {
    if (cell.starts_with('"')) return cell.substr(1, cell.size() - 2);
  }
  return "";
}

// Every rule of the section is quoted from `text`.
void ExpectQuotations(const std::string& section, const std::string& text) {
  const std::string running = RunningText(text);
  int quotations = 0;
  for (const Row& row : Rows()) {
    if (row.section != section) continue;
    const std::string quotation = QuotationOf(row);
    EXPECT_FALSE(quotation.empty());
    EXPECT_NE(running.find(RunningText(quotation)), std::string::npos)
        << quotation;
    ++quotations;
  }
  EXPECT_GT(quotations, 0) << section;
}

TEST(DriverRulesTest, QuotesDriverH) {
  ExpectQuotations("Every driver",
                   Read(Source("alloc/include/quire/alloc/driver.h")));
}

TEST(DriverRulesTest, QuotesHostDriverH) {
  ExpectQuotations("HostDriver besides",
                   Read(Source("alloc/include/quire/alloc/host_driver.h")));
}

TEST(DriverRulesTest, QuotesCudaH) {
#ifdef QUIRE_CUDA_HEADER
  const std::string header = Read(QUIRE_CUDA_HEADER);
  if (header.find("#define CUDA_VERSION 13000") == std::string::npos) {
    GTEST_SKIP() << "the quotations are of another version of the header";
  }
  ExpectQuotations("The fake of libcuda", header);
#else
  GTEST_SKIP() << "this build has no cuda.h";
#endif
}

TEST(DriverRulesTest, EveryTestThatItNamesExists) {
  static const std::regex kTest(R"(\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\))");
  std::set<std::string> tests;
  for (const auto& entry : fs::recursive_directory_iterator(Source("alloc"))) {
    if (!entry.path().string().ends_with("_test.cc")) continue;
    const std::string text = Read(entry.path());
    for (std::sregex_iterator test(text.begin(), text.end(), kTest), end;
         test != end; ++test) {
      tests.insert((*test)[1].str() + "." + (*test)[2].str());
    }
  }
  for (const Row& row : Rows()) {
    const std::vector<std::string> named = Marked(row.cells.back(), '`');
    EXPECT_FALSE(named.empty()) << row.cells.front();
    for (const std::string& test : named) {
      EXPECT_TRUE(tests.contains(test)) << test;
    }
  }
}

TEST(DriverRulesTest, TheFakeChecksTheRulesAndNoOthers) {
  std::set<std::string> listed;
  for (const Row& row : Rows()) {
    if (row.section != "The fake of libcuda") continue;
    const std::string rule = Marked(row.cells.front(), '`').front();
    EXPECT_TRUE(listed.insert(rule).second) << rule << " is listed twice";
  }
  static const std::regex kComment(R"(//\s((\[[a-z-]+\]\s?)+))");
  static const std::regex kRule(R"(\[([a-z-]+)\])");
  std::set<std::string> checked;
  for (const auto& entry : fs::directory_iterator(Source("alloc/testing"))) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("fake_cuda") || !name.ends_with(".cc") ||
        name.ends_with("_test.cc")) {
      continue;
    }
    const std::string text = Read(entry.path());
    for (std::sregex_iterator comment(text.begin(), text.end(), kComment), end;
         comment != end; ++comment) {
      const std::string rules = (*comment)[1];
      for (std::sregex_iterator rule(rules.begin(), rules.end(), kRule);
           rule != end; ++rule) {
        checked.insert((*rule)[1]);
      }
    }
  }
  EXPECT_EQ(checked, listed);
}

}  // namespace
}  // namespace quire
