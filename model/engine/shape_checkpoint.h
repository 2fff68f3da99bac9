// A checkpoint without weights, by its config.json alone: for plans of models
// that were not downloaded yet.

#ifndef QUIRE_MODEL_ENGINE_SHAPE_CHECKPOINT_H_
#define QUIRE_MODEL_ENGINE_SHAPE_CHECKPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"

namespace quire {

// Whether `path` is a folder that has a config.json and no weights.
bool HasNoWeights(const std::string& path);

// The configuration alone, of whatever model: a checkpoint of no tensors.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenConfiguration(
    const std::string& folder);

// The tensors that a checkpoint of this configuration has, of the types that it
// names: 16 bits where it names none, and GPTQ's packed ones in the layers
// where it says so. Errors: those of the configuration; kUnimplemented for
// other quantisations, whose tensors cannot be told from it.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenShape(
    const std::string& folder);

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_SHAPE_CHECKPOINT_H_
