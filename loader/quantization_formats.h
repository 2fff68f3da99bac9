// Quantised formats that are not GPTQ, by the names that configurations use.

#ifndef QUIRE_LOADER_QUANTIZATION_FORMATS_H_
#define QUIRE_LOADER_QUANTIZATION_FORMATS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/json_fields.h"

namespace quire {

// The value of the one of `aliases` that is there; kNotFound where none is, an
// error where two are and disagree.
absl::StatusOr<std::string_view> FindAlias(
    const JsonFields& fields, std::initializer_list<std::string_view> aliases);

// OK where `config`, a quantisation configuration, describes GPTQ in a layout
// that is read here. Otherwise an error that names the format and the field and
// says what would work instead: reading one layout as another gives garbage
// without any sign of it.
absl::Status CheckFormatIsGptq(const JsonFields& config);

}  // namespace quire

#endif  // QUIRE_LOADER_QUANTIZATION_FORMATS_H_
