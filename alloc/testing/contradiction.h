// What a model says of an allocator that does not agree with it.

#ifndef QUIRE_ALLOC_TESTING_CONTRADICTION_H_
#define QUIRE_ALLOC_TESTING_CONTRADICTION_H_

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace quire {

template <typename... Args>
absl::Status Contradiction(const absl::FormatSpec<Args...>& format,
                           const Args&... args) {
  return absl::InternalError(absl::StrFormat(format, args...));
}

inline absl::Status ExpectCode(const absl::Status& status,
                               absl::StatusCode code, const char* what) {
  if (status.code() == code) return absl::OkStatus();
  return Contradiction("%s: %s, expected %s", what, status.ToString(),
                       absl::StatusCodeToString(code));
}

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_CONTRADICTION_H_
