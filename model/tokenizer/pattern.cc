#include "model/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizer/regex_syntax.h"
#include "model/tokenizer/unicode.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Steps that a match may take: a start, and then some per byte of the text.
constexpr uint64_t kMatchSteps = 10'000'000;
constexpr uint64_t kMatchStepsPerByte = 64;
// What the interpreter may take for backtracking, in KiB.
constexpr uint32_t kMatchHeapKiB = 256 << 10;

template <auto free_function>
struct Freer {
  template <typename T>
  void operator()(T* p) const {
    free_function(p);
  }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompileContext =
    std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using MatchData =
    std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;

struct Match {
  size_t begin;
  size_t end;
};

// One text being searched.
class Search {
 public:
  Search(const pcre2_code* code, std::string_view text)
      : code_(code),
        text_(SubstituteForRegex(text, &substituted_)
                  ? std::string_view(substituted_)
                  : text),
        context_(pcre2_match_context_create(nullptr)),
        data_(pcre2_match_data_create(1, nullptr)) {
    const uint64_t steps = kMatchSteps + kMatchStepsPerByte * text.size();
    pcre2_set_match_limit(context_.get(),
                          static_cast<uint32_t>(std::min<uint64_t>(
                              steps, std::numeric_limits<uint32_t>::max())));
    pcre2_set_heap_limit(context_.get(), kMatchHeapKiB);
  }

  // The next match, as Oniguruma's iterator finds it.
  std::optional<Match> Next() {
    while (start_ <= text_.size()) {
      const std::optional<Match> match = MatchFrom(start_);
      if (!match) return std::nullopt;
      if (match->begin == match->end && last_end_ == match->end) {
        // Empty, right after the last: look one character on.
        if (start_ == text_.size()) return std::nullopt;
        start_ += DecodeUtf8(text_, start_).length;
        continue;
      }
      start_ = match->end;
      last_end_ = match->end;
      return match;
    }
    return std::nullopt;
  }

 private:
  std::optional<Match> MatchFrom(size_t start) {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
    int rc = pcre2_match(code_, subject, text_.size(), start,
                         PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      // The interpreter backtracks on the heap, so has room for more.
      rc = pcre2_match(code_, subject, text_.size(), start,
                       PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data_.get(),
                       context_.get());
    }
    if (rc < 0) return std::nullopt;
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data_.get());
    return Match{offsets[0], offsets[1]};
  }

  const pcre2_code* const code_;
  std::string substituted_;
  const std::string_view text_;
  const MatchContext context_;
  const MatchData data_;
  size_t start_ = 0;
  std::optional<size_t> last_end_;
};

// Calls `next` for matches, and adds them and what is between to the result.
template <typename NextMatch>
std::vector<PatternSpan> CollectSpans(std::string_view text, NextMatch next) {
  std::vector<PatternSpan> spans;
  size_t previous = 0;
  while (const std::optional<Match> match = next()) {
    if (previous != match->begin) {
      spans.push_back({previous, match->begin, false});
    }
    spans.push_back({match->begin, match->end, true});
    previous = match->end;
  }
  if (previous != text.size()) spans.push_back({previous, text.size(), false});
  return spans;
}

}  // namespace

struct TextPattern::Compiled {
  Code code;
};

absl::StatusOr<TextPattern> TextPattern::FromRegex(std::string_view pattern) {
  QUIRE_ASSIGN_OR_RETURN(const std::string translated,
                         TranslateOniguruma(pattern));
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                          translated.size(), PCRE2_UTF | PCRE2_UCP, &error,
                          &error_offset, context.get()));
  if (code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return absl::InvalidArgumentError(
        absl::StrCat("pattern ", Quoted(pattern), ": ",
                     reinterpret_cast<const char*>(message)));
  }
  // Where there is no JIT, pcre2_match interprets.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  TextPattern result;
  result.regex_ = std::make_shared<const Compiled>(Compiled{std::move(code)});
  return result;
}

TextPattern TextPattern::FromText(std::string_view text) {
  TextPattern result;
  result.text_ = text;
  return result;
}

absl::StatusOr<TextPattern> TextPattern::FromJson(const JsonReader& json,
                                                  std::string_view key) {
  if (!json.Has(key)) {
    return json.Error(std::string(key) + " is missing");
  }
  const JsonReader field = json.Field(key);
  if (field.Has("String")) {
    QUIRE_ASSIGN_OR_RETURN(const std::string text, field.String("String"));
    if (text.empty()) return field.Unsupported("an empty String");
    return FromText(text);
  }
  if (field.Has("Regex")) {
    QUIRE_ASSIGN_OR_RETURN(const std::string regex, field.String("Regex"));
    absl::StatusOr<TextPattern> pattern = FromRegex(regex);
    if (!pattern.ok()) {
      return absl::Status(pattern.status().code(),
                          Printable(absl::StrCat(field.where(), ": ",
                                                 pattern.status().message())));
    }
    return pattern;
  }
  return field.Error("neither String nor Regex");
}

std::vector<PatternSpan> TextPattern::Find(std::string_view text) const {
  if (text.empty()) return {};
  if (regex_ != nullptr) {
    Search search(regex_->code.get(), text);
    return CollectSpans(text, [&search] { return search.Next(); });
  }
  size_t start = 0;
  return CollectSpans(text, [&]() -> std::optional<Match> {
    const size_t found = text.find(text_, start);
    if (found == std::string_view::npos) return std::nullopt;
    start = found + text_.size();
    return Match{found, start};
  });
}

}  // namespace quire
