#include "model/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/pattern.h"
#include "model/tokenizer/unicode.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using PreTokenizerResult = absl::StatusOr<std::unique_ptr<PreTokenizer>>;

constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";

enum class Behavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

absl::StatusOr<Behavior> ParseBehavior(const JsonReader& json,
                                       std::string_view key) {
  QUIRE_ASSIGN_OR_RETURN(const std::string name, json.String(key));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return json.Unsupported("the behavior " + name);
}

// Joins or drops spans as `behavior` says.
std::vector<PatternSpan> Apply(Behavior behavior,
                               std::vector<PatternSpan> spans) {
  std::vector<PatternSpan> result;
  bool previous_match = false;
  switch (behavior) {
    case Behavior::kIsolated:
      return spans;
    case Behavior::kRemoved:
      std::erase_if(spans, [](const PatternSpan& s) { return s.is_match; });
      return spans;
    case Behavior::kContiguous:
      for (const PatternSpan& span : spans) {
        if (span.is_match == previous_match && !result.empty()) {
          result.back().end = span.end;
        } else {
          result.push_back(span);
        }
        previous_match = span.is_match;
      }
      return result;
    case Behavior::kMergedWithPrevious:
      for (const PatternSpan& span : spans) {
        if (span.is_match && !previous_match && !result.empty()) {
          result.back().end = span.end;
        } else {
          result.push_back(span);
        }
        previous_match = span.is_match;
      }
      return result;
    case Behavior::kMergedWithNext:
      for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
        if (span->is_match && !previous_match && !result.empty()) {
          result.back().begin = span->begin;
        } else {
          result.push_back(*span);
        }
        previous_match = span->is_match;
      }
      std::reverse(result.begin(), result.end());
      return result;
  }
  return spans;
}

// Puts `spans` of the piece in its place. Empty ones vanish.
void AddSpans(const TextPiece& piece, const std::vector<PatternSpan>& spans,
              std::vector<TextPiece>* out) {
  for (const PatternSpan& span : spans) {
    if (span.begin == span.end) continue;
    TextPiece part;
    part.text = piece.text.substr(span.begin, span.end - span.begin);
    part.at_start = piece.at_start && span.begin == 0;
    out->push_back(std::move(part));
  }
}

// Calls `split(TextPiece*, std::vector<TextPiece>* out)` for every piece of
// text.
template <typename SplitPiece>
void SplitPieces(std::vector<TextPiece>* pieces, SplitPiece split) {
  std::vector<TextPiece> result;
  result.reserve(pieces->size());
  for (TextPiece& piece : *pieces) {
    if (piece.token != TextPiece::kText) {
      result.push_back(std::move(piece));
    } else {
      split(&piece, &result);
    }
  }
  *pieces = std::move(result);
}

// Every character for which `predicate` holds is a match of its own.
template <typename Predicate>
std::vector<PatternSpan> FindCharacters(std::string_view text,
                                        Predicate predicate) {
  std::vector<PatternSpan> spans;
  size_t unmatched = 0;
  for (size_t i = 0; i < text.size();) {
    const DecodedCharacter c = DecodeUtf8(text, i);
    if (predicate(c.code_point)) {
      if (unmatched < i) spans.push_back({unmatched, i, false});
      spans.push_back({i, i + c.length, true});
      unmatched = i + c.length;
    }
    i += c.length;
  }
  if (unmatched < text.size()) spans.push_back({unmatched, text.size(), false});
  return spans;
}

class Split : public PreTokenizer {
 public:
  Split(TextPattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void PreTokenize(std::vector<TextPiece>* pieces) const override {
    SplitPieces(pieces,
                [this](const TextPiece* piece, std::vector<TextPiece>* out) {
                  std::vector<PatternSpan> spans = pattern_.Find(piece->text);
                  if (invert_) {
                    for (PatternSpan& span : spans)
                      span.is_match = !span.is_match;
                  }
                  AddSpans(*piece, Apply(behavior_, std::move(spans)), out);
                });
  }

 private:
  const TextPattern pattern_;
  const Behavior behavior_;
  const bool invert_;
};

// Digits, Punctuation, WhitespaceSplit and CharDelimiterSplit.
template <typename Predicate>
class SplitAtCharacters : public PreTokenizer {
 public:
  SplitAtCharacters(Predicate predicate, Behavior behavior)
      : predicate_(predicate), behavior_(behavior) {}

  void PreTokenize(std::vector<TextPiece>* pieces) const override {
    SplitPieces(pieces, [this](const TextPiece* piece,
                               std::vector<TextPiece>* out) {
      AddSpans(*piece,
               Apply(behavior_, FindCharacters(piece->text, predicate_)), out);
    });
  }

