// Reads fields out of JSON and says, where one is wrong, which file and field.

#ifndef QUIRE_MODEL_TOKENIZER_JSON_READER_H_
#define QUIRE_MODEL_TOKENIZER_JSON_READER_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

// How deep components may lie in one another (Sequence), as nested calls read
// them.
inline constexpr int kMaxSequenceDepth = 16;

// A view of one value; the document must outlive it. An absent field and null
// are the same, as they are to serde's Option.
class JsonReader {
 public:
  // `where`: the file, or the file and the path to the value.
  JsonReader(const nlohmann::json& value, std::string where)
      : value_(&value), where_(std::move(where)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  // kInvalidArgument and kUnimplemented, led by where the value stands.
  absl::Status Error(std::string_view message) const;
  absl::Status Unsupported(std::string_view what) const;

  // The field is there and not null. False for what is no object.
  bool Has(std::string_view key) const;
  // REQUIRES: Has(key).
  JsonReader Field(std::string_view key) const;

  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool otherwise) const;
  // The value itself as a number of this range, then a field.
  absl::StatusOr<int64_t> AsInteger(int64_t low, int64_t high) const;
  absl::StatusOr<int64_t> Integer(std::string_view key, int64_t low,
                                  int64_t high) const;
  // A string of one character.
  absl::StatusOr<char32_t> Character(std::string_view key) const;
  absl::StatusOr<std::vector<JsonReader>> Array(std::string_view key) const;

 private:
  absl::Status Missing(std::string_view key, std::string_view type) const;

  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_JSON_READER_H_
