#include "quire/model/plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/engine/placement.h"
#include "model/engine/reservation.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/quantization.h"
#include "quire/paging/kv_layout.h"

namespace quire {
namespace {

// What a 4-bit GPTQ checkpoint with groups of 128 takes for each parameter: the
// code, and a 16-bit scale and a zero point a group.
constexpr double kBitsOfFourBitWeights = 4 + (16 + 4) / 128.0;
// The pages that are left on each device, and what of sequences they hold.
class KvRoom {
 public:
  KvRoom(const Reservation& reservation, const std::vector<DevicePlan>& devices,
         Bytes page_size)
      : layers_(reservation.layers), page_size_(page_size) {
    for (const DeviceLayers& part : layers_)
      pages_.push_back(
          devices[static_cast<size_t>(part.device.value())].kv.value() /
          page_size.value());
  }

  // A sequence takes pages of every device that layers run on.
  uint64_t SequencesOf(uint64_t tokens) const {
    uint64_t sequences = UINT64_MAX;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto each = layers_[i].layout.PagesForTokens(tokens, page_size_);
      sequences = std::min(
          sequences, !each || each->zero() ? 0 : pages_[i] / each->value());
    }
    return sequences;
  }
  // Alone; at most `limit`.
  uint64_t LongestSequence(uint64_t limit) const {
    uint64_t fits = 0;
    uint64_t too_long = SaturatingAdd(limit, 1);
    while (too_long - fits > 1) {
      const uint64_t middle = fits + (too_long - fits) / 2;
      (SequencesOf(middle) > 0 ? fits : too_long) = middle;
    }
    return fits;
  }

 private:
  const std::vector<DeviceLayers>& layers_;
  const Bytes page_size_;
  std::vector<uint64_t> pages_;  // by element of layers_
};

// What is known of a placement without looking at alternatives.
struct Outlook {
  Reservation reservation;
  std::vector<DevicePlan> devices;
  bool weights_fit = true;
  uint64_t longest_sequence = 0;
};

absl::StatusOr<Outlook> LookAt(const Checkpoint& checkpoint,
                               const ModelConfig& config,
                               const SessionOptions& options,
                               const WeightPlacement& placement,
                               const std::vector<Bytes>& limits,
                               uint64_t max_model_len) {
  Outlook outlook;
  QUIRE_ASSIGN_OR_RETURN(outlook.reservation,
                         ReserveModel(checkpoint, config, options, placement,
                                      static_cast<int>(limits.size())));
  const Bytes page_size = options.device.page_size;
  for (size_t i = 0; i < limits.size(); ++i) {
    const DeviceReservation& reserved = outlook.reservation.devices[i];
    DevicePlan device;
    device.usable = limits[i];
    device.workspace = reserved.workspace;
    device.buffers = reserved.buffers;
    device.fixed = reserved.fixed;
    device.peak = reserved.peak;
    device.kv = SaturatingSubtract(device.usable, device.fixed);
    outlook.weights_fit &= device.fixed <= device.usable;
    outlook.devices.push_back(device);
  }
  for (const WeightPart& part : outlook.reservation.weights->parts()) {
    if (part.place.tier != MemoryTier::kDevice) continue;
    Bytes& weights =
        outlook.devices[static_cast<size_t>(part.place.device.value())].weights;
    weights = SaturatingAdd(weights, part.size);
  }
  for (const DeviceLayers& part : outlook.reservation.layers) {
    DevicePlan& device =
        outlook.devices[static_cast<size_t>(part.device.value())];
    device.layers = static_cast<uint32_t>(part.layers.size());
    device.kv_token = part.layout.TokenBytes();
  }
  outlook.longest_sequence =
      KvRoom(outlook.reservation, outlook.devices, page_size)
          .LongestSequence(max_model_len);
  return outlook;
}

Bytes BytesIn(const std::vector<WeightPart>& parts, MemoryTier tier) {
  Bytes total;
  for (const WeightPart& part : parts) {
    if (part.place.tier == tier) total = SaturatingAdd(total, part.size);
  }
  return total;
}

// The buffers that a part, or what stays on a device, is read through: no more
// of them is touched than is read.
Bytes RingBytes(int buffers, Bytes buffer_size, Bytes read) {
  return std::min(read,
                  CheckedMultiply(buffer_size, static_cast<uint64_t>(buffers))
                      .value_or(Bytes(UINT64_MAX)));
}

// The load goes by devices, and then by the parts that are kept elsewhere, each
// of which stays when its ring has gone. In the first pass, each moves to
// pinned memory, and what is on disk is read again through buffers of its own.
Bytes HostPeak(const ModelWeights& weights, const SessionOptions& options) {
  const StreamingOptions& ring = options.streaming;
  const OffloadOptions& offload = options.placement.offload;
  const std::vector<WeightPart>& parts = weights.parts();
  std::map<DeviceId, Bytes> resident;
  std::map<DeviceId, Bytes> on_disk;
  std::vector<Bytes> read(parts.size());
  for (const WeightTensor& tensor : weights.tensors())
    read[tensor.part] = SaturatingAdd(read[tensor.part], tensor.file);
  for (size_t i = 0; i < parts.size(); ++i) {
    const DeviceId device = weights.residences()[i].device;
    if (parts[i].place.tier == MemoryTier::kDevice)
      resident[device] = SaturatingAdd(resident[device], read[i]);
    if (parts[i].place.tier == MemoryTier::kDisk)
      on_disk[device] = SaturatingAdd(on_disk[device], parts[i].size);
  }
  Bytes peak;
  for (const auto& [device, bytes] : resident)
    peak = std::max(peak, RingBytes(ring.buffers, ring.buffer_size, bytes));
  Bytes kept;
  Bytes largest_move;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].place.tier == MemoryTier::kDevice) continue;
    peak = std::max(
        peak, SaturatingAdd(
                  kept, RingBytes(ring.buffers, ring.buffer_size, read[i])));
    if (parts[i].place.tier != MemoryTier::kHost) continue;
    kept = SaturatingAdd(kept, parts[i].size);
    if (weights.residences()[i].store != nullptr &&
        parts[i].size <= offload.pinned_limit)
      largest_move = std::max(largest_move, parts[i].size);
  }
  kept = SaturatingAdd(kept, largest_move);
  for (const auto& [device, bytes] : on_disk)
    kept = SaturatingAdd(
        kept, RingBytes(offload.buffers, offload.buffer_size, bytes));
  return std::max(peak, kept);
}

