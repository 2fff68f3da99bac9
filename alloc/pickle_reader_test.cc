#include "alloc/pickle_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "alloc/testing/pickle_text.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using Kind = PickleDocument::Kind;
using Value = PickleDocument::Value;

// What Python 3.11's pickle.dumps(value, protocol) gives for
//   {"a": [1, -1, 255, 256, 65535, 65536, -2**31, 2**31, 2**40, -2**40,
//          2**63 - 1, 0],
//    "t": (), "u": (1,), "v": (1, 2), "w": (1, 2, 3), "x": (1, 2, 3, 4),
//    "n": None, "b": [True, False], "f": 1.5, "s": "über"}
constexpr char kProtocol2[] =
    "80027d71002858010000006171015d7102284b014affffffff4bff4d00014dffff4a000001"
    "004a000000808a0500000080008a060000000000018a060000000000ff8a08ffffffffffff"
    "ff7f4b006558010000007471032958010000007571044b0185710558010000007671064b01"
    "4b0286710758010000007771084b014b024b03877109580100000078710a284b014b024b03"
    "4b0474710b58010000006e710c4e580100000062710d5d710e28888965580100000066710f"
    "473ff800000000000058010000007371105805000000c3bc6265727111752e";
constexpr char kProtocol5[] =
    "800595a3000000000000007d94288c0161945d94284b014affffffff4bff4d00014dffff4a"
    "000001004a000000808a0500000080008a060000000000018a060000000000ff8a08ffffff"
    "ffffffff7f4b00658c017494298c0175944b0185948c0176944b014b0286948c0177944b01"
    "4b024b0387948c017894284b014b024b034b0474948c016e944e8c0162945d94288889658c"
    "016694473ff80000000000008c0173948c05c3bc62657294752e";

std::string Bytes(const char* hex) { return absl::HexStringToBytes(hex); }

std::string ErrorOf(const std::string& contents) {
  const auto document = ReadPickle(contents);
  EXPECT_EQ(document.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(document.status().message());
}

void ExpectThatValue(const PickleDocument& document) {
  const Value root = document.root();
  ASSERT_EQ(document.kind(root), Kind::kDict);
  const auto at = [&](const char* key) {
    const std::optional<Value> value = document.Find(root, key);
    EXPECT_TRUE(value.has_value()) << key;
    return value.value_or(0);
  };
  const std::vector<int64_t> numbers = {1,
                                        -1,
                                        255,
                                        256,
                                        65535,
                                        65536,
                                        -(int64_t{1} << 31),
                                        int64_t{1} << 31,
                                        int64_t{1} << 40,
                                        -(int64_t{1} << 40),
                                        INT64_MAX,
                                        0};
  ASSERT_EQ(document.kind(at("a")), Kind::kList);
  ASSERT_EQ(document.items(at("a")).size(), numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(document.integer(document.items(at("a"))[i]), numbers[i]);
  }
  const char* const tuples[] = {"t", "u", "v", "w", "x"};
  for (size_t size = 0; size < 5; ++size) {
    ASSERT_EQ(document.kind(at(tuples[size])), Kind::kTuple);
    ASSERT_EQ(document.items(at(tuples[size])).size(), size);
    for (size_t i = 0; i < size; ++i) {
      EXPECT_EQ(document.integer(document.items(at(tuples[size]))[i]),
                static_cast<int64_t>(i + 1));
    }
  }
  EXPECT_EQ(document.kind(at("n")), Kind::kNone);
  EXPECT_EQ(document.integer(document.items(at("b"))[0]), 1);
  EXPECT_EQ(document.integer(document.items(at("b"))[1]), 0);
  EXPECT_EQ(document.kind(document.items(at("b"))[1]), Kind::kBool);
  EXPECT_EQ(document.real(at("f")), 1.5);
  EXPECT_EQ(document.text(at("s")),
            "\u00fc"
            "ber");
  EXPECT_EQ(document.Find(root, "z"), std::nullopt);
  EXPECT_EQ(document.Find(at("a"), "z"), std::nullopt);
}

TEST(PickleReaderTest, ReadsWhatPythonWrites) {
  for (const char* hex : {kProtocol2, kProtocol5}) {
    const auto document = ReadPickle(Bytes(hex));
    ASSERT_TRUE(document.ok()) << document.status();
    ExpectThatValue(*document);
  }
}

TEST(PickleReaderTest, WhatIsRememberedIsOneValue) {
  // a = [1]; [a, a], then the list grows through its second name.
  const std::string text =
      std::string("\x80\x04]\x94(]\x94K\x01") + "ah\x01K\x02" + "ae.";
  const auto document = ReadPickle(text);
  ASSERT_TRUE(document.ok()) << document.status();
  const std::vector<Value>& both = document->items(document->root());
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0], both[1]);
  EXPECT_EQ(document->items(both[0]).size(), 2u);
}

