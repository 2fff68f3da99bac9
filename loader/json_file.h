// Reads a configuration file: a JSON object of moderate size.
//
// Heavy to include: for .cc files only.

#ifndef QUIRE_LOADER_JSON_FILE_H_
#define QUIRE_LOADER_JSON_FILE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

inline constexpr Bytes kMaxJsonFileSize = MiB(16);

struct JsonFile {
  nlohmann::json value;  // always an object
  // Paths of fields that occur more than once in their object, such as
  // "rope_scaling.factor". The last one counts, as in Python.
  std::vector<std::string> repeated_fields;
  // The keys of the object that was asked for, in the order of the file: the
  // objects in `value` are sorted.
  std::vector<std::string> ordered_keys;
};

// `ordered_path` is the dotted path of the object whose keys are wanted in
// order, for example "quantization_config.dynamic". Errors name the file, and
// the byte where it is no JSON; kNotFound where there is no such file.
absl::StatusOr<JsonFile> ReadJsonFile(const std::string& path,
                                      std::string_view ordered_path = {});

}  // namespace quire

#endif  // QUIRE_LOADER_JSON_FILE_H_
