// Parses JSON that is in memory, of files that others wrote.
//
// Parsing does not recurse, but writing a value does, and values end in
// messages and in files: what is nested deeper than any file of ours needs is
// refused.

#ifndef QUIRE_LOADER_JSON_TEXT_H_
#define QUIRE_LOADER_JSON_TEXT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

// serde_json, which safetensors and tokenizers use, has the same limit.
inline constexpr int kMaxJsonDepth = 128;

// `origin` names the text in errors, which say at which byte it is no JSON.
absl::StatusOr<nlohmann::json> ParseJsonText(std::string_view text,
                                             const std::string& origin);
// The same of a file: ReadRegularFile's errors as well.
absl::StatusOr<nlohmann::json> ReadJsonText(const std::string& path,
                                            Bytes limit = GiB(1));

}  // namespace quire

#endif  // QUIRE_LOADER_JSON_TEXT_H_
