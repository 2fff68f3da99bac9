#include "loader/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loader/checkpoint_test_util.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

absl::StatusOr<std::vector<TensorInfo>> Read(const std::string& bytes) {
  return ReadSafetensorsHeader(MemoryFile(bytes, "model.safetensors"), 0);
}

struct Bad {
  const char* what;
  std::string bytes;
  std::string message;  // a part of it; the file's name is in all
};

void ExpectAllRefused(const std::vector<Bad>& cases) {
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.what);
    const auto tensors = Read(bad.bytes);
    ASSERT_FALSE(tensors.ok());
    const std::string message(tensors.status().message());
    EXPECT_THAT(message, HasSubstr("model.safetensors"));
    EXPECT_THAT(message, HasSubstr(bad.message));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_LT(message.size(), 1000u);
  }
}

// A file whose only entry has these fields: `{"a":{<fields>}}`.
std::string OneEntry(const std::string& fields, size_t data_size) {
  return Safetensors(absl::StrCat("{\"a\":{", fields, "}}"), data_size);
}

TEST(SafetensorsHeaderTest, RefusesWrongLengths) {
  ExpectAllRefused({
      {"empty file", "", "0 bytes"},
      {"shorter than the length", "\x10\x20\x30\x40", "4 bytes"},
      {"no header", LittleEndian<uint64_t>(0), "header is empty"},
      {"beyond the file", LittleEndian<uint64_t>(3) + "{}", "truncated"},
      {"beyond the limit", LittleEndian<uint64_t>(100'000'001) + "{}",
       "100000001"},
      {"largest number", std::string(8, '\xff') + "{}", "18446744073709551615"},
      {"negative when signed", LittleEndian(uint64_t{1} << 63) + "{}",
       "9223372036854775808"},
      {"Git LFS pointer",
       "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
       "git lfs pull"},
  });
}

TEST(SafetensorsHeaderTest, RefusesALengthWithoutReadingThatFar) {
  const SparseFile zeros(LittleEndian<uint64_t>(100'000'000) + "{", "big",
                         GiB(64));
  EXPECT_THAT(ReadSafetensorsHeader(zeros, 0).status().message(),
              HasSubstr("byte 9: no valid JSON"));
  const SparseFile beyond(std::string(9, '\x7f'), "big", GiB(64));
  EXPECT_THAT(ReadSafetensorsHeader(beyond, 0).status().message(),
              HasSubstr("limit"));
}

TEST(SafetensorsHeaderTest, RefusesWhatIsNoJsonObject) {
  ExpectAllRefused({
      {"an array", Safetensors("[]"), "begin with {"},
      {"a number", Safetensors("12"), "begin with {"},
      {"white space first", Safetensors(" {}"), "begin with {"},
      {"byte order mark", Safetensors("\xef\xbb\xbf{}"), "begin with {"},
      {"not closed", Safetensors("{"), "no valid JSON"},
      {"no JSON", Safetensors("{this is not json}"), "byte 10: no valid JSON"},
      {"two values", Safetensors("{}{}"), "no valid JSON"},
      {"letters after it", Safetensors("{} x"), "no valid JSON"},
      {"NUL padding", Safetensors(std::string_view("{}\0\0", 4)),
       "no valid JSON"},
      {"trailing comma", Safetensors("{\"__metadata__\":{},}"),
       "no valid JSON"},
      {"comment", Safetensors("{/**/}"), "no valid JSON"},
      {"byte that is no UTF-8",
       Safetensors("{\"__metadata__\":{\"a\":\"\xff\"}}"), "no valid JSON"},
      {"overlong UTF-8", Safetensors("{\"__metadata__\":{\"\xc0\x80\":\"\"}}"),
       "no valid JSON"},
      {"surrogate in UTF-8",
       Safetensors("{\"__metadata__\":{\"\xed\xa0\x80\":\"\"}}"),
       "no valid JSON"},
      {"lone surrogate escape",
       Safetensors("{\"__metadata__\":{\"\\ud800\":\"\"}}"), "no valid JSON"},
      {"control character", Safetensors("{\"__metadata__\":{\"\n\":\"\"}}"),
       "no valid JSON"},
      {"single quotes", Safetensors("{'a':1}"), "no valid JSON"},
  });
}

