// Pre-tokenizers, normalizers and decoders against what those of `tokenizers`
// gave, and the patterns that are refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/tokenizer/decoder.h"
#include "model/tokenizer/golden_data.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pattern.h"
#include "model/tokenizer/pre_tokenizer.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(PreTokenizer, CutsAsTokenizersDoes) {
  for (const json& entry : ReadGolden("tokenizer_parts/pre_tokenizers.json")) {
    SCOPED_TRACE(entry["part"].dump());
    const auto part =
        ParsePreTokenizer(JsonReader(entry["part"], "file"), false);
    ASSERT_TRUE(part.ok()) << part.status();
    for (const json& c : entry["cases"]) {
      std::vector<TextPiece> pieces = {
          {c[0].get<std::string>(), TextPiece::kText, true}};
      // Empty text never reaches a pre-tokenizer.
      if (pieces[0].text.empty()) continue;
      (*part)->PreTokenize(&pieces);
      std::vector<std::string> texts;
      for (const TextPiece& piece : pieces) texts.push_back(piece.text);
      EXPECT_EQ(texts, c[1].get<std::vector<std::string>>()) << c[0];
    }
  }
}

TEST(Normalizer, RewritesAsTokenizersDoes) {
  for (const json& entry : ReadGolden("tokenizer_parts/normalizers.json")) {
    SCOPED_TRACE(entry["part"].dump());
    const auto part = ParseNormalizer(JsonReader(entry["part"], "file"));
    ASSERT_TRUE(part.ok()) << part.status();
    for (const json& c : entry["cases"]) {
      std::string text = c[0];
      (*part)->Normalize(&text);
      EXPECT_EQ(text, c[1].get<std::string>()) << c[0];
    }
  }
}

TEST(Normalizer, OrdersALongRunOfMarksInLittleTime) {
  // Alternating classes: an insertion sort would take a day.
  std::string text = "a", below, above;
  for (int i = 0; i < 500'000; ++i) {
    text += "\u0301\u0323";
    below += "\u0323";
    above += "\u0301";
  }
  const json nfd = {{"type", "NFD"}};
  const auto part = ParseNormalizer(JsonReader(nfd, "file"));
  ASSERT_TRUE(part.ok()) << part.status();
  (*part)->Normalize(&text);
  EXPECT_TRUE(text == "a" + below + above);
}

TEST(TokenDecoder, JoinsAsTokenizersDoes) {
  for (const json& entry : ReadGolden("tokenizer_parts/decoders.json")) {
    SCOPED_TRACE(entry["part"].dump());
    TokenDecoder decoder;
    if (!entry["part"].is_null()) {
      auto part = TokenDecoder::Parse(JsonReader(entry["part"], "file"));
      ASSERT_TRUE(part.ok()) << part.status();
      decoder = *std::move(part);
    }
    for (const json& c : entry["cases"]) {
      DecodeRun run = decoder.Start();
      std::string text;
      for (const json& token : c[0]) text += run.Push(token.get<std::string>());
      text += run.Finish();
      EXPECT_EQ(text, c[1].get<std::string>()) << c[0];
    }
  }
}

TEST(TokenDecoder, PassesOnWhatIsCertainAndNoMore) {
  const json description = {{"type", "ByteLevel"}};
  const auto decoder = TokenDecoder::Parse(JsonReader(description, "file"));
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  DecodeRun run = decoder->Start();
  EXPECT_EQ(run.Push("a"), "a");
  // The euro sign, byte by byte: E2 82 AC.
  EXPECT_EQ(run.Push("b\u00E2"), "b");
  EXPECT_EQ(run.Push("\u0124"), "");
  EXPECT_EQ(run.Push("\u00AC"), "\u20AC");
  // A start that another start breaks off is certain at once.
  EXPECT_EQ(run.Push("\u00E2"), "");
  EXPECT_EQ(run.Push("\u00E2"), "\uFFFD");
  EXPECT_EQ(run.Finish(), "\uFFFD");
}

struct Refused {
  const char* pattern;
  absl::StatusCode code;
  const char* why;
};

// Oniguruma reads these; PCRE2 reads them otherwise, or not at all.
TEST(TextPattern, RefusesByNameWhatItDoesNotSupport) {
  constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Refused table[] = {
      {"[[:alpha:]]", kUnsupported, "a POSIX bracket"},
      {"[a-z&&[^e]]", kUnsupported, "&&"},
      {"[a[^b]]", kUnsupported, "a negated class in a class"},
      {"[]a]", kUnsupported, "']' first"},
      {"\\bx", kUnsupported, "\\b"},
      {"(a)\\1", kUnsupported, "\\1"},
      {"a{x", kUnsupported, "'{'"},
      {"a{1,2}+", kUnsupported, "'+' after an interval"},
      {"a{2}?", kUnsupported, "'?' after \"{n}\""},
      {"(?i:ss)", kUnsupported, "ignoring the case of \"ss\""},
      {"(?i:\u00E9)", kUnsupported, "non-ASCII"},
      {"(?i:\\p{Lu})", kUnsupported, "\\p where case is ignored"},
      {"(?<name>a)", kUnsupported, "this kind of group"},
      {"(?m:a)", kUnsupported, "this kind of group"},
      {"\\p{Greek}", kUnsupported, "\\p{greek}"},
      {"\\xC3", kUnsupported, "\\xHH"},
      {"*a", kUnsupported, "a quantifier after nothing"},
      {"(?=a)*", kUnsupported, "a quantifier after nothing"},
      {"(a", kInvalid, "a '(' without ')'"},
      {"a)", kInvalid, "a ')' without '('"},
      {"[a", kInvalid, "a '[' without ']'"},
      {"[z-a]", kInvalid, "ends before it starts"},
      {"a\\", kInvalid, "a '\\' at the end"},
      {"\\p{L", kInvalid, "without '}'"},
      {"\\x{110000}", kInvalid, "not a code point"},
      {"a{99999}", kInvalid, "number too big"},
  };
  for (const Refused& refused : table) {
    const auto pattern = TextPattern::FromRegex(refused.pattern);
    ASSERT_FALSE(pattern.ok()) << refused.pattern;
    EXPECT_EQ(pattern.status().code(), refused.code) << pattern.status();
    EXPECT_THAT(std::string(pattern.status().message()),
                HasSubstr(refused.why));
  }
}

TEST(TextPattern, GivesUpOnWhatTakesTooLong) {
  const auto pattern = TextPattern::FromRegex("(?:a|a)*b|c");
  ASSERT_TRUE(pattern.ok()) << pattern.status();
  const std::string text = "c" + std::string(40, 'a') + "c";
  const std::vector<PatternSpan> spans = pattern->Find(text);
  ASSERT_FALSE(spans.empty());
  EXPECT_TRUE(spans[0].is_match);
  EXPECT_EQ(spans.back().end, text.size());
}

TEST(TextPattern, TakesLongRunsInItsStride) {
  const auto pattern = TextPattern::FromRegex(
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+|(?:\\p{L}\\p{M}*)+");
  ASSERT_TRUE(pattern.ok()) << pattern.status();
  const std::string spaces(1'000'000, ' ');
  // The last space stays with the letter.
  EXPECT_EQ(pattern->Find(spaces + "x").size(), 3u);
  // A group per character: more backtracking than the JIT's stack holds.
  EXPECT_EQ(pattern->Find(std::string(1'000'000, 'x')).size(), 1u);
}

}  // namespace
}  // namespace quire
