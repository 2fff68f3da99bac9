#include "quire/loader/json_text.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "loader/json_parse.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/regular_file.h"

namespace quire {
namespace {

using nlohmann::json;

absl::Status ErrorAt(const std::string& origin, size_t byte,
                     std::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(Printable(origin), ": byte ", byte,
                   ": no valid JSON: ", std::string(problem)));
}

// What the parser lets pass: a byte order mark, a NUL byte, which it takes for
// the end, and any depth.
absl::Status CheckBytes(std::string_view text, const std::string& origin) {
  if (text.starts_with("\xef\xbb\xbf"))
    return ErrorAt(origin, 0, "a byte order mark stands before it");
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '\0':
        return ErrorAt(origin, i, "a NUL byte");
      case '"':
        in_string = !in_string;
        break;
      case '\\':
        if (in_string && i + 1 < text.size() && text[i + 1] != '\0') ++i;
        break;
      case '{':
      case '[':
        if (!in_string && ++depth > kMaxJsonDepth)
          return ErrorAt(origin, i,
                         absl::StrCat("nested deeper than ", kMaxJsonDepth));
        break;
      case '}':
      case ']':
        if (!in_string) --depth;
        break;
      default:
        break;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<json> ParseJsonText(std::string_view text,
                                   const std::string& origin) {
  QUIRE_RETURN_IF_ERROR(CheckBytes(text, origin));
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    // Its bytes are counted from 1, and the end is one.
    return ErrorAt(origin, error.byte == 0 ? 0 : error.byte - 1,
                   JsonSyntaxProblem(error.what()));
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        Printable(origin),
        ": no valid JSON: ", Printable(error.what(), /*limit=*/160)));
  }
}

absl::StatusOr<json> ReadJsonText(const std::string& path, Bytes limit) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path, limit));
  return ParseJsonText(text, path);
}

}  // namespace quire
