// Compactions told to C.

#ifndef QUIRE_ALLOC_C_API_LISTENER_H_
#define QUIRE_ALLOC_C_API_LISTENER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "quire/alloc/c_api.h"
#include "quire/alloc/compaction.h"

namespace quire::c_api {

// Calls the callbacks; null for NULL. Error: kInvalidArgument.
absl::StatusOr<std::unique_ptr<CompactionListener>> CreateListener(
    const quire_compaction_listener* listener);

quire_relocation_move MoveOf(const RelocationMove& move);

}  // namespace quire::c_api

#endif  // QUIRE_ALLOC_C_API_LISTENER_H_
