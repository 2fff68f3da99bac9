// Against the reader, which reads what Python writes;
// memory_snapshot_formats_test.py has Python read what this writes.

#include "alloc/pickle_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "alloc/pickle_reader.h"

namespace quire {
namespace {

using Kind = PickleDocument::Kind;
using Value = PickleDocument::Value;

PickleDocument Read(PickleWriter* writer) {
  auto document = ReadPickle(writer->Finish());
  EXPECT_TRUE(document.ok()) << document.status();
  return document.ok() ? *std::move(document) : PickleDocument();
}

TEST(PickleWriterTest, NumbersOfEverySizeSurvive) {
  std::vector<uint64_t> numbers = {0};
  for (int bit = 0; bit < 63; ++bit) {
    const uint64_t power = uint64_t{1} << bit;
    for (const uint64_t n : {power - 1, power, power + 1}) numbers.push_back(n);
  }
  PickleWriter writer;
  writer.BeginList();
  for (const uint64_t number : numbers) writer.Number(number);
  writer.EndList();
  const PickleDocument document = Read(&writer);
  const std::vector<Value>& items = document.items(document.root());
  ASSERT_EQ(items.size(), numbers.size());
  for (size_t i = 0; i < items.size(); ++i) {
    ASSERT_EQ(document.kind(items[i]), Kind::kInteger);
    EXPECT_EQ(static_cast<uint64_t>(document.integer(items[i])), numbers[i]);
  }
}

// As pickle.dumps(2**63, 4) and pickle.dumps(2**64 - 1, 4) end, which the
// reader does not take.
TEST(PickleWriterTest, NumbersBeyondASignedOneHaveNineBytes) {
  PickleWriter power;
  power.Number(uint64_t{1} << 63);
  EXPECT_EQ(power.Finish(),
            std::string("\x80\x04\x8a\x09\0\0\0\0\0\0\0\x80\0.", 14));
  PickleWriter most;
  most.Number(UINT64_MAX);
  EXPECT_EQ(
      most.Finish(),
      std::string("\x80\x04\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0.", 14));
}

// Sizes around the batches, in lists and in dicts.
TEST(PickleWriterTest, ContainersOfEverySizeSurvive) {
  for (const size_t size :
       {0, 1, 2, 999, 1000, 1001, 1999, 2000, 2001, 4000, 5003}) {
    PickleWriter writer;
    writer.BeginDict();
    writer.Text("list");
    writer.BeginList();
    for (size_t i = 0; i < size; ++i) writer.Number(i);
    writer.EndList();
    writer.Text("dict");
    writer.BeginDict();
    for (size_t i = 0; i < size; ++i) writer.Field(std::to_string(i), i);
    writer.EndDict();
    writer.EndDict();
    const PickleDocument document = Read(&writer);
    const Value list = *document.Find(document.root(), "list");
    const Value dict = *document.Find(document.root(), "dict");
    ASSERT_EQ(document.items(list).size(), size);
    for (size_t i = 0; i < size; ++i) {
      EXPECT_EQ(document.integer(document.items(list)[i]),
                static_cast<int64_t>(i));
    }
    for (size_t i = 0; i < size; i += 97) {
      const auto value = document.Find(dict, std::to_string(i));
      ASSERT_TRUE(value.has_value()) << i;
      EXPECT_EQ(document.integer(*value), static_cast<int64_t>(i));
    }
    EXPECT_EQ(document.Find(dict, std::to_string(size)), std::nullopt);
  }
}

TEST(PickleWriterTest, EqualTextsAreOneObject) {
  PickleWriter writer;
  writer.BeginList();
  // More than a byte counts.
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 300; ++i) writer.Text("text " + std::to_string(i));
  }
  writer.EndList();
  const PickleDocument document = Read(&writer);
  const std::vector<Value>& items = document.items(document.root());
  ASSERT_EQ(items.size(), 600u);
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(document.text(items[i]), "text " + std::to_string(i));
    EXPECT_EQ(items[i], items[300 + i]);
  }
}

TEST(PickleWriterTest, ContainersNest) {
  PickleWriter writer;
  writer.BeginList();
  for (uint64_t i = 0; i < 3; ++i) {
    writer.BeginDict();
    writer.Text("inner");
    writer.BeginList();
    for (uint64_t j = 0; j < i; ++j) writer.Bool(j % 2 == 0);
    writer.Pair(i, 70000);
    writer.EndList();
    writer.Field("name", "last");
    writer.EndDict();
  }
  writer.EndList();
  const PickleDocument document = Read(&writer);
  const std::vector<Value>& outer = document.items(document.root());
  ASSERT_EQ(outer.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(document.text(*document.Find(outer[i], "name")), "last");
    const auto& inner = document.items(*document.Find(outer[i], "inner"));
    ASSERT_EQ(inner.size(), i + 1);
    for (size_t j = 0; j < i; ++j) {
      EXPECT_EQ(document.kind(inner[j]), Kind::kBool);
      EXPECT_EQ(document.integer(inner[j]), j % 2 == 0 ? 1 : 0);
    }
    const auto& pair = document.items(inner[i]);
    ASSERT_EQ(pair.size(), 2u);
    EXPECT_EQ(document.integer(pair[0]), static_cast<int64_t>(i));
    EXPECT_EQ(document.integer(pair[1]), 70000);
  }
}

}  // namespace
}  // namespace quire
