// The calls of a driver that a step of a serving engine must not wait for:
// those that change pages or addresses.

#ifndef QUIRE_PAGING_MAPPING_CALLS_H_
#define QUIRE_PAGING_MAPPING_CALLS_H_

#include <cstdint>

#include "quire/alloc/driver.h"

namespace quire {

// How many of them were made so far, by all threads and for whatever is on the
// devices: reserved and released addresses, created and released pages, maps
// and unmaps.
uint64_t CountMappingCalls(const Driver& driver);

}  // namespace quire

#endif  // QUIRE_PAGING_MAPPING_CALLS_H_
