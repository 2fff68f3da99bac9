#include "model/tokenizer/regex_syntax.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/tokenizer/unicode.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Nesting of groups and classes; PCRE2's own limit is 250.
constexpr int kMaxNesting = 100;

// Oniguruma's \w: letters, marks, numbers that are letters or digits,
// connectors, circled letters, and six Latin-1 numbers that its table has.
constexpr std::string_view kWordItems =
    "\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}\\x{B2}\\x{B3}\\x{B9}"
    "\\x{BC}-\\x{BE}";
constexpr std::string_view kHexItems = "0-9A-Fa-f";

// Where case is ignored, Oniguruma lets these match one character (ß, ﬀ, ﬁ,
// ﬂ, ﬅ); PCRE2 does not.
constexpr std::string_view kFoldingPairs[] = {"ss", "ff", "fi", "fl", "st"};

struct PropertyName {
  std::string_view name;  // lower case, without separators
  std::string_view pcre;
};
constexpr PropertyName kProperties[] = {
    {"l", "L"},
    {"lu", "Lu"},
    {"ll", "Ll"},
    {"lt", "Lt"},
    {"lm", "Lm"},
    {"lo", "Lo"},
    {"m", "M"},
    {"mn", "Mn"},
    {"mc", "Mc"},
    {"me", "Me"},
    {"n", "N"},
    {"nd", "Nd"},
    {"nl", "Nl"},
    {"no", "No"},
    {"p", "P"},
    {"pc", "Pc"},
    {"pd", "Pd"},
    {"ps", "Ps"},
    {"pe", "Pe"},
    {"pi", "Pi"},
    {"pf", "Pf"},
    {"po", "Po"},
    {"s", "S"},
    {"sm", "Sm"},
    {"sc", "Sc"},
    {"sk", "Sk"},
    {"so", "So"},
    {"z", "Z"},
    {"zs", "Zs"},
    {"zl", "Zl"},
    {"zp", "Zp"},
    {"c", "C"},
    {"cc", "Cc"},
    {"cf", "Cf"},
    {"co", "Co"},
    {"cn", "Cn"},
    {"letter", "L"},
    {"mark", "M"},
    {"number", "N"},
    {"punctuation", "P"},
    {"symbol", "S"},
    {"separator", "Z"},
    {"han", "script:Han"},
};

std::string Literal(char32_t c) {
  if (c < 0x80 && std::isalnum(static_cast<int>(c))) {
    return std::string(1, static_cast<char>(c));
  }
  return absl::StrFormat("\\x{%X}", static_cast<uint32_t>(c));
}

