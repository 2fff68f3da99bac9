// What quantising one layer takes, known beforehand.

#ifndef QUIRE_MODEL_QUANTIZER_LAYER_MEMORY_H_
#define QUIRE_MODEL_QUANTIZER_LAYER_MEMORY_H_

#include "quire/alloc/units.h"
#include "quire/model/model_config.h"
#include "quire/model/quantizer.h"

namespace quire {

// Host memory at most, of QuantizedLayer and its calibration, with `threads`
// that compute; what exceeds 64 bits is UINT64_MAX. Tables with a word for each
// input of a linear are left out.
Bytes LayerMemory(const ModelConfig& config, const QuantizeOptions& options,
                  int threads);

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_LAYER_MEMORY_H_
