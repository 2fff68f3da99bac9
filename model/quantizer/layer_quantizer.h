// Quantises the linears of one decoder layer.
//
// What stands on the host meanwhile (layer_memory.h): the sums of the inputs
// that were not factored yet, one factor, one matrix in float32 and its codes,
// and the packed codes that the layer will run with.

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
inline constexpr size_t kLinearInputs = 4;

struct LayerLinear {
  const char* TensorNames::*module;
  Linear DecoderLayer::*linear;
  LinearInput input;
  uint64_t (*out_features)(const ModelConfig& config);
  bool
      rotary;  // its outputs are rotated: rows may be interleaved in the source
};
// Those that share an input are neighbours, in the order of LinearInput.
const std::array<LayerLinear, kLayerLinears>& LayerLinears();
// Features of each LinearInput.
std::array<uint64_t, kLinearInputs> InputSizes(const ModelConfig& config);

// The vectors of a layer that are written as they are.
struct LayerNorm {
  const char* module;
  const ParameterVector* vector;
  uint64_t size;
};
std::vector<LayerNorm> LayerNorms(const DecoderLayer& layer,
                                  const ModelConfig& config);

// What a layer's linears see during calibration: first the inputs of every
// sequence are added, then one kind of input after another is factored, which
// gives up its sum.
class LayerCalibration {
 public:
  LayerCalibration(const ModelConfig& config, const QuantizeOptions& options);

  // For LayerRunner::Run.
  LayerRunner::Observer Observer(ThreadPool* pool);
  // Once for each kind. The error names `layer`.
  absl::StatusOr<HessianFactor> TakeFactor(LinearInput input,
                                           const std::string& layer);

 private:
  const QuantizeOptions& options_;
  std::vector<HessianAccumulator> accumulators_;  // by LinearInput
  HessianScratch scratch_;
};

// The zero points of the output are stored minus this.
uint32_t ExportedZeroOffset(const QuantizeOptions& options);

// A quantised layer: written to the checkpoint, and ready to run.
class QuantizedLayer {
 public:
  // Quantises every linear of `source` and appends its tensors under `prefix`
  // ("model.layers.0."). `calibration`, which is used up, is null for
  // round-to-nearest.
  static absl::StatusOr<std::unique_ptr<QuantizedLayer>> Create(
      const DecoderLayer& source, const ModelConfig& config,
      LayerCalibration* calibration, const std::string& prefix,
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
