// Event-wise JSON parsing of untrusted files, on nlohmann's parser.
//
// A handler builds exactly what it needs, so that a header of 100 MB never
// becomes a document tree. The parser checks syntax, UTF-8 and escapes; it does
// not recurse, and whatever could still grow is bounded by JsonInput and by the
// handler. Heavy to include: for .cc files only.

#ifndef QUIRE_LOADER_JSON_PARSE_H_
#define QUIRE_LOADER_JSON_PARSE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "loader/random_access_file.h"
#include "quire/loader/json_text.h"

namespace quire {

// Base of all handlers. Events return Fail(...) to stop the parser.
class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool binary(binary_t&) override { return Fail("binary values are no JSON"); }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::json::exception& exception) override;

  const std::string& error() const { return error_; }
  // Whether the error is one of syntax and has no better place than a byte.
  bool syntax_error() const { return syntax_error_; }

 protected:
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

 private:
  std::string error_;
  bool syntax_error_ = false;
};

// Parses [begin, begin + size) of `file`, which must hold one JSON value and
// nothing after it but white space. Errors name the file, and the byte in it
// where the syntax is wrong.
absl::Status ParseJson(const RandomAccessFile& file, uint64_t begin,
                       uint64_t size, JsonHandler* handler);

// What is wrong, of a message of nlohmann's parser: without its identifiers and
// positions.
std::string JsonSyntaxProblem(std::string_view message);

}  // namespace quire

#endif  // QUIRE_LOADER_JSON_PARSE_H_
