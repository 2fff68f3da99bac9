// What is wrong with a checkpoint, for the verbs that say so.

#ifndef QUIRE_MODEL_CLI_INSPECTION_H_
#define QUIRE_MODEL_CLI_INSPECTION_H_

#include "absl/status/status.h"
#include "quire/loader/checkpoint.h"

namespace quire {

// The first defect that `quire inspect` finds in tensors that do not fit each
// other or the configuration; OK for families that are not run here, and where
// no configuration says what the model is.
absl::Status CheckDescribedModel(const Checkpoint& checkpoint);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_INSPECTION_H_
