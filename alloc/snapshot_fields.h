// Reads the JSON of a memory snapshot field by field, trusting nothing.

#ifndef QUIRE_ALLOC_SNAPSHOT_FIELDS_H_
#define QUIRE_ALLOC_SNAPSHOT_FIELDS_H_

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/units.h"

namespace quire {

// Addresses are text: readers that know only floating point would round them.
inline std::string AddressText(uint64_t address) {
  return absl::StrCat("0x", absl::Hex(address));
}

// Reads fields of an object. The first that is not as it should be is kept as
// the error, and what is read after it is zero: one check at the end suffices.
class SnapshotFields {
 public:
  SnapshotFields(const nlohmann::json* object, std::string path,
                 absl::Status* error)
      : object_(object), path_(std::move(path)), error_(error) {
    if (!object_->is_object()) Fail("", "is not an object");
  }

  uint64_t Number(const char* key) const {
    const nlohmann::json* const value = Find(key);
    if (value == nullptr) return 0;
    if (value->is_number_unsigned()) return value->get<uint64_t>();
    Fail(key, "is not a non-negative integer");
    return 0;
  }
  // A number that is neither negative nor infinite.
  double Real(const char* key) const {
    const nlohmann::json* const value = Find(key);
    if (value == nullptr) return 0;
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number >= 0 && std::isfinite(number)) return number;
    Fail(key, "is not a non-negative number");
    return 0;
  }
  bool Flag(const char* key) const {
    const nlohmann::json* const value = Find(key);
    if (value == nullptr) return false;
    if (value->is_boolean()) return value->get<bool>();
    Fail(key, "is neither true nor false");
    return false;
  }
  Bytes Size(const char* key) const { return Bytes(Number(key)); }
  uint32_t OwnerNumber(const char* key) const {
    const uint64_t number = Number(key);
    if (number > UINT32_MAX) Fail(key, "is not an owner's id");
    return static_cast<uint32_t>(number);
  }
  uint64_t Address(const char* key) const {
    const std::string text = Text(key);
    uint64_t address = 0;
    if (!absl::SimpleHexAtoi(text, &address)) {
      Fail(key, "is not a hexadecimal address");
    }
    return address;
  }
  std::string Text(const char* key) const {
    const nlohmann::json* const value = Find(key);
    if (value == nullptr) return std::string();
    if (value->is_string()) return value->get<std::string>();
    Fail(key, "is not text");
    return std::string();
  }
  bool Has(const char* key) const {
    if (!object_->is_object()) return false;
    const auto found = object_->find(key);
    return found != object_->end() && !found->is_null();
  }
  SnapshotFields Object(const char* key) const {
    const nlohmann::json* const value = Find(key);
    return SnapshotFields(value != nullptr ? value : &Nothing(), Path(key),
                          error_);
  }
  // Calls `function(SnapshotFields)` for each object in the array.
  template <typename Function>
  void ForEach(const char* key, Function function) const {
    ForEachValue(key,
                 [&](const nlohmann::json& value, const std::string& path) {
                   function(SnapshotFields(&value, path, error_));
                 });
  }
  std::vector<uint64_t> Numbers(const char* key) const {
    std::vector<uint64_t> numbers;
    ForEachValue(key,
                 [&](const nlohmann::json& value, const std::string& path) {
                   if (value.is_number_unsigned()) {
                     numbers.push_back(value.get<uint64_t>());
                   } else {
                     FailAt(path, "is not a non-negative integer");
                   }
                 });
    return numbers;
  }
  std::vector<std::string> Texts(const char* key) const {
    std::vector<std::string> texts;
    ForEachValue(key,
                 [&](const nlohmann::json& value, const std::string& path) {
                   if (value.is_string()) {
                     texts.push_back(value.get<std::string>());
                   } else {
                     FailAt(path, "is not text");
                   }
                 });
    return texts;
  }
  void Fail(const char* key, const char* what) const {
    FailAt(Path(key), what);
  }

 private:
  void FailAt(const std::string& path, const char* what) const {
    if (!error_->ok()) return;
    *error_ = absl::InvalidArgumentError(absl::StrCat(path, " ", what));
  }
  static const nlohmann::json& Nothing() {
    static const nlohmann::json& nothing =
        *new nlohmann::json(nlohmann::json::object());
    return nothing;
  }
  std::string Path(const char* key) const {
    if (*key == '\0') return path_.empty() ? "the snapshot" : path_;
    return path_.empty() ? key : absl::StrCat(path_, ".", key);
  }
  const nlohmann::json* Find(const char* key) const {
    if (!object_->is_object()) return nullptr;
    const auto found = object_->find(key);
    if (found != object_->end()) return &*found;
    Fail(key, "is missing");
    return nullptr;
  }
  template <typename Function>
  void ForEachValue(const char* key, Function function) const {
    const nlohmann::json* const array = Find(key);
    if (array == nullptr) return;
    if (!array->is_array()) return Fail(key, "is not an array");
    for (size_t i = 0; i < array->size() && error_->ok(); ++i) {
      function((*array)[i], absl::StrCat(Path(key), "[", i, "]"));
    }
  }

  const nlohmann::json* const object_;
  const std::string path_;
  absl::Status* const error_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SNAPSHOT_FIELDS_H_