TEST(SafetensorsHeaderTest, RefusesMetadataThatIsNotStringToString) {
  ExpectAllRefused({
      {"null", Safetensors("{\"__metadata__\":null}"), "__metadata__"},
      {"a string", Safetensors("{\"__metadata__\":\"pt\"}"), "__metadata__"},
      {"an array", Safetensors("{\"__metadata__\":[]}"), "__metadata__"},
      {"a number inside", Safetensors("{\"__metadata__\":{\"step\":1}}"),
       "\"step\" is a number"},
      {"an object inside", Safetensors("{\"__metadata__\":{\"x\":{}}}"),
       "\"x\" is an object"},
      {"null inside", Safetensors("{\"__metadata__\":{\"x\":null}}"),
       "\"x\" is null"},
      {"twice", Safetensors("{\"__metadata__\":{},\"__metadata__\":{}}"),
       "\"__metadata__\" occurs twice"},
      {"twice, escaped",
       Safetensors("{\"__metadata__\":{},\"\\u005f_metadata__\":{}}"),
       "\"__metadata__\" occurs twice"},
      {"a key twice", Safetensors("{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}}"),
       "\"k\" occurs twice"},
  });
}

TEST(SafetensorsHeaderTest, RefusesDuplicateNamesAfterUnescaping) {
  const std::string a = Entry("a", "U8", "[0]", "[0,0]");
  const std::string escaped = Entry("\\u0061", "U8", "[0]", "[0,0]");
  ExpectAllRefused({
      {"equal", Safetensors(Header(a, a)), "tensor \"a\" occurs twice"},
      {"escaped", Safetensors(Header(a, escaped)), "tensor \"a\" occurs twice"},
      {"not adjacent",
       Safetensors(Header(a, Entry("b", "U8", "[0]", "[0,0]"), a)),
       "tensor \"a\" occurs twice"},
  });
}

TEST(SafetensorsHeaderTest, RefusesEntriesOfTheWrongForm) {
  const std::string shape = "\"shape\":[1]";
  const std::string dtype = "\"dtype\":\"F32\"";
  const std::string offsets = "\"data_offsets\":[0,4]";
  ExpectAllRefused({
      {"an array", Safetensors("{\"a\":[\"F32\",[1],[0,4]]}", 4),
       "tensor \"a\": described by an array"},
      {"null", Safetensors("{\"a\":null}"), "tensor \"a\": described by null"},
      {"a number", Safetensors("{\"a\":7}"), "tensor \"a\": described by"},
      {"a string", Safetensors("{\"a\":\"F32\"}"), "described by a string"},
      {"no dtype", OneEntry(shape + "," + offsets, 4), "\"dtype\" is missing"},
      {"no shape", OneEntry(dtype + "," + offsets, 4), "\"shape\" is missing"},
      {"no data_offsets", OneEntry(dtype + "," + shape, 4),
       "\"data_offsets\" is missing"},
      {"no field at all", OneEntry("", 4), "is missing"},
      {"dtype twice", OneEntry(dtype + "," + dtype, 4),
       "\"dtype\" occurs twice"},
      {"shape twice", OneEntry(shape + "," + shape, 4),
       "\"shape\" occurs twice"},
      {"offsets twice, escaped",
       OneEntry(offsets + ",\"data_\\u006fffsets\":[0,4]", 4),
       "\"data_offsets\" occurs twice"},
      {"unknown field", OneEntry(dtype + ",\"strides\":[1]", 4),
       "unknown field \"strides\""},
      {"dtype is a number", OneEntry("\"dtype\":1", 4),
       "\"dtype\" is a number"},
      {"dtype is an array", OneEntry("\"dtype\":[\"F32\"]", 4),
       "\"dtype\" is an array"},
      {"shape is a number", OneEntry("\"shape\":4", 4),
       "\"shape\" is a number"},
      {"shape is a string", OneEntry("\"shape\":\"[4]\"", 4),
       "\"shape\" is a string"},
      {"shape is an object", OneEntry("\"shape\":{}", 4),
       "\"shape\" is an object"},
      {"shape is nested", OneEntry("\"shape\":[[1]]", 4),
       "\"shape\" has an array"},
      {"one offset", OneEntry("\"data_offsets\":[0]", 4), "exactly two"},
      {"three offsets", OneEntry("\"data_offsets\":[0,4,8]", 4), "exactly two"},
      {"no offsets", OneEntry("\"data_offsets\":[]", 4), "exactly two"},
      {"65 dimensions",
       OneEntry(
           "\"shape\":[1" +
               [] {
                 std::string ones;
                 for (int i = 0; i < 64; ++i) ones += ",1";
                 return ones;
               }() +
               "]",
           4),
       "dimensions"},
      {"empty name", Safetensors(Header(Entry("", "U8", "[0]", "[0,0]"))),
       "empty name"},
      {"NUL in the name",
       Safetensors(Header(Entry("a\\u0000b", "U8", "[0]", "[0,0]"))), "NUL"},
  });
}