// The devices that are planned for.
absl::StatusOr<std::vector<Bytes>> LookAtDevices(DeviceOptions options,
                                                 ModelPlan* plan) {
  options.backing = false;
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                         CreateRuntime(options));
  for (int i = 0; i < runtime->device_count(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo memory,
                           runtime->driver()->GetMemoryInfo(DeviceId(i)));
    plan->device_memory = SaturatingAdd(plan->device_memory, memory.total);
  }
  plan->page_size = options.page_size;
  return LimitsOf(*runtime);
}

// ---- Alternatives -----------------------------------------------------------

// More of the same device than anybody has in one machine.
constexpr int kMaxAlternativeDevices = 8;

absl::StatusOr<PlannedAlternative> TryPlacement(
    std::string description, const Checkpoint& checkpoint,
    const ModelConfig& config, SessionOptions options,
    std::vector<MemoryLimit> max_memory, const std::vector<Bytes>& limits,
    uint64_t max_model_len) {
  options.placement.device_map = "sequential";
  options.placement.max_memory = std::move(max_memory);
  PlannedAlternative alternative{.description = std::move(description)};
  const absl::StatusOr<WeightPlacement> placement =
      PlaceWeights(checkpoint, config, options, limits);
  // That there is no room this way either is what is to be said.
  if (absl::IsResourceExhausted(placement.status())) return alternative;
  QUIRE_RETURN_IF_ERROR(placement.status());
  QUIRE_ASSIGN_OR_RETURN(
      const Outlook outlook,
      LookAt(checkpoint, config, options, *placement, limits, max_model_len));
  alternative.places = placement->places;
  alternative.host =
      BytesIn(outlook.reservation.weights->parts(), MemoryTier::kHost);
  alternative.longest_sequence = outlook.longest_sequence;
  alternative.fits =
      outlook.weights_fit && outlook.longest_sequence == max_model_len;
  return alternative;
}

// What the host, and what more devices like the first, would change.
absl::StatusOr<std::vector<PlannedAlternative>> FindAlternatives(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const SessionOptions& options, const std::vector<Bytes>& limits,
    uint64_t max_model_len) {
  std::vector<PlannedAlternative> alternatives;
  std::vector<MemoryLimit> places;
  for (size_t i = 0; i < limits.size(); ++i)
    places.push_back({DevicePlace(static_cast<int32_t>(i)), limits[i]});
  std::vector<MemoryLimit> with_host = places;
  with_host.push_back({kHostPlace, Bytes(UINT64_MAX)});
  QUIRE_ASSIGN_OR_RETURN(
      PlannedAlternative host,
      TryPlacement("weights on the host", checkpoint, config, options,
                   with_host, limits, max_model_len));
  alternatives.push_back(std::move(host));
  std::vector<Bytes> more = limits;
  while (more.size() < kMaxAlternativeDevices) {
    places.push_back(
        {DevicePlace(static_cast<int32_t>(more.size())), limits.front()});
    more.push_back(limits.front());
    QUIRE_ASSIGN_OR_RETURN(
        PlannedAlternative devices,
        TryPlacement(absl::StrCat(more.size(), " devices"), checkpoint, config,
                     options, places, more, max_model_len));
    const bool enough = devices.fits;
    // The fewest that suffice, or that the most do not.
    if (enough || more.size() == kMaxAlternativeDevices)
      alternatives.push_back(std::move(devices));
    if (enough) break;
  }
  return alternatives;
}

