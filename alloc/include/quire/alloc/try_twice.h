// For calls that give memory back to a driver.

#ifndef QUIRE_ALLOC_TRY_TWICE_H_
#define QUIRE_ALLOC_TRY_TWICE_H_

#include "absl/status/status.h"

namespace quire {

// A failed driver call changes nothing, so what gives memory back may be tried
// again before the memory is given up for lost.
template <typename Call>
absl::Status TryTwice(Call call) {
  absl::Status status = call();
  return status.ok() ? status : call();
}

}  // namespace quire

#endif  // QUIRE_ALLOC_TRY_TWICE_H_