TEST(SafetensorsHeaderTest, RefusesUnknownTypes) {
  for (const char* dtype : {"", "f32", "FLOAT", "F32 ", "BF32", "I4", "Q4_0",
                            "F8_E4M3FN", "C128"}) {
    SCOPED_TRACE(dtype);
    ExpectAllRefused(
        {{dtype, Safetensors(Header(Entry("a", dtype, "[0]", "[0,0]"))),
          "tensor \"a\": \"dtype\" is"}});
  }
}

TEST(SafetensorsHeaderTest, RefusesNumbersThatAreNoUnsignedIntegers) {
  for (const char* number : {"-1", "-0", "1.0", "1e0", "0.0", "1E+2",
                             "18446744073709551616", "null", "true", "\"1\""}) {
    SCOPED_TRACE(number);
    const std::string text = number;
    ExpectAllRefused({
        {"in the shape", OneEntry("\"shape\":[" + text + "]", 4),
         "tensor \"a\": \"shape\" has"},
        {"first offset", OneEntry("\"data_offsets\":[" + text + ",4]", 4),
         "tensor \"a\": \"data_offsets\" has"},
        {"second offset", OneEntry("\"data_offsets\":[0," + text + "]", 4),
         "tensor \"a\": \"data_offsets\" has"},
    });
  }
  for (const char* number :
       {"01", "+1", ".5", "1.", "0x1", "NaN", "Infinity", "1e400"})
    EXPECT_THAT(Read(OneEntry("\"shape\":[" + std::string(number) + "]", 4))
                    .status()
                    .message(),
                HasSubstr("no valid JSON"))
        << number;
}

TEST(SafetensorsHeaderTest, RefusesDataThatIsNotTiled) {
  const auto two = [](const std::string& a, const std::string& b) {
    return Header(Entry("a", "U8", "[4]", a), Entry("b", "U8", "[4]", b));
  };
  ExpectAllRefused({
      {"first does not begin at 0",
       Safetensors(Header(Entry("a", "U8", "[4]", "[1,5]")), 5),
       "tensor \"a\": data_offsets [1, 5] leave a hole"},
      {"hole", Safetensors(two("[0,4]", "[5,9]"), 9),
       "tensor \"b\": data_offsets [5, 9] leave a hole"},
      {"overlap", Safetensors(two("[0,4]", "[3,7]"), 7),
       "tensor \"b\": data_offsets [3, 7] overlap"},
      {"same place", Safetensors(two("[0,4]", "[0,4]"), 4), "overlap"},
      {"overlap, in another order", Safetensors(two("[3,7]", "[0,4]"), 7),
       "tensor \"a\": data_offsets [3, 7] overlap"},
      {"end before begin",
       Safetensors(Header(Entry("a", "U8", "[0]", "[0,0]"),
                          Entry("b", "U8", "[0]", "[0,0]"),
                          Entry("c", "U8", "[4]", "[4,0]")),
                   4),
       "tensor \"c\": data_offsets [4, 0] end before"},
      {"truncated", Safetensors(Header(Entry("a", "U8", "[4]", "[0,4]")), 3),
       "truncated"},
      {"trailing byte",
       Safetensors(Header(Entry("a", "U8", "[4]", "[0,4]")), 5),
       "1 bytes follow"},
      {"bytes but no tensors", Safetensors("{}", 1), "1 bytes follow"},
      {"end beyond 64 bits",
       Safetensors(Header(Entry("a", "U8", "[18446744073709551615]",
                                "[0,18446744073709551615]"))),
       "tensor \"a\""},
  });
}

