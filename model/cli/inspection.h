// What is wrong with a checkpoint, for the verbs that say so.

#ifndef QUIRE_MODEL_CLI_INSPECTION_H_
#define QUIRE_MODEL_CLI_INSPECTION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/weight_data.h"

namespace quire {

// The first defect that `quire inspect` finds in tensors that do not fit each
// other or the configuration; none for families that are not run here, and
// where no configuration says what the model is. Without one, what is odd.
absl::StatusOr<std::vector<std::string>> CheckDescribedModel(
    const Checkpoint& checkpoint);

// What is odd in the data of one that is loaded; nothing where no configuration
// says what it is.
std::vector<std::string> CheckLoadedData(const Checkpoint& checkpoint,
                                         DataParts parts,
                                         const PieceReader& read);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_INSPECTION_H_
