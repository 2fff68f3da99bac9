// Whole files, of moderate size, with errors that name them.

#ifndef QUIRE_MODEL_CONFIG_FILE_IO_H_
#define QUIRE_MODEL_CONFIG_FILE_IO_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status WriteFile(const std::string& path, std::string_view contents);

}  // namespace quire

#endif  // QUIRE_MODEL_CONFIG_FILE_IO_H_
