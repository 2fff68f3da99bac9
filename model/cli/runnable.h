// What verbs that run a model look at before they do, and when its memory does
// not suffice.

#ifndef QUIRE_MODEL_CLI_RUNNABLE_H_
#define QUIRE_MODEL_CLI_RUNNABLE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/session.h"

namespace quire {

// Opens a model that is to run. That its family, or how its weights are stored,
// cannot be run is said here, before a tokenizer or an adapter is looked at.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenRunnable(
    const std::string& model);

// `status` of a verb that ran `model` with the adapters of these folders. Where
// memory was short, which is told of the step that met it, the message goes on
// with all that `quire plan` says is missing, and what would help.
absl::Status WithAllThatIsMissing(const absl::Status& status,
                                  const std::string& model,
                                  SessionOptions options,
                                  const std::vector<std::string>& adapters);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_RUNNABLE_H_
