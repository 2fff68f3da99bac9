// A model as a Hugging Face folder: names, row order, configuration and
// tokenizer, whatever format it was read from.

#ifndef QUIRE_MODEL_QUANTIZER_CHECKPOINT_EXPORT_H_
#define QUIRE_MODEL_QUANTIZER_CHECKPOINT_EXPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/safetensors_writer.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/model/tokenizer.h"

namespace quire {

// The type that a plain matrix or vector is written in: its own, or F16 for
// GGUF's blocks.
DType ExportedType(DType source);

// Writes rows of a matrix, or one vector, in the exported type.
absl::Status ExportMatrix(const DenseMatrix& matrix, const std::string& name,
                          SafetensorsWriter* writer);
absl::Status ExportVector(const ParameterVector& vector, size_t size,
                          const std::string& name, SafetensorsWriter* writer);

// Whether `name` is that of a file which an export writes, finished or not.
bool IsExportedFile(std::string_view name);

// config.json with `quantization` as its quantization_config, and the same as
// quantize_config.json; generation_config.json where the source has one.
absl::Status WriteConfig(const Checkpoint& source, const ModelConfig& config,
                         bool attention_bias,
                         const nlohmann::json& quantization,
                         const std::string& folder);
// tokenizer.json and what stands beside it, of what the source has.
// `tokenizer`: null where it has none.
absl::Status WriteTokenizer(const Checkpoint& source,
                            const Tokenizer* tokenizer,
                            const std::string& folder);

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_CHECKPOINT_EXPORT_H_