 private:
  const Predicate predicate_;
  const Behavior behavior_;
};

// \w+|[^\w\s]+ of the piece; the rest is dropped.
class Whitespace : public PreTokenizer {
 public:
  void PreTokenize(std::vector<TextPiece>* pieces) const override {
    SplitPieces(pieces,
                [](const TextPiece* piece, std::vector<TextPiece>* out) {
                  enum Kind { kSpace, kWord, kOther };
                  std::vector<PatternSpan> words;
                  Kind previous = kSpace;
                  for (size_t i = 0; i < piece->text.size();) {
                    const DecodedCharacter c = DecodeUtf8(piece->text, i);
                    const Kind kind = IsWord(c.code_point)         ? kWord
                                      : IsWhitespace(c.code_point) ? kSpace
                                                                   : kOther;
                    if (kind != kSpace) {
                      if (kind != previous) words.push_back({i, i, true});
                      words.back().end = i + c.length;
                    }
                    previous = kind;
                    i += c.length;
                  }
                  AddSpans(*piece, words, out);
                });
  }
};

// Pieces of so many characters, the last one of what is left.
class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(int64_t length) : length_(length) {}

  void PreTokenize(std::vector<TextPiece>* pieces) const override {
    SplitPieces(pieces,
                [this](const TextPiece* piece, std::vector<TextPiece>* out) {
                  std::vector<PatternSpan> spans;
                  int64_t characters = 0;
                  for (size_t i = 0; i < piece->text.size(); ++characters) {
                    if (characters % length_ == 0)
                      spans.push_back({i, i, true});
                    i += DecodeUtf8(piece->text, i).length;
                    spans.back().end = i;
                  }
                  AddSpans(*piece, spans, out);
                });
  }

 private:
  const int64_t length_;
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::optional<TextPattern> pattern)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)) {}

  void PreTokenize(std::vector<TextPiece>* pieces) const override {
    SplitPieces(pieces, [this](TextPiece* piece, std::vector<TextPiece>* out) {
      if (add_prefix_space_ && !piece->text.starts_with(' ')) {
        piece->text.insert(0, 1, ' ');
      }
      const size_t first = out->size();
      if (pattern_) {
        AddSpans(*piece, pattern_->Find(piece->text), out);
      } else {
        out->push_back(std::move(*piece));
      }
      for (size_t i = first; i < out->size(); ++i) {
        (*out)[i].text = BytesToByteLevel((*out)[i].text);
      }
    });
  }

 private:
  const bool add_prefix_space_;
  const std::optional<TextPattern> pattern_;
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kNever, kFirst, kAlways };

  Metaspace(char32_t replacement, Prepend prepend, bool split)
      : replacement_(replacement), prepend_(prepend), split_(split) {
    AppendUtf8(replacement, &replacement_text_);
  }

  void PreTokenize(std::vector<TextPiece>* pieces) const override {
    SplitPieces(pieces, [this](TextPiece* piece, std::vector<TextPiece>* out) {
      std::string text;
      for (const char c : piece->text) {
        if (c == ' ') {
          text += replacement_text_;
        } else {
          text += c;
        }
      }
      if (!text.starts_with(replacement_text_) &&
          (prepend_ == Prepend::kAlways ||
           (prepend_ == Prepend::kFirst && piece->at_start))) {
        text.insert(0, replacement_text_);
      }
      piece->text = std::move(text);
      if (!split_) {
        out->push_back(std::move(*piece));
        return;
      }
      const auto is_replacement = [this](char32_t c) {
        return c == replacement_;
      };
      AddSpans(*piece,
               Apply(Behavior::kMergedWithNext,
                     FindCharacters(piece->text, is_replacement)),
               out);
    });
  }

 private:
  const char32_t replacement_;
  std::string replacement_text_;
  const Prepend prepend_;
  const bool split_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(
      std::vector<std::unique_ptr<PreTokenizer>> parts)
      : parts_(std::move(parts)) {}
  void PreTokenize(std::vector<TextPiece>* pieces) const override {
    for (const auto& part : parts_) part->PreTokenize(pieces);
  }

 private:
  const std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

class PreTokenizerParser {
 public:
  // `text_is_rewritten`: pieces may differ from the input.
  explicit PreTokenizerParser(bool text_is_rewritten)
      : text_is_rewritten_(text_is_rewritten) {}

