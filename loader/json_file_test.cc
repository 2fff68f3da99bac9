#include "loader/json_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "loader/checkpoint_test_util.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class JsonFileTest : public testing::Test {
 protected:
  absl::StatusOr<JsonFile> Read(const std::string& text,
                                std::string_view ordered_path = {}) {
    return ReadJsonFile(folder_.Write("config.json", text), ordered_path);
  }
  std::string Error(const std::string& text) {
    return std::string(Read(text).status().message());
  }

  TemporaryFolder folder_;
};

TEST_F(JsonFileTest, ReadsEveryKindOfValue) {
  const std::string text =
      R"({"a": null, "b": [true, false, []], "c": {"d": -3, "e": 18446744073709551615},
          "f": 1.5e-3, "g": "\u00e4\n", "h": {}})";
  const auto file = Read(text);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->value, nlohmann::json::parse(text));
  EXPECT_THAT(file->repeated_fields, IsEmpty());
}

TEST_F(JsonFileTest, ErrorsNameTheFileAndTheByte) {
  EXPECT_THAT(Error("{\"a\": 1,, }"),
              HasSubstr("config.json: byte 8: no valid JSON"));
  // Spaces are counted as they stand in the file.
  EXPECT_THAT(Error("{\"a\":       !}"), HasSubstr("byte 12:"));
  EXPECT_THAT(Error(""), HasSubstr("byte 0: no valid JSON"));
  EXPECT_THAT(Error("{\"a\": 1"), HasSubstr("no valid JSON"));
  EXPECT_THAT(Error("{} {}"), HasSubstr("byte 3"));
  EXPECT_THAT(Error("{\"a\": NaN}"), HasSubstr("byte 6"));
  for (const char* number : {"NaN", "Infinity", "-Infinity"})
    EXPECT_THAT(
        Error(absl::StrCat("{\"a\": [0, ", number, "]}")),
        HasSubstr("NaN and Infinity, which Python writes, are no JSON"));
  EXPECT_THAT(Error("{\"a\": nul}"), Not(HasSubstr("Infinity")));
  EXPECT_THAT(Error("\xef\xbb\xbf{}"), HasSubstr("byte order mark"));
  EXPECT_THAT(Error("{\"\xff\": 1}"), HasSubstr("no valid JSON"));
  EXPECT_THAT(Error(std::string("{\"a\":\0 1}", 9)),
              HasSubstr("byte 5: no valid JSON: a NUL byte"));
  EXPECT_THAT(Error(std::string("{}\0", 3)), HasSubstr("byte 2"));
  EXPECT_THAT(Error("version https://git-lfs.github.com/spec/v1\n"),
              HasSubstr("git lfs pull"));
}

TEST_F(JsonFileTest, MustBeAnObject) {
  for (const char* text : {"[]", "[{}]", "1", "\"a\"", "null", "true"})
    EXPECT_THAT(Error(text), HasSubstr("does not hold a JSON object")) << text;
}

TEST_F(JsonFileTest, DepthAndSizeAreLimited) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(Read(nested(127)).ok());
  EXPECT_THAT(Error(nested(128)), HasSubstr("nested deeper than 128"));
  EXPECT_THAT(Error(nested(1'000'000)), HasSubstr("nested deeper than 128"));
  std::string many = "{\"a\":[0";
  for (int i = 0; i < (1 << 20); ++i) many += ",0";
  EXPECT_THAT(Error(many + "]}"), HasSubstr("values"));
  const std::string path = folder_.Write("config.json", "{}");
  std::filesystem::resize_file(path, uint64_t{1} << 36);
  EXPECT_THAT(ReadJsonFile(path).status().message(), HasSubstr("64.00 GiB"));
}

TEST_F(JsonFileTest, AbsentFilesAreNotFoundAndFoldersAreRefused) {
  EXPECT_TRUE(
      absl::IsNotFound(ReadJsonFile(folder_.File("none.json")).status()));
  EXPECT_THAT(ReadJsonFile(folder_.path()).status().message(),
              HasSubstr("not a regular file"));
}

TEST_F(JsonFileTest, TheLastOfRepeatedFieldsCountsAndIsReported) {
  const auto file =
      Read(R"({"bits": 4, "\u0062its": 8, "x": [{"y": 1, "y": 2}]})");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->value["bits"], 8);
  EXPECT_EQ(file->value["x"][0]["y"], 2);
  EXPECT_THAT(file->repeated_fields, ElementsAre("bits", "x.[].y"));
}

TEST_F(JsonFileTest, KeepsTheOrderOfTheKeysThatAreAskedFor) {
  const auto file = Read(
      R"({"dynamic": {"q": 1}, "quantization_config": {"a": {"dynamic": {"p": 1}},
          "dynamic": {"z": {"deep": 1}, "a": 1, "m": [{"n": 1}], "a": 2}}})",
      "quantization_config.dynamic");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->ordered_keys, ElementsAre("z", "a", "m"));
}

}  // namespace
}  // namespace quire
