#include "loader/json_parse.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "loader/json_input.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/quote.h"

namespace quire {
namespace {

constexpr size_t kReasonLimit = 160;

// nlohmann's message without its identifiers and positions, which count the
// characters that JsonInput delivers, not those of the file:
// "syntax error while parsing value - invalid literal".
std::string Reason(std::string_view what) {
  const size_t begin = what.find("syntax error");
  if (begin == std::string_view::npos) return "syntax error";
  what.remove_prefix(begin);
  return Printable(what.substr(0, what.find("; last read")), kReasonLimit);
}

}  // namespace

bool JsonHandler::parse_error(std::size_t position,
                              const std::string& last_token,
                              const nlohmann::json::exception& exception) {
  syntax_error_ = true;
  return Fail(Reason(exception.what()));
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
