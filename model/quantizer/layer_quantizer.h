// Quantises the linears of one decoder layer.

#ifndef QUIRE_MODEL_QUANTIZER_LAYER_QUANTIZER_H_
#define QUIRE_MODEL_QUANTIZER_LAYER_QUANTIZER_H_

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/family.h"
#include "model/decoder/layer_runner.h"
#include "model/quantizer/gptq_packing.h"
#include "model/quantizer/hessian.h"
#include "quire/loader/safetensors_writer.h"
#include "quire/model/quantizer.h"

namespace quire {

// The linears of a layer that GPTQ quantises.
inline constexpr size_t kLayerLinears = 7;

struct LayerLinear {
  const char* TensorNames::*module;
  Linear DecoderLayer::*linear;
  LinearInput input;
  bool
      rotary;  // its outputs are rotated: rows may be interleaved in the source
};
const std::array<LayerLinear, kLayerLinears>& LayerLinears();

// The vectors of a layer that are written as they are.
struct LayerNorm {
  const char* module;
  const ParameterVector* vector;
  uint64_t size;
};
std::vector<LayerNorm> LayerNorms(const DecoderLayer& layer,
                                  const ModelConfig& config);

// What a layer's linears see during calibration. Two passes: add the inputs of
// every sequence, then factor.
class LayerCalibration {
 public:
  explicit LayerCalibration(const ModelConfig& config);

  // For LayerRunner::Run.
  LayerRunner::Observer Observer(ThreadPool* pool);
  absl::Status Factor(const QuantizeOptions& options, const std::string& layer,
                      ThreadPool* pool);
  // REQUIRES: Factor succeeded.
  const HessianFactor& factor(LinearInput input) const {
    return factors_[static_cast<size_t>(input)];
  }

 private:
  static constexpr size_t kInputs = 4;
  std::vector<HessianAccumulator> accumulators_;
  std::array<HessianFactor, kInputs> factors_;
};

// The zero points of the output are stored minus this.
uint32_t ExportedZeroOffset(const QuantizeOptions& options);

// A quantised layer: written to the checkpoint, and ready to run.
class QuantizedLayer {
 public:
  // Quantises every linear of `source` and appends its tensors under `prefix`
  // ("model.layers.0."). `calibration` is null for round-to-nearest.
  static absl::StatusOr<std::unique_ptr<QuantizedLayer>> Create(
      const DecoderLayer& source, const ModelConfig& config,
      const LayerCalibration* calibration, const std::string& prefix,
      const QuantizeOptions& options, SafetensorsWriter* writer,
      ThreadPool* pool);

  // Runs with rotary pairs in Hugging Face's order. Valid as long as this.
  const DecoderLayer& layer() const { return layer_; }

 private:
  QuantizedLayer() = default;

  DecoderLayer layer_;
  std::vector<std::unique_ptr<PackedLinearView>> packed_;
  std::vector<std::vector<float>> biases_;
};

// The entries of one layer's tensors in the checkpoint.
void AppendLayerEntries(const DecoderLayer& source, const ModelConfig& config,
                        const std::string& prefix,
                        const QuantizeOptions& options,
                        std::vector<SafetensorsEntry>* entries);

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_LAYER_QUANTIZER_H_
