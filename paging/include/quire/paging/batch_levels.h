// The levels of a batch limit for who names one of them, or none.

#ifndef QUIRE_PAGING_BATCH_LEVELS_H_
#define QUIRE_PAGING_BATCH_LEVELS_H_

#include <optional>

#include "quire/paging/batch_limit.h"

namespace quire {

// A level that is not given is the default one, unless that lay too near: the
// other then keeps, of the room below the given upper level or above the given
// lower one, the part that the defaults keep. So a use that moves about one
// level never moves the limit, and one given level alone is never out of order.
BatchLimitOptions CompleteBatchLevels(std::optional<double> halve_above,
                                      std::optional<double> grow_below);

}  // namespace quire

#endif  // QUIRE_PAGING_BATCH_LEVELS_H_