  PreTokenizerResult Parse(const JsonReader& json, int depth) {
    QUIRE_ASSIGN_OR_RETURN(const std::string type, json.String("type"));
    if (type == "ByteLevel") return ParseByteLevel(json);
    if (type == "Split") return ParseSplit(json);
    if (type == "Metaspace") return ParseMetaspace(json);
    if (type == "Whitespace") return std::make_unique<Whitespace>();
    if (type == "WhitespaceSplit") {
      return SplitAt(IsWhitespace, Behavior::kRemoved);
    }
    if (type == "Digits") {
      QUIRE_ASSIGN_OR_RETURN(const bool individual,
                             json.BoolOr("individual_digits", false));
      return SplitAt(IsNumeric,
                     individual ? Behavior::kIsolated : Behavior::kContiguous);
    }
    if (type == "Punctuation") {
      Behavior behavior = Behavior::kIsolated;
      if (json.Has("behavior")) {
        QUIRE_ASSIGN_OR_RETURN(behavior, ParseBehavior(json, "behavior"));
      }
      return SplitAt(static_cast<bool (*)(char32_t)>(IsPunctuation), behavior);
    }
    if (type == "BertPreTokenizer") {
      std::vector<std::unique_ptr<PreTokenizer>> parts;
      QUIRE_ASSIGN_OR_RETURN(parts.emplace_back(),
                             SplitAt(IsWhitespace, Behavior::kRemoved));
      QUIRE_ASSIGN_OR_RETURN(
          parts.emplace_back(),
          SplitAt(static_cast<bool (*)(char32_t)>(IsPunctuation),
                  Behavior::kIsolated));
      return std::make_unique<PreTokenizerSequence>(std::move(parts));
    }
    if (type == "FixedLength") {
      QUIRE_ASSIGN_OR_RETURN(const int64_t length,
                             json.Integer("length", 1, INT32_MAX));
      return std::make_unique<FixedLength>(length);
    }
    if (type == "CharDelimiterSplit") {
      QUIRE_ASSIGN_OR_RETURN(const char32_t delimiter,
                             json.Character("delimiter"));
      return SplitAt([delimiter](char32_t c) { return c == delimiter; },
                     Behavior::kRemoved);
    }
    if (type == "Sequence") {
      if (depth == kMaxSequenceDepth)
        return json.Unsupported("such deep nesting");
      QUIRE_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                             json.Array("pretokenizers"));
      std::vector<std::unique_ptr<PreTokenizer>> parts;
      for (const JsonReader& element : elements) {
        QUIRE_ASSIGN_OR_RETURN(parts.emplace_back(), Parse(element, depth + 1));
      }
      return std::make_unique<PreTokenizerSequence>(std::move(parts));
    }
    return json.Unsupported("the pre-tokenizer " + type);
  }

 private:
  template <typename Predicate>
  static PreTokenizerResult SplitAt(Predicate predicate, Behavior behavior) {
    return std::make_unique<SplitAtCharacters<Predicate>>(predicate, behavior);
  }

  PreTokenizerResult ParseByteLevel(const JsonReader& json) {
    QUIRE_ASSIGN_OR_RETURN(const bool add_prefix_space,
                           json.BoolOr("add_prefix_space", true));
    QUIRE_ASSIGN_OR_RETURN(const bool use_regex,
                           json.BoolOr("use_regex", true));
    std::optional<TextPattern> pattern;
    if (use_regex) {
      QUIRE_ASSIGN_OR_RETURN(pattern, TextPattern::FromRegex(kGpt2Pattern));
    }
    text_is_rewritten_ = true;
    return std::make_unique<ByteLevel>(add_prefix_space, std::move(pattern));
  }

  static PreTokenizerResult ParseSplit(const JsonReader& json) {
    QUIRE_ASSIGN_OR_RETURN(TextPattern pattern,
                           TextPattern::FromJson(json, "pattern"));
    QUIRE_ASSIGN_OR_RETURN(const Behavior behavior,
                           ParseBehavior(json, "behavior"));
    QUIRE_ASSIGN_OR_RETURN(const bool invert, json.BoolOr("invert", false));
    return std::make_unique<Split>(std::move(pattern), behavior, invert);
  }

  PreTokenizerResult ParseMetaspace(const JsonReader& json) {
    QUIRE_ASSIGN_OR_RETURN(const char32_t replacement,
                           json.Character("replacement"));
    QUIRE_ASSIGN_OR_RETURN(const bool add_prefix_space,
                           json.BoolOr("add_prefix_space", true));
    QUIRE_ASSIGN_OR_RETURN(const bool split, json.BoolOr("split", true));
    std::string scheme = "always";
    if (json.Has("prepend_scheme")) {
      QUIRE_ASSIGN_OR_RETURN(scheme, json.String("prepend_scheme"));
    }
    Metaspace::Prepend prepend;
    if (scheme == "always") {
      prepend = Metaspace::Prepend::kAlways;
    } else if (scheme == "first") {
      prepend = Metaspace::Prepend::kFirst;
    } else if (scheme == "never") {
      prepend = Metaspace::Prepend::kNever;
    } else {
      return json.Unsupported("the prepend_scheme " + scheme);
    }
    if (!add_prefix_space && prepend != Metaspace::Prepend::kNever) {
      return json.Error("add_prefix_space does not match prepend_scheme");
    }
    if (prepend == Metaspace::Prepend::kFirst && text_is_rewritten_) {
      return json.Unsupported("prepend_scheme first after other rewriting");
    }
    text_is_rewritten_ = true;
    return std::make_unique<Metaspace>(replacement, prepend, split);
  }

  bool text_is_rewritten_;
};

}  // namespace

PreTokenizerResult ParsePreTokenizer(const JsonReader& json,
                                     bool has_normalizer) {
  return PreTokenizerParser(has_normalizer).Parse(json, 0);
}

}  // namespace quire
