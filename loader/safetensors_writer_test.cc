#include "quire/loader/safetensors_writer.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/streaming_test_util.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Reads a file back the way the format's description says, by other means than
// the writer: whole, with a JSON library, nothing checked that is not used.
struct ParsedFile {
  nlohmann::ordered_json header;
  std::string header_text;
  std::string data;

  std::string Tensor(const std::string& name) const {
    const auto& offsets = header[name]["data_offsets"];
    return data.substr(offsets[0].get<size_t>(),
                       offsets[1].get<size_t>() - offsets[0].get<size_t>());
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, entry] : header.items()) names.push_back(name);
    return names;
  }
};

ParsedFile ParseFile(const std::string& path) {
  const std::string file = ReadWholeFile(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  ParsedFile parsed;
  parsed.header_text = file.substr(8, length);
  parsed.header = nlohmann::ordered_json::parse(parsed.header_text);
  parsed.data = file.substr(8 + length);
  return parsed;
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class SafetensorsWriterTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name = "model.safetensors") const {
    return folder_.File(name);
  }
  std::vector<std::string> FilesInFolder() const {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename());
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(SafetensorsWriterTest, WritesTensorsInAnyOrderAndInParts) {
  const std::string a = PseudoRandomBytes(6 * 4, 1);
  const std::string b = PseudoRandomBytes(5, 2);
  const std::string c = PseudoRandomBytes(8, 3);
  auto writer = SafetensorsWriter::Create(Path(),
                                          {{"b", DType::kU8, {5}},
                                           {"c", DType::kI64, {}},
                                           {"a", DType::kF32, {2, 3}},
                                           {"nothing", DType::kF32, {0, 7}}},
                                          {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append("b", AsBytes(b)).ok());
  ASSERT_TRUE((*writer)->Append("a", AsBytes(a).first(7)).ok());
  ASSERT_TRUE((*writer)->Append("c", AsBytes(c)).ok());
  ASSERT_TRUE((*writer)->Append("a", AsBytes(a).subspan(7)).ok());
  ASSERT_TRUE((*writer)->Append("nothing", {}).ok());
  ASSERT_TRUE((*writer)->Finish().ok());

  const ParsedFile file = ParseFile(Path());
  EXPECT_THAT(file.Names(),
              ElementsAre("__metadata__", "c", "a", "nothing", "b"));
  EXPECT_EQ(file.header["__metadata__"]["format"], "pt");
  EXPECT_EQ(file.header["a"]["shape"], nlohmann::ordered_json({2, 3}));
  EXPECT_EQ(file.header["a"]["dtype"], "F32");
  EXPECT_EQ(file.header["c"]["shape"], nlohmann::ordered_json::array());
  EXPECT_EQ(file.Tensor("a"), a);
  EXPECT_EQ(file.Tensor("b"), b);
  EXPECT_EQ(file.Tensor("c"), c);
  EXPECT_EQ(file.Tensor("nothing"), "");
  EXPECT_EQ(file.data, c + a + b);
  EXPECT_THAT(FilesInFolder(), ElementsAre("model.safetensors"));
}

// The order that safetensors 0.8.0 writes such tensors in.
TEST_F(SafetensorsWriterTest, OrdersTypesAsTheReferenceWriterDoes) {
  const std::vector<std::pair<const char*, DType>> expected = {
      {"U64", DType::kU64},
      {"I64", DType::kI64},
      {"F64", DType::kF64},
      {"C64", DType::kC64},
      {"F32", DType::kF32},
      {"U32", DType::kU32},
      {"I32", DType::kI32},
      {"BF16", DType::kBF16},
      {"F16", DType::kF16},
      {"U16", DType::kU16},
      {"I16", DType::kI16},
      {"F8_E5M2FNUZ", DType::kF8E5M2FNUZ},
      {"F8_E4M3FNUZ", DType::kF8E4M3FNUZ},
      {"F8_E8M0", DType::kF8E8M0},
      {"F8_E4M3", DType::kF8E4M3},
      {"F8_E5M2", DType::kF8E5M2},
      {"I8", DType::kI8},
      {"U8", DType::kU8},
      {"F6_E3M2", DType::kF6E3M2},
      {"F6_E2M3", DType::kF6E2M3},
      {"F4", DType::kF4},
      {"BOOL", DType::kBool},
  };
  std::vector<SafetensorsEntry> entries;
  // Names that alone would sort the other way round.
  for (const auto& [spelling, dtype] : expected)
    entries.push_back(
        {std::string(1, static_cast<char>('z' - entries.size())), dtype, {0}});
  std::reverse(entries.begin(), entries.end());
  auto writer = SafetensorsWriter::Create(Path(), entries, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Finish().ok());
  const ParsedFile file = ParseFile(Path());
  ASSERT_EQ(file.Names().size(), expected.size());
  size_t i = 0;
  for (const auto& [name, entry] : file.header.items())
    EXPECT_EQ(entry["dtype"], expected[i++].first);
}

TEST_F(SafetensorsWriterTest, AlignsTheDataWithSpaces) {
  for (size_t length = 1; length <= 9; ++length) {
    auto writer = SafetensorsWriter::Create(
        Path(), {{std::string(length, 'n'), DType::kU8, {1}}}, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(std::string(length, 'n'), AsBytes("x")).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
    const ParsedFile file = ParseFile(Path());
    EXPECT_EQ(file.header_text.size() % 8, 0u);
    EXPECT_EQ(file.header_text.front(), '{');
    const size_t end = file.header_text.find_last_not_of(' ');
    EXPECT_EQ(file.header_text[end], '}');
    EXPECT_LT(file.header_text.size() - end - 1, 8u);
    EXPECT_EQ(file.data, "x");
  }
}

TEST_F(SafetensorsWriterTest, EscapesNamesAndMetadata) {
  const std::string name = "quote\" slash\\ line\n caf\xc3\xa9 \x01";
  auto writer = SafetensorsWriter::Create(Path(), {{name, DType::kU8, {0}}},
                                          {{"k\"", "v\t\xe2\x82\xac"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Finish().ok());
  const ParsedFile file = ParseFile(Path());
  EXPECT_THAT(file.Names(), ElementsAre("__metadata__", name));
  EXPECT_EQ(file.header["__metadata__"]["k\""], "v\t\xe2\x82\xac");
}

TEST_F(SafetensorsWriterTest, RefusesWhatNoReaderTakes) {
  const auto error = [&](std::vector<SafetensorsEntry> entries) {
    const auto writer =
        SafetensorsWriter::Create(Path(), std::move(entries), {});
    EXPECT_EQ(writer.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(writer.status().message());
  };
  EXPECT_THAT(error({{"", DType::kU8, {1}}}),
              HasSubstr("cannot name a tensor"));
  EXPECT_THAT(error({{"__metadata__", DType::kU8, {1}}}),
              HasSubstr("__metadata__"));
  EXPECT_THAT(error({{std::string("a\0b", 3), DType::kU8, {1}}}),
              HasSubstr("cannot name a tensor"));
  EXPECT_THAT(error({{"bad \xff", DType::kU8, {1}}}),
              HasSubstr("cannot name a tensor"));
  EXPECT_THAT(error({{"twice", DType::kU8, {1}}, {"twice", DType::kU8, {1}}}),
              HasSubstr("twice"));
  EXPECT_THAT(error({{"twice", DType::kU8, {1}}, {"twice", DType::kF32, {1}}}),
              HasSubstr("twice"));
  EXPECT_THAT(error({{"block", DType::kQ4_0, {32}}}), HasSubstr("Q4_0"));
  EXPECT_THAT(error({{"half", DType::kF4, {3}}}), HasSubstr("half"));
  EXPECT_THAT(error({{"huge", DType::kF32, {1ull << 32, 1ull << 32}}}),
              HasSubstr("huge"));
  // The order of the dimensions decides, as in the reference reader.
  EXPECT_THAT(error({{"huge", DType::kF32, {1ull << 32, 1ull << 32, 0}}}),
              HasSubstr("huge"));
  const auto exbibytes = [](size_t count) {
    std::vector<SafetensorsEntry> entries;
    for (size_t i = 0; i < count; ++i)
      entries.push_back({std::to_string(i), DType::kU8, {1ull << 60}});
    return entries;
  };
  EXPECT_THAT(error(exbibytes(8)), HasSubstr("fit in no file"));
  EXPECT_THAT(error(exbibytes(16)), HasSubstr("2^64"));
  const auto metadata =
      SafetensorsWriter::Create(Path(), {}, {{"key", "bad \xff"}});
  EXPECT_THAT(std::string(metadata.status().message()), HasSubstr("key"));
  EXPECT_THAT(FilesInFolder(), IsEmpty());
}

TEST_F(SafetensorsWriterTest, NamesTheTensorThatIsNotWhole) {
  auto writer = SafetensorsWriter::Create(
      Path(), {{"whole", DType::kU8, {0}}, {"short", DType::kU8, {4}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append("short", AsBytes("abc")).ok());
  const absl::Status unfinished = (*writer)->Finish();
  EXPECT_EQ(unfinished.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unfinished.message()),
              HasSubstr("\"short\" has 3 of 4"));
  EXPECT_EQ((*writer)->Append("unknown", {}).code(),
            absl::StatusCode::kNotFound);
  // One byte too many writes none of them.
  EXPECT_EQ((*writer)->Append("short", AsBytes("zz")).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE((*writer)->Append("short", AsBytes("d")).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(ParseFile(Path()).Tensor("short"), "abcd");
  EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*writer)->Append("short", {}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(SafetensorsWriterTest, KeepsTheOldFileUntilTheNewOneIsWhole) {
  std::ofstream(Path()) << "old";
  {
    auto writer =
        SafetensorsWriter::Create(Path(), {{"t", DType::kU8, {1}}}, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_EQ(FilesInFolder().size(), 2u);
    EXPECT_EQ(ReadWholeFile(Path()), "old");
  }
  EXPECT_THAT(FilesInFolder(), ElementsAre("model.safetensors"));
  EXPECT_EQ(ReadWholeFile(Path()), "old");

  auto writer = SafetensorsWriter::Create(Path(), {{"t", DType::kU8, {1}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append("t", AsBytes("n")).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(ParseFile(Path()).Tensor("t"), "n");
}

TEST_F(SafetensorsWriterTest, TwoWritersOfOnePathDoNotMix) {
  auto first = SafetensorsWriter::Create(Path(), {{"t", DType::kU8, {1}}}, {});
  auto second = SafetensorsWriter::Create(Path(), {{"t", DType::kU8, {1}}}, {});
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE((*first)->Append("t", AsBytes("1")).ok());
  ASSERT_TRUE((*second)->Append("t", AsBytes("2")).ok());
  ASSERT_TRUE((*second)->Finish().ok());
  EXPECT_EQ(ParseFile(Path()).Tensor("t"), "2");
  ASSERT_TRUE((*first)->Finish().ok());
  EXPECT_EQ(ParseFile(Path()).Tensor("t"), "1");
}

TEST_F(SafetensorsWriterTest, GivesTheFileTheUsualPermissions) {
  const mode_t before = umask(027);
  auto writer = SafetensorsWriter::Create(Path(), {}, {});
  umask(before);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Finish().ok());
  struct stat status;
  ASSERT_EQ(stat(Path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
  EXPECT_EQ(ParseFile(Path()).header, nlohmann::ordered_json::object());
}

TEST_F(SafetensorsWriterTest, NamesAFolderThatIsMissing) {
  const auto writer = SafetensorsWriter::Create(Path("no/such/file"), {}, {});
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(writer.status().message()),
              HasSubstr("no/such/file"));
}

// A limit on the size of files stands for a disk without room.
TEST_F(SafetensorsWriterTest, LeavesNothingWhereTheFileDoesNotFit) {
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 1 << 20;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto writer =
      SafetensorsWriter::Create(Path(), {{"t", DType::kU8, {2 << 20}}}, {});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(writer.ok());
  EXPECT_THAT(std::string(writer.status().message()), HasSubstr(Path()));
  EXPECT_THAT(FilesInFolder(), IsEmpty());
}

}  // namespace
}  // namespace quire
