#include "model/engine/plan_advice.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/decoder/gptq_weights.h"
#include "model/quantizer/checkpoint_export.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/quantization.h"
#include "quire/model/quantizer.h"

namespace quire {
namespace {

// qweight, qzeros and scales of a matrix.
Bytes GptqBytes(uint64_t out, uint64_t in, const QuantizeOptions& options) {
  const uint64_t groups =
      options.group_size <= 0
          ? 1
          : (in - 1) / static_cast<uint64_t>(options.group_size) + 1;
  // Dimensions are below 2^32 each, and a word has eight codes.
  return Bytes(PackedWords(in, options.bits) * out * sizeof(uint32_t) +
               groups * (PackedWords(out, options.bits) * sizeof(uint32_t) +
                         out * sizeof(uint16_t)));
}

// Of the linears; the parts between embedding, and last norm and head.
bool IsInLayer(const ModelPlan& plan, const WeightTensor& tensor) {
  return tensor.part > 0 && tensor.part + 2 < plan.parts.size();
}

// Whether `quire quantize` takes the model: it rounds plain weights only.
absl::StatusOr<bool> CanBeQuantized(const Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(const QuantizedModules quantized,
                         FindQuantizedModules(checkpoint));
  return quantized.gptq.empty() && quantized.scaled.empty();
}

// As --max-memory takes it, to the byte.
std::string MaxMemoryText(const std::vector<MemoryLimit>& limits) {
  return absl::StrJoin(
      limits, ",", [](std::string* text, const MemoryLimit& limit) {
        absl::StrAppend(text, PlaceName(limit.place), ":", limit.limit.value());
      });
}

// With shorter sequences, where it takes those as well.
std::string AdviseAlternative(const PlannedAlternative& alternative) {
  const std::string fits =
      alternative.fits ? "it fits"
                       : absl::StrCat("--max-model-len ",
                                      alternative.longest_sequence, " fits");
  if (alternative.host.zero() && alternative.disk.zero())
    return absl::StrCat(fits, " on ", alternative.description);
  std::string advice = absl::StrCat(
      fits, " with ", alternative.description, ": --device-map auto",
      alternative.max_memory.empty()
          ? ""
          : absl::StrCat(" --max-memory ",
                         MaxMemoryText(alternative.max_memory)),
      alternative.needs_folder ? " --offload-folder FOLDER" : "");
  absl::StrAppend(&advice, ", and ", FormatBytes(alternative.host),
                  " of the weights in host memory");
  if (!alternative.disk.zero())
    absl::StrAppend(&advice, ", ", FormatBytes(alternative.disk), " on disk");
  return advice;
}

}  // namespace

Bytes FourBitWeights(const ModelPlan& plan) {
  QuantizeOptions options;
  options.bits = 4;
  Bytes total;
  for (const WeightTensor& tensor : plan.tensors) {
    uint64_t elements = 1;
    for (const uint64_t dimension : tensor.shape) elements *= dimension;
    const bool linear =
        tensor.shape.size() == 2 && IsInLayer(plan, tensor) && elements > 0;
    total = SaturatingAdd(
        total, linear ? GptqBytes(tensor.shape[0], tensor.shape[1], options)
                      : BytesOf(ExportedType(tensor.dtype), elements)
                            .value_or(Bytes(UINT64_MAX)));
  }
  return total;
}

absl::StatusOr<std::vector<std::string>> AdviseOn(
    const ModelPlan& plan, const std::vector<DeviceLayers>& layers,
    const Checkpoint& checkpoint, const SessionOptions& options) {
  std::vector<std::string> advice;
  for (const DeviceLayers& part : layers) {
    const DevicePlan& device =
        plan.devices[static_cast<size_t>(part.device.value())];
    const auto one_sequence =
        part.layout.PagesForTokens(plan.max_model_len, plan.page_size);
    const Bytes needed = SaturatingAdd(
        device.fixed, one_sequence ? CheckedBytes(*one_sequence, plan.page_size)
                                         .value_or(Bytes(UINT64_MAX))
                                   : Bytes(UINT64_MAX));
    if (needed <= device.usable) continue;
    advice.push_back(absl::StrFormat(
        "%s are missing on device %d: %s needed for weights, workspace and one "
        "sequence of %u tokens, %s usable",
        FormatBytes(SaturatingSubtract(needed, device.usable)),
        part.device.value(), FormatBytes(needed), plan.max_model_len,
        FormatBytes(device.usable)));
  }
  if (plan.longest_sequence > 0) {
    advice.push_back(absl::StrCat("--max-model-len ", plan.longest_sequence,
                                  " is the longest that fits"));
  }
  if (options.kv_dtype == KvDType::kF32) {
    advice.emplace_back("--kv-dtype f16 halves the keys and values");
  }
  QUIRE_ASSIGN_OR_RETURN(const bool can_be_quantized,
                         CanBeQuantized(checkpoint));
  const Bytes four_bits = FourBitWeights(plan);
  if (can_be_quantized && four_bits < plan.weights) {
    advice.push_back(absl::StrFormat(
        "quire quantize --bits 4 takes the weights from %s to about %s",
        FormatBytes(plan.weights), FormatBytes(four_bits)));
  }
  if (plan.workspace.value() > plan.usable.value() / 16) {
    advice.push_back(absl::StrFormat(
        "fewer --max-num-batched-tokens than %u: the workspace takes %s",
        options.decoder.max_batch_tokens, FormatBytes(plan.workspace)));
  }
  for (const PlannedAlternative& alternative : plan.alternatives)
    advice.push_back(AdviseAlternative(alternative));
  return advice;
}

}  // namespace quire
