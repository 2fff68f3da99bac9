// Finds the quantised linears of each format with scales, and checks their
// tensors. Each returns them in the order of names.

#ifndef QUIRE_LOADER_SCALED_MODULE_READERS_H_
#define QUIRE_LOADER_SCALED_MODULE_READERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/json_fields.h"
#include "quire/loader/quantization.h"
#include "quire/loader/scaled_modules.h"

namespace quire {

// Rows and columns of a weight.
struct BlockShape {
  uint64_t rows = 0;
  uint64_t columns = 0;
};

// transformers' and vLLM's "fp8", FBGEMM's "fbgemm_fp8".
absl::Status FindFp8Modules(const Checkpoint& checkpoint,
                            const JsonFields& config, QuantizedModules* result);
absl::Status FindCompressedTensors(const Checkpoint& checkpoint,
                                   const JsonFields& config,
                                   QuantizedModules* result);
// gpt-oss's experts.
absl::Status FindMxfp4Modules(const Checkpoint& checkpoint,
                              QuantizedModules* result);

// ---- Shared by the formats --------------------------------------------------

// The name without `suffix`; empty where it does not end so.
std::string_view ModuleOf(const TensorInfo& tensor, std::string_view suffix);

// Sets in_features, out_features, row_bytes and codes from a weight that is
// stored as one code an element.
absl::Status SetPlainCodes(const Checkpoint& checkpoint,
                           const TensorInfo& weight, ScaledModule* module);

// Sets the block and the scales: `scales` must be of a float type and hold one
// scale for each block. `rule`, for messages, says where the block comes from:
// "weight_block_size", "strategy \"group\"".
absl::Status SetScales(const Checkpoint& checkpoint, const TensorInfo& scales,
                       BlockShape block, const std::string& rule,
                       ScaledModule* module);

// An error where scales are left over: no module of `result` is theirs, so that
// its codes are missing or of a type that is not `wanted`.
absl::Status CheckScalesAreUsed(const Checkpoint& checkpoint,
                                const QuantizedModules& result,
                                const std::string& wanted);

// Notes tensors that end in one of the suffixes of scales of activations and of
// KV caches as ignored.
void IgnoreActivationScales(const Checkpoint& checkpoint,
                            QuantizedModules* result);

void SortByName(std::vector<ScaledModule>* modules);

}  // namespace quire

#endif  // QUIRE_LOADER_SCALED_MODULE_READERS_H_
