// Typed access to the fields of a JSON object, with errors that name the file
// and the field: `config.json: field "hidden_size" is "big", not a whole number
// from 0 to 18446744073709551615`.
//
// A field that is null counts as absent: Hugging Face writes null for "not
// set".

#ifndef QUIRE_LOADER_JSON_FIELDS_H_
#define QUIRE_LOADER_JSON_FIELDS_H_

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

// A view: the object outlives it.
class JsonFields {
 public:
  // `where` begins every message: "config.json", or a path of fields after it,
  // "config.json: rope_scaling". Anything but an object has no fields.
  JsonFields(const nlohmann::json& object, std::string where);

  const std::string& where() const { return where_; }
  const nlohmann::json& object() const { return *object_; }

  bool Has(std::string_view field) const { return Find(field) != nullptr; }
  // Null where the field is absent (or null).
  const nlohmann::json* Find(std::string_view field) const;

  // Get...: kNotFound where the field is absent, kInvalidArgument where it is
  // of another type or outside the range.
  absl::StatusOr<std::string> GetString(std::string_view field) const;
  absl::StatusOr<bool> GetBool(std::string_view field) const;
  absl::StatusOr<uint64_t> GetUint(
      std::string_view field, uint64_t min = 0,
      uint64_t max = std::numeric_limits<uint64_t>::max()) const;
  absl::StatusOr<int64_t> GetInt(
      std::string_view field, int64_t min = std::numeric_limits<int64_t>::min(),
      int64_t max = std::numeric_limits<int64_t>::max()) const;
  // Any finite number.
  absl::StatusOr<double> GetDouble(std::string_view field) const;
  absl::StatusOr<double> GetPositive(std::string_view field) const;
  absl::StatusOr<JsonFields> GetObject(std::string_view field) const;
  absl::StatusOr<std::vector<std::string>> GetStrings(
      std::string_view field) const;
  absl::StatusOr<std::vector<uint64_t>> GetUints(std::string_view field) const;
  absl::StatusOr<std::vector<double>> GetDoubles(std::string_view field) const;

  // The same, with a value for absent fields.
  absl::StatusOr<std::string> GetStringOr(std::string_view field,
                                          std::string otherwise) const;
  absl::StatusOr<bool> GetBoolOr(std::string_view field, bool otherwise) const;
  absl::StatusOr<uint64_t> GetUintOr(
      std::string_view field, uint64_t otherwise, uint64_t min = 0,
      uint64_t max = std::numeric_limits<uint64_t>::max()) const;
  absl::StatusOr<double> GetDoubleOr(std::string_view field,
                                     double otherwise) const;
  absl::StatusOr<double> GetPositiveOr(std::string_view field,
                                       double otherwise) const;

  // `<where>: field "<field>" <problem>`, for checks of one's own.
  absl::Status Error(std::string_view field, std::string_view problem) const;

 private:
  absl::Status WrongType(std::string_view field, const nlohmann::json& value,
                         std::string_view wanted) const;
  absl::StatusOr<const nlohmann::json*> FindOrError(
      std::string_view field) const;
  absl::StatusOr<const nlohmann::json*> FindArray(std::string_view field) const;

  const nlohmann::json* object_;
  std::string where_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_JSON_FIELDS_H_
