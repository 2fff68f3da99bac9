#include "model/tokenizer/normalizer.h"

#include <string_view>
#include <utility>
#include <vector>

#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/normalization_forms.h"
#include "model/tokenizer/pattern.h"
#include "model/tokenizer/unicode.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using NormalizerResult = absl::StatusOr<std::unique_ptr<Normalizer>>;

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalizationForm form) : form_(form) {}
  void Normalize(std::string* text) const override {
    *text = NormalizeTo(form_, *text);
  }

 private:
  const NormalizationForm form_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void Normalize(std::string* text) const override {
    if (!text->empty()) text->insert(0, prefix_);
  }

 private:
  const std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Normalize(std::string* text) const override {
    std::string result;
    for (const PatternSpan& span : pattern_.Find(*text)) {
      if (span.is_match) {
        result += content_;
      } else {
        result.append(*text, span.begin, span.end - span.begin);
      }
    }
    *text = std::move(result);
  }

 private:
  const TextPattern pattern_;
  const std::string content_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void Normalize(std::string* text) const override {
    size_t begin = 0, end = text->size();
    while (left_ && begin < end) {
      const DecodedCharacter c = DecodeUtf8(*text, begin);
      if (!IsWhitespace(c.code_point)) break;
      begin += c.length;
    }
    while (right_ && begin < end) {
      const size_t last = PreviousCharacter(*text, end);
      if (!IsWhitespace(DecodeUtf8(*text, last).code_point)) break;
      end = last;
    }
    *text = text->substr(begin, end - begin);
  }

 private:
  const bool left_;
  const bool right_;
};

class ToByteLevel : public Normalizer {
 public:
  void Normalize(std::string* text) const override {
    *text = BytesToByteLevel(*text);
  }
};

// Every character becomes what `rewrite(character, &out)` appends.
template <typename Rewrite>
class ByCharacter : public Normalizer {
 public:
  explicit ByCharacter(Rewrite rewrite) : rewrite_(rewrite) {}
  void Normalize(std::string* text) const override {
    std::string result;
    result.reserve(text->size());
    for (size_t i = 0; i < text->size();) {
      const DecodedCharacter c = DecodeUtf8(*text, i);
      rewrite_(c.code_point, &result);
      i += c.length;
    }
    *text = std::move(result);
  }

 private:
  const Rewrite rewrite_;
};

template <typename Rewrite>
std::unique_ptr<Normalizer> EveryCharacter(Rewrite rewrite) {
  return std::make_unique<ByCharacter<Rewrite>>(rewrite);
}

// What SentencePiece's nmt rules drop, and what they make a space.
void AppendNmt(char32_t c, std::string* out) {
  if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) ||
      c == 0x7F || c == 0x8F || c == 0x9F)
    return;
  const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D ||
                     c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                     c == 0xFFFD;
  AppendUtf8(space ? U' ' : c, out);
}

// BertNormalizer's clean_text: no controls, and one kind of space.
void AppendClean(char32_t c, std::string* out) {
  if (c == 0 || c == 0xFFFD || IsBertControl(c)) return;
  AppendUtf8(IsWhitespace(c) ? U' ' : c, out);
}

// Its handle_chinese_chars: ideographs stand alone.
void AppendApart(char32_t c, std::string* out) {
  const bool ideograph =
      (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
      (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
      (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
      (c >= 0x2F800 && c <= 0x2FA1F);
  if (ideograph) *out += ' ';
  AppendUtf8(c, out);
  if (ideograph) *out += ' ';
}

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts)
      : parts_(std::move(parts)) {}
  void Normalize(std::string* text) const override {
    for (const auto& part : parts_) part->Normalize(text);
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> parts_;
};

NormalizerResult ParseBert(const JsonReader& json) {
  QUIRE_ASSIGN_OR_RETURN(const bool clean, json.BoolOr("clean_text", true));
  QUIRE_ASSIGN_OR_RETURN(const bool apart,
                         json.BoolOr("handle_chinese_chars", true));
  QUIRE_ASSIGN_OR_RETURN(const bool lowercase, json.BoolOr("lowercase", true));
  QUIRE_ASSIGN_OR_RETURN(const bool strip,
                         json.BoolOr("strip_accents", lowercase));
  std::vector<std::unique_ptr<Normalizer>> parts;
  if (clean) parts.push_back(EveryCharacter(AppendClean));
  if (apart) parts.push_back(EveryCharacter(AppendApart));
  if (strip) {
    parts.push_back(std::make_unique<UnicodeForm>(NormalizationForm::kNfd));
    parts.push_back(EveryCharacter([](char32_t c, std::string* out) {
      if (!IsNonspacingMark(c)) AppendUtf8(c, out);
    }));
  }
  if (lowercase) parts.push_back(EveryCharacter(AppendLowercase));
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

NormalizerResult Parse(const JsonReader& json, int depth) {
  QUIRE_ASSIGN_OR_RETURN(const std::string type, json.String("type"));
  if (type == "NFC") {
    return std::make_unique<UnicodeForm>(NormalizationForm::kNfc);
  }
  if (type == "NFD") {
    return std::make_unique<UnicodeForm>(NormalizationForm::kNfd);
  }
  if (type == "NFKC") {
    return std::make_unique<UnicodeForm>(NormalizationForm::kNfkc);
  }
  if (type == "NFKD") {
    return std::make_unique<UnicodeForm>(NormalizationForm::kNfkd);
  }
  if (type == "ByteLevel") return std::make_unique<ToByteLevel>();
  if (type == "Lowercase") return EveryCharacter(AppendLowercase);
  if (type == "StripAccents") {
    return EveryCharacter([](char32_t c, std::string* out) {
      if (!IsMark(c)) AppendUtf8(c, out);
    });
  }
  if (type == "Nmt") return EveryCharacter(AppendNmt);
  if (type == "BertNormalizer") return ParseBert(json);
  if (type == "Prepend") {
    QUIRE_ASSIGN_OR_RETURN(std::string prefix, json.String("prepend"));
    return std::make_unique<Prepend>(std::move(prefix));
  }
  if (type == "Replace") {
    QUIRE_ASSIGN_OR_RETURN(TextPattern pattern,
                           TextPattern::FromJson(json, "pattern"));
    QUIRE_ASSIGN_OR_RETURN(std::string content, json.String("content"));
    return std::make_unique<Replace>(std::move(pattern), std::move(content));
  }
  if (type == "Strip") {
    QUIRE_ASSIGN_OR_RETURN(const bool left, json.BoolOr("strip_left", true));
    QUIRE_ASSIGN_OR_RETURN(const bool right, json.BoolOr("strip_right", true));
    return std::make_unique<Strip>(left, right);
  }
  if (type == "Sequence") {
    if (depth == kMaxSequenceDepth)
      return json.Unsupported("such deep nesting");
    QUIRE_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                           json.Array("normalizers"));
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (const JsonReader& element : elements) {
      QUIRE_ASSIGN_OR_RETURN(parts.emplace_back(), Parse(element, depth + 1));
    }
    return std::make_unique<NormalizerSequence>(std::move(parts));
  }
  return json.Unsupported("the normalizer " + type);
}

}  // namespace

NormalizerResult ParseNormalizer(const JsonReader& json) {
  return Parse(json, 0);
}

}  // namespace quire
