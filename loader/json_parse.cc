#include "loader/json_parse.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/json_input.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr size_t kProblemLimit = 160;

// Whether the parser stumbled over the first letter of one of these. The token
// may have more before it, back to the last one that was whole.
bool BeginsNaNOrInfinity(std::string_view last_token) {
  if (!last_token.ends_with('N') && !last_token.ends_with('I')) return false;
  last_token.remove_suffix(1);
  return last_token.empty() ||
         std::string_view(" \t\r\n,:[-").find(last_token.back()) !=
             std::string_view::npos;
}

}  // namespace

std::string JsonSyntaxProblem(std::string_view message) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax
  // error while parsing value - invalid literal; last read: 'nul '"
  const size_t begin = message.find("syntax error");
  if (begin == std::string_view::npos) return "syntax error";
  message.remove_prefix(begin);
  return Printable(message.substr(0, message.find("; last read")),
                   kProblemLimit);
}

bool JsonHandler::parse_error(std::size_t position,
                              const std::string& last_token,
                              const nlohmann::json::exception& exception) {
  syntax_error_ = true;
  std::string problem = JsonSyntaxProblem(exception.what());
  if (BeginsNaNOrInfinity(last_token))
    problem += "; NaN and Infinity, which Python writes, are no JSON";
  return Fail(std::move(problem));
}

absl::Status ParseJson(const RandomAccessFile& file, uint64_t begin,
                       uint64_t size, JsonHandler* handler) {
  JsonInput input(file, begin, size);
  // nlohmann's parser skips a byte order mark; JSON in files has none.
  const bool byte_order_mark = size > 0 && *input.begin() == '\xef';
  if (!byte_order_mark &&
      nlohmann::json::sax_parse(input.begin(), input.end(), handler) &&
      input.status().ok())
    return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(input.status());
  if (byte_order_mark)
    return absl::InvalidArgumentError(
        absl::StrCat(file.display_name(), ": byte ", begin,
                     ": a byte order mark stands before the JSON"));
  if (handler->syntax_error())
    return absl::InvalidArgumentError(
        absl::StrCat(file.display_name(), ": byte ", begin + input.position(),
                     ": no valid JSON: ", handler->error()));
  return absl::InvalidArgumentError(
      absl::StrCat(file.display_name(), ": ", handler->error()));
}

}  // namespace quire
