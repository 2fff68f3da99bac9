#include "loader/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"

namespace quire {
namespace {

// Real patterns need some hundred steps; nested repetitions need 2^n.
constexpr uint32_t kMatchLimit = 100'000;
constexpr uint32_t kDepthLimit = 10'000;
constexpr uint32_t kHeapLimitKiB = 1024;
constexpr size_t kMaxPatternSize = 4096;

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 128> text = {};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using MatchContext =
    std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData =
    std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;

}  // namespace

struct ModulePattern::Code {
  pcre2_code* compiled;
};

void ModulePattern::CodeDeleter::operator()(Code* code) const {
  pcre2_code_free(code->compiled);
  delete code;
}

absl::StatusOr<ModulePattern> ModulePattern::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternSize)
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern of ", pattern.size(), " bytes is too long"));
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* const compiled = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
      nullptr);
  if (compiled == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern ", Quoted(pattern), " is wrong at character ",
                     offset, ": ", ErrorText(error)));
  return ModulePattern(std::unique_ptr<Code, CodeDeleter>(new Code{compiled}));
}

absl::StatusOr<bool> ModulePattern::Matches(std::string_view module) const {
  const MatchContext context(pcre2_match_context_create(nullptr));
  // Only whether it matches is asked for, so one pair of offsets is enough.
  const MatchData data(pcre2_match_data_create(1, nullptr));
  if (context == nullptr || data == nullptr)
    return absl::ResourceExhaustedError("no memory to match a pattern");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_depth_limit(context.get(), kDepthLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKiB);
  const int result =
      pcre2_match(code_->compiled, reinterpret_cast<PCRE2_SPTR>(module.data()),
                  module.size(), /*startoffset=*/0, /*options=*/0, data.get(),
                  context.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0)
    return absl::InvalidArgumentError(absl::StrCat(
        "matching with ", Quoted(module), " failed: ", ErrorText(result)));
  return true;
}

std::optional<std::string> ModulePattern::LiteralOf(std::string_view pattern) {
  if (pattern.size() < 2 || pattern.front() != '^' || pattern.back() != '$')
    return std::nullopt;
  pattern = pattern.substr(1, pattern.size() - 2);
  std::string literal;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      // \d and the like, or an escaped $ at the end.
      if (++i == pattern.size() ||
          absl::ascii_isalnum(static_cast<unsigned char>(pattern[i])))
        return std::nullopt;
    } else if (std::string_view(".^$*+?{}[]()|").find(pattern[i]) !=
               std::string_view::npos) {
      return std::nullopt;
    }
    literal += pattern[i];
  }
  return literal;
}

}  // namespace quire