TEST(SafetensorsHeaderTest, RefusesSizesThatDisagreeWithTheShape) {
  const auto one = [](const char* dtype, const char* shape,
                      const char* offsets) {
    return Safetensors(Header(Entry("w", dtype, shape, offsets)), 4);
  };
  ExpectAllRefused({
      {"too few bytes", one("F32", "[2]", "[0,4]"),
       "tensor \"w\": F32 [2] needs 8 bytes"},
      {"too many bytes", one("F16", "[1]", "[0,4]"),
       "tensor \"w\": F16 [1] needs 2 bytes"},
      {"no bytes for a scalar", one("U8", "[]", "[0,0]"), "needs 1 bytes"},
      {"bytes for no elements", one("U8", "[0]", "[0,4]"), "needs 0 bytes"},
      {"half a byte", one("F4", "[7]", "[0,4]"), "no whole number"},
      {"six bits", one("F6_E2M3", "[3]", "[0,4]"), "no whole number"},
      {"elements overflow", one("U8", "[4294967296,4294967296]", "[0,4]"),
       "64 bits"},
      {"overflow before a zero",
       one("U8", "[4294967296,4294967296,0]", "[0,0]"), "64 bits"},
      {"bits overflow", one("F64", "[4611686018427387904]", "[0,4]"),
       "64 bits"},
  });
}

TEST(SafetensorsHeaderTest, MessagesEscapeNamesFromTheFile) {
  const auto tensors = Read(Safetensors(
      Header(Entry("a\\n\\u001b[31m\\u202e", "F32", "[1]", "[0,2]")), 2));
  EXPECT_THAT(tensors.status().message(),
              HasSubstr("\"a\\n\\x1b[31m\\u202e\""));
}

TEST(SafetensorsHeaderTest, LongNamesAreCutInMessages) {
  ExpectAllRefused(
      {{"1 MB name",
        Safetensors(
            Header(Entry(std::string(1 << 20, 'x'), "F32", "[1]", "[0,2]")), 2),
        "xxx...\""}});
}

TEST(SafetensorsHeaderTest, RefusesStringsBeyondTheLimit) {
  ExpectAllRefused({{"9 MB of metadata",
                     Safetensors("{\"__metadata__\":{\"k\":\"" +
                                 std::string(9 << 20, 'x') + "\"}}"),
                     "longer than"}});
}

struct Good {
  const char* what;
  std::string bytes;
  std::vector<std::string> names;  // by offset
};

