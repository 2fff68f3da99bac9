// What is wrong with a checkpoint, for the verbs that say so.

#ifndef QUIRE_MODEL_CLI_INSPECTION_H_
#define QUIRE_MODEL_CLI_INSPECTION_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/quantization.h"

namespace quire {

struct DescribedModel {
  std::vector<std::string> oddities;
  // None where no configuration says what the model is.
  std::optional<QuantizedModules> quantized;
};

// The first defect that `quire inspect` finds in tensors that do not fit each
// other or the configuration; none for families that are not run here, and
// where no configuration says what the model is. Without one, what is odd.
absl::StatusOr<DescribedModel> CheckDescribedModel(
    const Checkpoint& checkpoint);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_INSPECTION_H_
