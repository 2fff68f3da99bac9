#include "quire/loader/json_fields.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using nlohmann::json;

std::string Describe(const json& value) {
  switch (value.type()) {
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string:
      return Quoted(value.get_ref<const std::string&>());
    default:
      return value.dump();
  }
}

std::optional<uint64_t> AsUint(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (!value.is_number_unsigned() && value.get<int64_t>() < 0)
    return std::nullopt;
  return value.get<uint64_t>();
}

std::optional<int64_t> AsInt(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() >
          static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return std::nullopt;
  return value.get<int64_t>();
}

std::optional<double> AsDouble(const json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    return std::nullopt;
  return value.get<double>();
}

// `as` of every element; nullopt where one is of another type.
template <typename T, typename F>
std::optional<std::vector<T>> AsVector(const json& array, F as) {
  std::vector<T> values;
  for (const json& element : array) {
    auto value = as(element);
    if (!value) return std::nullopt;
    values.push_back(*std::move(value));
  }
  return values;
}

}  // namespace

JsonFields::JsonFields(const json& object, std::string where)
    : object_(&object), where_(std::move(where)) {}

const json* JsonFields::Find(std::string_view field) const {
  if (!object_->is_object()) return nullptr;
  const auto found = object_->find(field);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

absl::Status JsonFields::Error(std::string_view field,
                               std::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat(
      where_, ": field ", Quoted(field), " ", std::string(problem)));
}

absl::Status JsonFields::WrongType(std::string_view field, const json& value,
                                   std::string_view wanted) const {
  return Error(field, absl::StrCat("is ", Describe(value), ", not ",
                                   std::string(wanted)));
}

absl::StatusOr<const json*> JsonFields::FindOrError(
    std::string_view field) const {
  if (const json* value = Find(field)) return value;
  return absl::NotFoundError(
      absl::StrCat(where_, ": field ", Quoted(field), " is missing"));
}

absl::StatusOr<const json*> JsonFields::FindArray(
    std::string_view field) const {
  QUIRE_ASSIGN_OR_RETURN(const json* value, FindOrError(field));
  if (!value->is_array()) return WrongType(field, *value, "an array");
  return value;
}

absl::StatusOr<std::string> JsonFields::GetString(
    std::string_view field) const {
  QUIRE_ASSIGN_OR_RETURN(const json* value, FindOrError(field));
  if (!value->is_string()) return WrongType(field, *value, "a string");
  return value->get<std::string>();
}

absl::StatusOr<bool> JsonFields::GetBool(std::string_view field) const {
  QUIRE_ASSIGN_OR_RETURN(const json* value, FindOrError(field));
  if (!value->is_boolean()) return WrongType(field, *value, "true or false");
  return value->get<bool>();
}

absl::StatusOr<uint64_t> JsonFields::GetUint(std::string_view field,
                                             uint64_t min, uint64_t max) const {
  QUIRE_ASSIGN_OR_RETURN(const json* value, FindOrError(field));
  const auto number = AsUint(*value);
  if (!number || *number < min || *number > max)
    return WrongType(field, *value,
                     absl::StrCat("a whole number from ", min, " to ", max));
  return *number;
}

absl::StatusOr<int64_t> JsonFields::GetInt(std::string_view field, int64_t min,
                                           int64_t max) const {
  QUIRE_ASSIGN_OR_RETURN(const json* value, FindOrError(field));
  const auto number = AsInt(*value);
  if (!number || *number < min || *number > max)
    return WrongType(field, *value,
                     absl::StrCat("a whole number from ", min, " to ", max));
  return *number;
}

absl::StatusOr<double> JsonFields::GetDouble(std::string_view field) const {
  QUIRE_ASSIGN_OR_RETURN(const json* value, FindOrError(field));
  const auto number = AsDouble(*value);
  if (!number) return WrongType(field, *value, "a finite number");
  return *number;
}

absl::StatusOr<double> JsonFields::GetPositive(std::string_view field) const {
  QUIRE_ASSIGN_OR_RETURN(const double value, GetDouble(field));
  if (!(value > 0))
    return Error(field, absl::StrCat("is ", value, ", not above 0"));
  return value;
}

absl::StatusOr<JsonFields> JsonFields::GetObject(std::string_view field) const {
  QUIRE_ASSIGN_OR_RETURN(const json* value, FindOrError(field));
  if (!value->is_object()) return WrongType(field, *value, "an object");
  return JsonFields(*value, absl::StrCat(where_, ": ", Printable(field)));
}

absl::StatusOr<std::vector<std::string>> JsonFields::GetStrings(
    std::string_view field) const {
  QUIRE_ASSIGN_OR_RETURN(const json* array, FindArray(field));
  auto values = AsVector<std::string>(
      *array, [](const json& value) -> std::optional<std::string> {
        if (!value.is_string()) return std::nullopt;
        return value.get<std::string>();
      });
  if (!values) return Error(field, "has an element that is not a string");
  return *std::move(values);
}

absl::StatusOr<std::vector<uint64_t>> JsonFields::GetUints(
    std::string_view field) const {
  QUIRE_ASSIGN_OR_RETURN(const json* array, FindArray(field));
  auto values = AsVector<uint64_t>(*array, AsUint);
  if (!values)
    return Error(field, "has an element that is not a whole number from 0");
  return *std::move(values);
}

absl::StatusOr<std::vector<double>> JsonFields::GetDoubles(
    std::string_view field) const {
  QUIRE_ASSIGN_OR_RETURN(const json* array, FindArray(field));
  auto values = AsVector<double>(*array, AsDouble);
  if (!values)
    return Error(field, "has an element that is not a finite number");
  return *std::move(values);
}

absl::StatusOr<std::string> JsonFields::GetStringOr(
    std::string_view field, std::string otherwise) const {
  if (!Has(field)) return otherwise;
  return GetString(field);
}

absl::StatusOr<bool> JsonFields::GetBoolOr(std::string_view field,
                                           bool otherwise) const {
  if (!Has(field)) return otherwise;
  return GetBool(field);
}

absl::StatusOr<uint64_t> JsonFields::GetUintOr(std::string_view field,
                                               uint64_t otherwise, uint64_t min,
                                               uint64_t max) const {
  if (!Has(field)) return otherwise;
  return GetUint(field, min, max);
}

absl::StatusOr<double> JsonFields::GetDoubleOr(std::string_view field,
                                               double otherwise) const {
  if (!Has(field)) return otherwise;
  return GetDouble(field);
}

absl::StatusOr<double> JsonFields::GetPositiveOr(std::string_view field,
                                                 double otherwise) const {
  if (!Has(field)) return otherwise;
  return GetPositive(field);
}

}  // namespace quire