TEST(SafetensorsHeaderTest, AcceptsEverythingTheFormatAllows) {
  const std::vector<Good> cases = {
      {"no tensors", Safetensors("{}"), {}},
      {"spaces behind", Safetensors("{}  \t\r\n  "), {}},
      {"white space everywhere",
       Safetensors("{ \"a\" :\n{ \"dtype\" : \"U8\" , \"shape\" : [ 1 ] , "
                   "\"data_offsets\" : [ 0 , 1 ] } }",
                   1),
       {"a"}},
      {"metadata only",
       Safetensors("{\"__metadata__\":{\"format\":\"pt\"}}"),
       {}},
      {"metadata last",
       Safetensors(Header(Entry("a", "U8", "[1]", "[0,1]"),
                          "\"__metadata__\":{\"a\":\"b\",\"c\":\"\"}"),
                   1),
       {"a"}},
      {"scalar",
       Safetensors(Header(Entry("a", "F32", "[]", "[0,4]")), 4),
       {"a"}},
      {"zero-size dimension",
       Safetensors(Header(Entry("a", "F32", "[3,0,2]", "[0,0]"))),
       {"a"}},
      {"zero before an overflow",
       Safetensors(
           Header(Entry("a", "U8", "[0,4294967296,4294967296]", "[0,0]"))),
       {"a"}},
      {"empty tensor at another's begin",
       Safetensors(Header(Entry("b", "U8", "[4]", "[0,4]"),
                          Entry("a", "U8", "[0]", "[0,0]")),
                   4),
       {"a", "b"}},
      {"empty tensor at the end",
       Safetensors(Header(Entry("b", "U8", "[4]", "[0,4]"),
                          Entry("a", "U8", "[0]", "[4,4]")),
                   4),
       {"b", "a"}},
      {"names in any order",
       Safetensors(Header(Entry("z", "U8", "[1]", "[2,3]"),
                          Entry("a", "U8", "[1]", "[1,2]"),
                          Entry("m", "U8", "[1]", "[0,1]")),
                   3),
       {"m", "a", "z"}},
      {"unaligned data",
       Safetensors(Header(Entry("a", "U8", "[1]", "[0,1]"),
                          Entry("b", "F64", "[1]", "[1,9]")),
                   9),
       {"a", "b"}},
      {"fields in another order",
       OneEntry("\"data_offsets\":[0,2],\"shape\":[1],\"dtype\":\"BF16\"", 2),
       {"a"}},
      {"two F4 in a byte",
       Safetensors(Header(Entry("a", "F4", "[2]", "[0,1]")), 1),
       {"a"}},
      {"four F6 in three bytes",
       Safetensors(Header(Entry("a", "F6_E3M2", "[4]", "[0,3]")), 3),
       {"a"}},
      {"UTF-8 and escapes in names",
       Safetensors(Header(Entry("\xe5\xb1\x82", "U8", "[0]", "[0,0]"),
                          Entry("\\ud83d\\ude00", "U8", "[1]", "[0,1]")),
                   1),
       {"\xe5\xb1\x82", "\xf0\x9f\x98\x80"}},
      {"a tensor that is called like metadata's keys",
       Safetensors(Header(Entry("format", "U8", "[0]", "[0,0]"))),
       {"format"}},
      {"64 dimensions",
       OneEntry(
           "\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1" +
               [] {
                 std::string ones;
                 for (int i = 0; i < 63; ++i) ones += ",1";
                 return ones;
               }() +
               "]",
           1),
       {"a"}},
  };
  for (const Good& good : cases) {
    SCOPED_TRACE(good.what);
    const auto tensors = Read(good.bytes);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    std::vector<std::string> names;
    for (const TensorInfo& tensor : *tensors) names.push_back(tensor.name);
    EXPECT_EQ(names, good.names);
  }
}

TEST(SafetensorsHeaderTest, ReportsTypeShapeAndPlace) {
  const std::string header = Header(Entry("b", "BF16", "[2,3]", "[4,16]"),
                                    Entry("a", "I32", "[]", "[0,4]")) +
                             "  ";
  const MemoryFile file(Safetensors(header, 16), "x.safetensors");
  const auto tensors = ReadSafetensorsHeader(file, 7);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].dtype, DType::kI32);
  EXPECT_THAT((*tensors)[0].shape, IsEmpty());
  EXPECT_EQ((*tensors)[0].offset, 8 + header.size());
  EXPECT_EQ((*tensors)[0].size, Bytes(4));
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].dtype, DType::kBF16);
  EXPECT_THAT((*tensors)[1].shape, ElementsAre(2, 3));
  EXPECT_EQ((*tensors)[1].offset, 8 + header.size() + 4);
  EXPECT_EQ((*tensors)[1].size, Bytes(12));
  EXPECT_EQ((*tensors)[1].file, 7u);
}

