// Error propagation for absl::Status and absl::StatusOr.

#ifndef QUIRE_ALLOC_STATUS_MACROS_H_
#define QUIRE_ALLOC_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define QUIRE_CONCAT_INNER_(a, b) a##b
#define QUIRE_CONCAT_(a, b) QUIRE_CONCAT_INNER_(a, b)

// Returns from the enclosing function where `expression` is not OK.
#define QUIRE_RETURN_IF_ERROR(expression)                               \
  do {                                                                  \
    if (absl::Status quire_status_ = (expression); !quire_status_.ok()) \
      return quire_status_;                                             \
  } while (false)

// QUIRE_ASSIGN_OR_RETURN(auto x, F()): x is the value, or the enclosing
// function returns the error.
#define QUIRE_ASSIGN_OR_RETURN(target, expression)                             \
  QUIRE_ASSIGN_OR_RETURN_IMPL_(QUIRE_CONCAT_(quire_result_, __LINE__), target, \
                               expression)
#define QUIRE_ASSIGN_OR_RETURN_IMPL_(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return std::move(result).status();           \
  target = std::move(result).value()

#endif  // QUIRE_ALLOC_STATUS_MACROS_H_