// One escape sequence: a character, or a set.
struct Escape {
  std::optional<char32_t> character;
  // For a set: what stands in a class, and whether it is the complement.
  std::string items;
  bool complement = false;
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    QUIRE_RETURN_IF_ERROR(Alternatives(/*depth=*/0));
    if (!AtEnd()) return Invalid("a ')' without '('");
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return position_ == pattern_.size(); }
  bool Looking(std::string_view text) const {
    return pattern_.substr(position_).starts_with(text);
  }
  bool Accept(std::string_view text) {
    if (!Looking(text)) return false;
    position_ += text.size();
    return true;
  }
  char32_t Take() {
    const DecodedCharacter c = DecodeUtf8(pattern_, position_);
    position_ += c.length;
    return c.code_point;
  }

  absl::Status Invalid(std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("pattern \"%s\", byte %d: %s", std::string(pattern_),
                        position_, std::string(what)));
  }
  absl::Status Unsupported(std::string_view what) const {
    return absl::UnimplementedError(
        absl::StrFormat("pattern \"%s\", byte %d: %s is not supported",
                        std::string(pattern_), position_, std::string(what)));
  }

  // Up to the end of the pattern or of the group.
  absl::Status Alternatives(int depth) {
    if (depth > kMaxNesting) return Unsupported("such deep nesting");
    bool have_atom = false;  // something that a quantifier can follow
    while (!AtEnd() && !Looking(")")) {
      if (std::string_view("*+?{").find(pattern_[position_]) !=
          std::string_view::npos) {
        if (!have_atom) return Unsupported("a quantifier after nothing");
        QUIRE_RETURN_IF_ERROR(Quantifier());
        have_atom = false;
        last_literal_ = 0;
        continue;
      }
      have_atom = true;
      if (Accept("|")) {
        out_ += '|';
        have_atom = false;
        last_literal_ = 0;
      } else if (Accept("(")) {
        last_literal_ = 0;
        QUIRE_ASSIGN_OR_RETURN(have_atom, Group(depth));
        last_literal_ = 0;
      } else if (Accept("[")) {
        last_literal_ = 0;
        QUIRE_RETURN_IF_ERROR(Class(depth));
      } else if (Accept("\\")) {
        QUIRE_RETURN_IF_ERROR(EscapeOutsideClass());
      } else if (Accept(".")) {
        out_ += '.';
        last_literal_ = 0;
      } else if (Accept("^") || Accept("$")) {
        // Ruby's anchors are those of lines.
        absl::StrAppend(&out_, "(?m:", std::string(1, pattern_[position_ - 1]),
                        ")");
        have_atom = false;
        last_literal_ = 0;
      } else {
        QUIRE_RETURN_IF_ERROR(AddLiteral(Take()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddLiteral(char32_t c) {
    if (ignore_case_) {
      if (c >= 0x80) return Unsupported("ignoring the case of non-ASCII text");
      const char pair[2] = {
          last_literal_, static_cast<char>(std::tolower(static_cast<int>(c)))};
      if (std::find(std::begin(kFoldingPairs), std::end(kFoldingPairs),
                    std::string_view(pair, 2)) != std::end(kFoldingPairs)) {
        return Unsupported(absl::StrCat("ignoring the case of \"",
                                        std::string(pair, 2), "\""));
      }
      last_literal_ = pair[1];
    }
    out_ += Literal(c);
    return absl::OkStatus();
  }

  // After "(". Returns whether a quantifier may follow.
  absl::StatusOr<bool> Group(int depth) {
    const bool outer_ignore_case = ignore_case_;
    bool is_atom = true;
    if (Accept("?")) {
      static constexpr std::string_view kPlain[] = {":", ">"};
      static constexpr std::string_view kLook[] = {"=", "!", "<=", "<!"};
      bool known = false;
      for (const std::string_view kind : kPlain) {
        if (!known && Accept(kind)) {
          absl::StrAppend(&out_, "(?", std::string(kind));
          known = true;
        }
      }
      for (const std::string_view kind : kLook) {
        if (!known && Accept(kind)) {
          absl::StrAppend(&out_, "(?", std::string(kind));
          known = true;
          is_atom = false;
        }
      }
      if (!known && (Accept("i:") || Accept("-i:"))) {
        ignore_case_ = pattern_[position_ - 3] != '-';
        out_ += ignore_case_ ? "(?i:" : "(?-i:";
        known = true;
      }
      if (!known) return Unsupported("this kind of group");
    } else {
      out_ += "(?:";
    }
    QUIRE_RETURN_IF_ERROR(Alternatives(depth + 1));
    if (!Accept(")")) return Invalid("a '(' without ')'");
    out_ += ')';
    ignore_case_ = outer_ignore_case;
    return is_atom;
  }

  absl::Status Quantifier() {
    bool is_interval = false, is_exact = false;
    if (Accept("{")) {
      is_interval = true;
      const size_t close = pattern_.find('}', position_);
      if (close == std::string_view::npos) {
        return Unsupported("a '{' that is no quantifier");
      }
      const std::string_view body =
          pattern_.substr(position_, close - position_);
      const size_t comma = body.find(',');
      const std::string_view low = body.substr(0, comma);
      const std::string_view high =
          comma == std::string_view::npos ? low : body.substr(comma + 1);
      const auto is_number = [](std::string_view text) {
        return text.size() <= 5 &&
               std::all_of(text.begin(), text.end(),
                           [](char c) { return c >= '0' && c <= '9'; });
      };
      is_exact = comma == std::string_view::npos;
      if (!is_number(low) || !is_number(high) ||
          (low.empty() && high.empty())) {
        return Unsupported("a '{' that is no quantifier");
      }
      // "{,n}" is from zero to Oniguruma and literal text to older PCRE2.
      absl::StrAppend(&out_, "{", low.empty() ? "0" : std::string(low));
      if (!is_exact) absl::StrAppend(&out_, ",", std::string(high));
      out_ += '}';
      position_ = close + 1;
    } else {
      out_ += static_cast<char>(Take());
    }
    if (Looking("+")) {
      // Possessive after ?, * and +; after an interval, Ruby repeats it.
      if (is_interval) return Unsupported("'+' after an interval");
      out_ += static_cast<char>(Take());
    } else if (Looking("?")) {
      if (is_exact) return Unsupported("'?' after \"{n}\"");
      out_ += static_cast<char>(Take());
    }
    return absl::OkStatus();
  }

  absl::Status EscapeOutsideClass() {
    QUIRE_ASSIGN_OR_RETURN(const Escape escape, ParseEscape());
    if (escape.character) return AddLiteral(*escape.character);
    last_literal_ = 0;
    absl::StrAppend(&out_, escape.complement ? "[^" : "[", escape.items, "]");
    return absl::OkStatus();
  }

  // After "\".
  absl::StatusOr<Escape> ParseEscape() {
    if (AtEnd()) return Invalid("a '\\' at the end");
    const char32_t c = Take();
    switch (c) {
      case 'r':
        return Escape{'\r', {}, false};
      case 'n':
        return Escape{'\n', {}, false};
      case 't':
        return Escape{'\t', {}, false};
      case 'f':
        return Escape{'\f', {}, false};
      case 'v':
        return Escape{'\v', {}, false};
      case 'a':
        return Escape{'\a', {}, false};
      case 'e':
        return Escape{0x1B, {}, false};
      case 's':
      case 'S':
        return Escape{{}, "\\s", c == 'S'};
      case 'd':
      case 'D':
        return Escape{{}, "\\p{Nd}", c == 'D'};
      case 'h':
      case 'H':
        return Escape{{}, std::string(kHexItems), c == 'H'};
      case 'w':
      case 'W':
        if (ignore_case_) return Unsupported("\\w where case is ignored");
        return Escape{{}, std::string(kWordItems), c == 'W'};
      case 'p':
      case 'P':
        return ParseProperty(c == 'P');
      case 'x':
      case 'u':
        return ParseCodePoint(c == 'u');
      default:
        if (c < 0x80 && std::isalnum(static_cast<int>(c))) {
          return Unsupported(absl::StrCat("\\", std::string(1, char(c))));
        }
        return Escape{c, {}, false};
    }
  }

  absl::StatusOr<Escape> ParseProperty(bool complement) {
    if (!Accept("{")) return Invalid("\\p without '{'");
    if (Accept("^")) complement = !complement;
    const size_t close = pattern_.find('}', position_);
    if (close == std::string_view::npos) return Invalid("\\p without '}'");
    std::string name;
    for (const char c : pattern_.substr(position_, close - position_)) {
      if (c == ' ' || c == '_' || c == '-') continue;
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    for (const PropertyName& property : kProperties) {
      if (property.name != name) continue;
      if (ignore_case_) return Unsupported("\\p where case is ignored");
      position_ = close + 1;
      return Escape{{},
                    absl::StrCat("\\p{", std::string(property.pcre), "}"),
                    complement};
    }
    return Unsupported("\\p{" + name + "}");
  }

  // \xHH, \x{H...} and \uHHHH.
  absl::StatusOr<Escape> ParseCodePoint(bool is_u) {
    size_t digits = is_u ? 4 : 2;
    const bool braced = !is_u && Accept("{");
    if (braced) {
      const size_t close = pattern_.find('}', position_);
      if (close == std::string_view::npos) return Invalid("\\x without '}'");
      digits = close - position_;
    }
    const std::string_view text = pattern_.substr(position_, digits);
    if (text.empty() || text.size() != digits || digits > 8 ||
        !std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isxdigit(c) != 0; })) {
      return Unsupported("this form of \\x or \\u");
    }
    const uint64_t value = std::stoull(std::string(text), nullptr, 16);
    // \xHH is a byte to Oniguruma, so above ASCII not a character.
    if (!is_u && !braced && value >= 0x80) return Unsupported("\\xHH");
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      return Invalid("not a code point");
    }
    position_ += digits + (braced ? 1 : 0);
    return Escape{static_cast<char32_t>(value), {}, false};
  }

  // After "[".
  absl::Status Class(int depth) {
    const bool negated = Accept("^");
    if (negated && ignore_case_) {
      return Unsupported("a negated class where case is ignored");
    }
    out_ += negated ? "[^" : "[";
    QUIRE_RETURN_IF_ERROR(ClassItems(depth));
    out_ += ']';
    return absl::OkStatus();
  }

  // Up to and with "]". A class inside a class is a part of the union.
  absl::Status ClassItems(int depth) {
    if (depth > kMaxNesting) return Unsupported("such deep nesting");
    if (Looking("]")) return Unsupported("']' first in a class");
    while (!Accept("]")) {
      if (AtEnd()) return Invalid("a '[' without ']'");
      if (Looking("&&")) return Unsupported("&& in a class");
      if (Looking("[:")) return Unsupported("a POSIX bracket");
      if (Accept("[")) {
        if (Looking("^")) return Unsupported("a negated class in a class");
        QUIRE_RETURN_IF_ERROR(ClassItems(depth + 1));
        continue;
      }
      QUIRE_ASSIGN_OR_RETURN(const Escape low, ClassItem());
      if (!low.character) {
        QUIRE_RETURN_IF_ERROR(AddSet(low));
        continue;
      }
      out_ += Literal(*low.character);
      // A '-' before "]" is itself.
      if (!Looking("-") || Looking("-]")) continue;
      ++position_;
      if (AtEnd() || Looking("[")) return Unsupported("this range");
      QUIRE_ASSIGN_OR_RETURN(const Escape high, ClassItem());
      if (!high.character || *high.character < *low.character) {
        return Invalid("a range that ends before it starts");
      }
      out_ += '-';
      out_ += Literal(*high.character);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Escape> ClassItem() {
    if (Accept("\\")) return ParseEscape();
    const char32_t c = Take();
    if (ignore_case_ && c >= 0x80) {
      return Unsupported("ignoring the case of non-ASCII text");
    }
    return Escape{c, {}, false};
  }

  absl::Status AddSet(const Escape& set) {
    if (!set.complement) {
      out_ += set.items;
    } else if (set.items == "\\s") {
      out_ += "\\S";
    } else if (set.items.starts_with("\\p") &&
               set.items.find('}') == set.items.size() - 1) {
      absl::StrAppend(&out_, "\\P", set.items.substr(2));
    } else {
      return Unsupported("this complement in a class");
    }
    return absl::OkStatus();
  }

  const std::string_view pattern_;
  size_t position_ = 0;
  std::string out_;
  bool ignore_case_ = false;
  // The literal just before, in lower case; 0 where there is none.
  char last_literal_ = 0;
};

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace quire
