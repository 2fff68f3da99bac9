#include "model/tokenizer/json_reader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "model/tokenizer/unicode.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// "tokenizer.json" and "model" make "tokenizer.json: model"; that and "vocab",
// "tokenizer.json: model.vocab".
std::string Join(const std::string& where, std::string_view key) {
  const bool in_document = where.find(": ") != std::string::npos;
  return where + (in_document ? "." : ": ") + std::string(key);
}

}  // namespace

absl::Status JsonReader::Error(std::string_view message) const {
  return absl::InvalidArgumentError(
      Printable(where_ + ": " + std::string(message)));
}

absl::Status JsonReader::Unsupported(std::string_view what) const {
  return absl::UnimplementedError(Printable(where_ + ": " + std::string(what)) +
                                  " is not supported");
}

bool JsonReader::Has(std::string_view key) const {
  if (!value_->is_object()) return false;
  const auto it = value_->find(key);
  return it != value_->end() && !it->is_null();
}

JsonReader JsonReader::Field(std::string_view key) const {
  return JsonReader(*value_->find(key), Join(where_, key));
}

absl::Status JsonReader::Missing(std::string_view key,
                                 std::string_view type) const {
  return absl::InvalidArgumentError(Printable(Join(where_, key)) + " is not " +
                                    std::string(type));
}

absl::StatusOr<std::string> JsonReader::String(std::string_view key) const {
  if (!Has(key) || !value_->find(key)->is_string()) {
    return Missing(key, "a string");
  }
  const std::string& text = value_->find(key)->get_ref<const std::string&>();
  if (!IsUtf8(text)) return Missing(key, "UTF-8");
  return text;
}

absl::StatusOr<bool> JsonReader::BoolOr(std::string_view key,
                                        bool otherwise) const {
  if (!Has(key)) return otherwise;
  const nlohmann::json& field = *value_->find(key);
  if (!field.is_boolean()) return Missing(key, "true or false");
  return field.get<bool>();
}

absl::StatusOr<int64_t> JsonReader::AsInteger(int64_t low, int64_t high) const {
  const auto error = [&] {
    return Error("not a number from " + std::to_string(low) + " to " +
                 std::to_string(high));
  };
  if (!value_->is_number_integer()) return error();
  // What is beyond int64 is beyond `high` too.
  if (value_->is_number_unsigned() &&
      value_->get<uint64_t>() > static_cast<uint64_t>(high)) {
    return error();
  }
  const int64_t number = value_->get<int64_t>();
  if (number < low || number > high) return error();
  return number;
}

absl::StatusOr<int64_t> JsonReader::Integer(std::string_view key, int64_t low,
                                            int64_t high) const {
  if (!Has(key)) return Missing(key, "a number");
  return Field(key).AsInteger(low, high);
}

absl::StatusOr<char32_t> JsonReader::Character(std::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, String(key));
  if (text.empty() || DecodeUtf8(text, 0).length != text.size()) {
    return Missing(key, "a single character");
  }
  return DecodeUtf8(text, 0).code_point;
}

absl::StatusOr<std::vector<JsonReader>> JsonReader::Array(
    std::string_view key) const {
  if (!Has(key) || !value_->find(key)->is_array()) {
    return Missing(key, "an array");
  }
  std::vector<JsonReader> elements;
  const std::string where = Join(where_, key);
  for (const nlohmann::json& element : *value_->find(key)) {
    elements.emplace_back(element,
                          where + "[" + std::to_string(elements.size()) + "]");
  }
  return elements;
}

}  // namespace quire
