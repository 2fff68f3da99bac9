// Quantised formats by the names that configurations use: which one it is, and
// what to say of those that are not read.

#ifndef QUIRE_LOADER_QUANTIZATION_FORMATS_H_
#define QUIRE_LOADER_QUANTIZATION_FORMATS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/json_fields.h"
#include "quire/loader/quantization.h"

namespace quire {

// The value of the one of `aliases` that is there; kNotFound where none is, an
// error where two are and disagree.
absl::StatusOr<std::string_view> FindAlias(
    const JsonFields& fields, std::initializer_list<std::string_view> aliases);

// "config.json: quantization_config" or the file that it comes from, for
// messages: the files of AutoGPTQ and the field in config.json hold the same
// object.
std::string QuantizationConfigName(const Checkpoint& checkpoint);

// "bits = 8, group_size = 128": what config.json says otherwise than the file
// beside it, which counts; empty where they agree.
std::string ContradictionsOfConfigJson(const Checkpoint& checkpoint);

// What `config`, a quantisation configuration, describes. Formats and layouts
// that are not read are errors that name the format and the field and say what
// would work instead: reading one layout as another gives garbage without any
// sign of it.
absl::StatusOr<QuantizationMethod> FindQuantizationMethod(
    const JsonFields& config);

}  // namespace quire

#endif  // QUIRE_LOADER_QUANTIZATION_FORMATS_H_
