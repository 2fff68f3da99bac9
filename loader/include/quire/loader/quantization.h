// Every quantised linear of a checkpoint, whatever its format.

#ifndef QUIRE_LOADER_QUANTIZATION_H_
#define QUIRE_LOADER_QUANTIZATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/gptq.h"
#include "quire/loader/scaled_modules.h"

namespace quire {

enum class QuantizationMethod : uint8_t {
  kNone,
  kGptq,
  kAwq,
  kFp8,
  kCompressedTensors,
  kMxfp4,
};
const char* QuantizationMethodName(QuantizationMethod method);  // "gptq", ...

struct QuantizedModules {
  QuantizationMethod method = QuantizationMethod::kNone;
  std::optional<GptqConfig> gptq_config;  // of GPTQ and AWQ
  // One of these two has elements, in the order of names.
  std::vector<GptqModule> gptq;
  std::vector<ScaledModule> scaled;
  // Tensors that belong to the format and that no forward pass here reads:
  // scales of activations and of KV caches, shapes, zero points that are 0.
  std::vector<const TensorInfo*> ignored;
  // What is read otherwise than the format's own tools would, one sentence
  // each.
  std::vector<std::string> notes;
};

// Finds them and checks every shape against the others and the configuration.
// Formats that are not read are refused by name, also where no tensor is
// quantised: they must not pass for plain weights. Whether one module is
// quantised is decided by its tensors, never by a list.
absl::StatusOr<QuantizedModules> FindQuantizedModules(
    const Checkpoint& checkpoint);

}  // namespace quire

#endif  // QUIRE_LOADER_QUANTIZATION_H_