std::vector<PlannedBatch> Batches(const KvRoom& room, uint64_t max_model_len) {
  constexpr uint64_t kShortest = 256;
  std::vector<PlannedBatch> batches;
  for (uint64_t tokens = kShortest; tokens < max_model_len; tokens *= 2) {
    batches.push_back({tokens, room.SequencesOf(tokens)});
    if (tokens > max_model_len / 2) break;
  }
  batches.push_back({max_model_len, room.SequencesOf(max_model_len)});
  return batches;
}

// Whether `quire quantize` takes the model: it rounds plain weights only.
absl::StatusOr<bool> CanBeQuantized(const Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(const QuantizedModules quantized,
                         FindQuantizedModules(checkpoint));
  return quantized.gptq.empty() && quantized.scaled.empty();
}

std::vector<std::string> Advise(const ModelPlan& plan, const Outlook& outlook,
                                const SessionOptions& options,
                                bool can_be_quantized) {
  std::vector<std::string> advice;
  for (const DeviceLayers& part : outlook.reservation.layers) {
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
  const Bytes four_bits(static_cast<uint64_t>(
      static_cast<double>(plan.parameters) * kBitsOfFourBitWeights / 8));
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
  for (const PlannedAlternative& alternative : plan.alternatives) {
    if (!alternative.fits) continue;
    advice.push_back(
        alternative.host.zero()
            ? absl::StrCat("it fits on ", alternative.description)
            : absl::StrFormat("it fits with %s: --device-map auto, and %s of "
                              "the weights in host memory",
                              alternative.description,
                              FormatBytes(alternative.host)));
  }
  return advice;
}

}  // namespace

absl::StatusOr<ModelPlan> PlanModel(const Checkpoint& checkpoint,
                                    const ModelConfig& config,
                                    const SessionOptions& options,
                                    uint64_t mean_tokens) {
  ModelPlan plan;
  QUIRE_ASSIGN_OR_RETURN(const KvLayout layout, MakeKvLayout(config, options));
  QUIRE_ASSIGN_OR_RETURN(plan.max_model_len, LongestSequence(config, options));
  QUIRE_ASSIGN_OR_RETURN(const DeviceOptions devices,
                         DevicesFor(checkpoint, config, options));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Bytes> limits,
                         LookAtDevices(devices, &plan));
  QUIRE_ASSIGN_OR_RETURN(const WeightPlacement placement,
                         PlaceWeights(checkpoint, config, options, limits));
  QUIRE_ASSIGN_OR_RETURN(const Outlook outlook,
                         LookAt(checkpoint, config, options, placement, limits,
                                plan.max_model_len));

  const ModelWeights& weights = *outlook.reservation.weights;
  plan.parts = weights.parts();
  plan.warnings = weights.warnings();
  for (const WeightPart& part : plan.parts)
    plan.weights = SaturatingAdd(plan.weights, part.size);
  plan.host = BytesIn(plan.parts, MemoryTier::kHost);
  plan.disk = BytesIn(plan.parts, MemoryTier::kDisk);
  plan.tensors = weights.tensors();
  plan.host_peak = HostPeak(weights, options);
  plan.parameters = weights.Parameters();
  for (const AdapterInfo& adapter : outlook.reservation.adapters) {
    plan.adapters.push_back({adapter.name, adapter.bytes});
    plan.warnings.insert(plan.warnings.end(), adapter.warnings.begin(),
                         adapter.warnings.end());
  }
  plan.rule_of_thumb = Bytes(plan.weights.value() / 5 * 6);

  plan.devices = outlook.devices;
  plan.kv_token = layout.TokenBytes();
  plan.kv_tokens = UINT64_MAX;
  for (const DevicePlan& device : plan.devices) {
    plan.usable = SaturatingAdd(plan.usable, device.usable);
    plan.workspace = SaturatingAdd(plan.workspace, device.workspace);
    plan.fixed = SaturatingAdd(plan.fixed, device.fixed);
    plan.kv = SaturatingAdd(plan.kv, device.kv);
    if (device.layers > 0)
      plan.kv_tokens =
          std::min(plan.kv_tokens, device.kv.value() / device.kv_token.value());
  }
  plan.layers_per_row = layout.options().layers_per_row;
  QUIRE_ASSIGN_OR_RETURN(
      plan.layouts,
      ChooseLayout(
          MakeKvShape(config, options),
          {.mean_tokens = mean_tokens == 0
                              ? std::max<uint64_t>(plan.max_model_len / 2, 1)
                              : mean_tokens},
          plan.page_size));
  plan.longest_sequence = outlook.longest_sequence;
  plan.batches =
      Batches(KvRoom(outlook.reservation, plan.devices, plan.page_size),
              plan.max_model_len);
  plan.fits =
      outlook.weights_fit && plan.longest_sequence == plan.max_model_len;
  if (plan.fits) return plan;
  QUIRE_ASSIGN_OR_RETURN(plan.alternatives,
                         FindAlternatives(checkpoint, config, options, limits,
                                          plan.max_model_len));
  QUIRE_ASSIGN_OR_RETURN(const bool can_be_quantized,
                         CanBeQuantized(checkpoint));
  plan.advice = Advise(plan, outlook, options, can_be_quantized);
  return plan;
}

}  // namespace quire