TEST(PickleReaderTest, OfAKeyThatOccursTwiceTheLastCounts) {
  using namespace pickle_text;  // NOLINT: a vocabulary for tests
  const auto document = ReadPickle(
      Pickle(Dict({{"k", Number(1)}, {"l", Number(2)}, {"k", Number(3)}})));
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(document->integer(*document->Find(document->root(), "k")), 3);
}

TEST(PickleReaderTest, ClassesAndCallsAreRefusedByName) {
  // pickle.dumps of an object whose __reduce__ runs a command.
  EXPECT_THAT(ErrorOf(std::string("\x80\x02") + "cposix\nsystem\n"),
              HasSubstr("byte 2 of the pickle: GLOBAL is refused"));
  EXPECT_THAT(ErrorOf(std::string("\x80\x04\x8c\x05posix\x8c\x06system\x93")),
              HasSubstr("STACK_GLOBAL"));
  for (const char operation :
       {'R', 'b', 'i', 'o', '\x81', '\x92', 'P', 'Q', '\x82', '\x83', '\x84'}) {
    EXPECT_THAT(ErrorOf(std::string("\x80\x02NN") + operation),
                HasSubstr("byte 4"));
  }
  // What does no harm and is not needed is no better.
  for (const char operation : {'0', '1', '2', 'S', 'I', 'B', '\x8e', '\x8f'}) {
    EXPECT_THAT(ErrorOf(std::string("\x80\x02N") + operation),
                HasSubstr("byte 3"));
  }
}

TEST(PickleReaderTest, BrokenFilesAreErrors) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("0x80"));
  EXPECT_THAT(ErrorOf("(dp0\n."), HasSubstr("0x80"));  // protocol 0
  EXPECT_THAT(ErrorOf("\x80\x06N."), HasSubstr("protocol 6"));
  EXPECT_THAT(ErrorOf("\x80\x02."), HasSubstr("0 values"));
  EXPECT_THAT(ErrorOf("\x80\x02NN."), HasSubstr("2 values"));
  EXPECT_THAT(ErrorOf("\x80\x02(N."), HasSubstr("end"));
  EXPECT_THAT(ErrorOf("\x80\x02Na."), HasSubstr("no list"));
  EXPECT_THAT(ErrorOf("\x80\x02Ns."), HasSubstr("short"));
  EXPECT_THAT(ErrorOf("\x80\x02}NNa."), HasSubstr("no list"));
  EXPECT_THAT(ErrorOf("\x80\x02](Na."), HasSubstr("no list"));
  EXPECT_THAT(ErrorOf("\x80\x02]NNs."), HasSubstr("no dict"));
  EXPECT_THAT(ErrorOf("\x80\x02}(Nu."), HasSubstr("no value"));
  EXPECT_THAT(ErrorOf("\x80\x02t."), HasSubstr("no mark"));
  EXPECT_THAT(ErrorOf("\x80\x02N(\x85."), HasSubstr("short"));
  EXPECT_THAT(ErrorOf("\x80\x02h\x07."), HasSubstr("memo 7"));
  EXPECT_THAT(ErrorOf("\x80\x02q\x07."), HasSubstr("remember"));
  EXPECT_THAT(ErrorOf("\x80\x02X\xff\xff\xff\xff"
                      "abc"),
              HasSubstr("ends"));
  EXPECT_THAT(ErrorOf("\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                      "abc"),
              HasSubstr("ends"));
  EXPECT_THAT(ErrorOf("\x80\x02\x8a\x09"), HasSubstr("64 bits"));
}

TEST(PickleReaderTest, EveryShorterFileIsAnError) {
  const std::string whole = Bytes(kProtocol5);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ReadPickle(whole.substr(0, size)).ok()) << size;
  }
}

// No outcome is asked for but that there is one.
TEST(PickleReaderTest, AnyByteMayBeAnyOther) {
  std::mt19937 random(7);
  for (const char* hex : {kProtocol2, kProtocol5}) {
    const std::string whole = Bytes(hex);
    for (int i = 0; i < 20000; ++i) {
      std::string broken = whole;
      for (int changes = 0; changes < 3; ++changes) {
        broken[random() % broken.size()] = static_cast<char>(random());
      }
      const auto document = ReadPickle(broken);
      if (document.ok()) (void)document->Find(document->root(), "a");
    }
  }
}

}  // namespace
}  // namespace quire
