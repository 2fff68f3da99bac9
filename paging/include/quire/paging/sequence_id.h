// Names a sequence of a KV cache.

#ifndef QUIRE_PAGING_SEQUENCE_ID_H_
#define QUIRE_PAGING_SEQUENCE_ID_H_

#include <cstdint>

#include "quire/alloc/units.h"

namespace quire {

using SequenceId = Id<struct SequenceIdTag, uint64_t>;  // 0 names none

}  // namespace quire

#endif  // QUIRE_PAGING_SEQUENCE_ID_H_
