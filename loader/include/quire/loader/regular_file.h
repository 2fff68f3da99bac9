// Opens the files that users name: regular files and nothing else.
//
// A pipe without a writer would be waited for without end, a terminal too, and
// a device may never end. They are refused before a byte is read, and so is a
// folder, which opens and then cannot be read.

#ifndef QUIRE_LOADER_REGULAR_FILE_H_
#define QUIRE_LOADER_REGULAR_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

// A descriptor to read from, which the caller closes. Errors name the path:
// kNotFound, kPermissionDenied; kInvalidArgument for what is no regular file.
absl::StatusOr<int> OpenRegularFile(const std::string& path);

// The same, for those who open it themselves.
absl::Status CheckRegularFile(const std::string& path);

// The file as a whole. Larger than `limit` is kInvalidArgument.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            Bytes limit = GiB(1));

}  // namespace quire

#endif  // QUIRE_LOADER_REGULAR_FILE_H_