TEST(SafetensorsHeaderTest, SizesBeyond32BitsAreExact) {
  const std::string header =
      Header(Entry("a", "U8", "[5000000000]", "[0,5000000000]"),
             Entry("b", "F32", "[3]", "[5000000000,5000000012]"));
  const MemoryFile file(Safetensors(header), "x",
                        Bytes(8 + header.size() + 5'000'000'012));
  const auto tensors = ReadSafetensorsHeader(file, 0);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ((*tensors)[1].offset, 8 + header.size() + 5'000'000'000);
}

TEST(SafetensorsHeaderTest, EveryTypeHasTheSizeOfTheFormat) {
  const std::vector<std::pair<const char*, int>> bits = {
      {"BOOL", 8},    {"F4", 4},   {"F6_E2M3", 6},     {"F6_E3M2", 6},
      {"U8", 8},      {"I8", 8},   {"F8_E5M2", 8},     {"F8_E4M3", 8},
      {"F8_E8M0", 8}, {"I16", 16}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
      {"U16", 16},    {"F16", 16}, {"BF16", 16},       {"I32", 32},
      {"U32", 32},    {"F32", 32}, {"C64", 64},        {"F64", 64},
      {"I64", 64},    {"U64", 64}};
  for (const auto& [dtype, size] : bits) {
    const int bytes = 8 * size / 8;
    const auto tensors = Read(Safetensors(
        Header(Entry("a", dtype, "[8]", Offsets(0, bytes))), bytes));
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_STREQ(DTypeName((*tensors)[0].dtype), dtype);
  }
}

// ---- Random files -----------------------------------------------------------

struct Model {
  std::string bytes;
  std::vector<TensorInfo> tensors;  // by offset
};

// A valid file with random tensors, entries in random order and random space.
Model RandomFile(std::mt19937& random) {
  const auto below = [&random](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n));
  };
  const std::vector<std::pair<const char*, int>> types = {
      {"U8", 1}, {"F16", 2}, {"BF16", 2}, {"F32", 4}, {"I64", 8}};
  Model model;
  std::vector<std::string> entries;
  uint64_t offset = 0;
  const int count = below(12);
  for (int i = 0; i < count; ++i) {
    const auto& [dtype, size] = types[below(types.size())];
    TensorInfo tensor;
    tensor.name = "layers." + std::to_string(i) + std::string(below(30), 'w');
    std::string shape = "[";
    uint64_t elements = 1;
    const int rank = below(4);
    for (int d = 0; d < rank; ++d) {
      // A zero-size tensor that is not the first at its offset would be sorted
      // before the others; the order of names is not under test here.
      tensor.shape.push_back(1 + below(5));
      elements *= tensor.shape.back();
      absl::StrAppend(&shape, d == 0 ? "" : ",", tensor.shape.back());
    }
    tensor.dtype = *DTypeFromSafetensors(dtype);
    tensor.size = Bytes(elements * size);
    tensor.offset = offset;
    const uint64_t end = offset + elements * size;
    entries.push_back(
        Entry(tensor.name, dtype, shape + "]", Offsets(offset, end)));
    offset = end;
    model.tensors.push_back(tensor);
  }
  if (below(2) == 0) entries.push_back("\"__metadata__\":{\"format\":\"pt\"}");
  std::shuffle(entries.begin(), entries.end(), random);
  std::string header = "{";
  for (const std::string& entry : entries)
    absl::StrAppend(&header, header.size() == 1 ? "" : ",", entry);
  header += "}";
  header.append(below(9), ' ');
  for (TensorInfo& tensor : model.tensors) tensor.offset += 8 + header.size();
  model.bytes = Safetensors(header, offset);
  return model;
}

TEST(SafetensorsHeaderTest, RandomFilesAreReadAsWritten) {
  std::mt19937 random(20240501);
  for (int i = 0; i < 500; ++i) {
    const Model model = RandomFile(random);
    const auto tensors = Read(model.bytes);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    ASSERT_EQ(tensors->size(), model.tensors.size());
    for (size_t t = 0; t < tensors->size(); ++t) {
      EXPECT_EQ((*tensors)[t].name, model.tensors[t].name);
      EXPECT_EQ((*tensors)[t].dtype, model.tensors[t].dtype);
      EXPECT_EQ((*tensors)[t].shape, model.tensors[t].shape);
      EXPECT_EQ((*tensors)[t].offset, model.tensors[t].offset);
      EXPECT_EQ((*tensors)[t].size, model.tensors[t].size);
    }
  }
}

// Whatever is accepted tiles the file: that is what loaders rely on.
void ExpectTiled(const std::vector<TensorInfo>& tensors, uint64_t file_size) {
  if (tensors.empty()) return;
  uint64_t end = tensors.front().offset;
  for (const TensorInfo& tensor : tensors) {
    EXPECT_EQ(tensor.offset, end);
    end += tensor.size.value();
  }
  EXPECT_EQ(end, file_size);
}

TEST(SafetensorsHeaderTest, DamagedFilesAreRefusedOrStillTiled) {
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = RandomFile(random).bytes;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips)
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    const auto tensors = Read(bytes);
    if (tensors.ok()) {
      ExpectTiled(*tensors, bytes.size());
    } else {
      ++refused;
      EXPECT_THAT(tensors.status().message(), Not(HasSubstr("\n")));
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(SafetensorsHeaderTest, EveryTruncationIsRefused) {
  std::mt19937 random(11);
  const std::string bytes = RandomFile(random).bytes;
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(Read(bytes.substr(0, size)).ok()) << size;
}

}  // namespace
}  // namespace quire
