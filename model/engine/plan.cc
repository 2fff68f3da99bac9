#include "quire/model/plan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/engine/kv_shape.h"
#include "model/engine/placement.h"
#include "model/engine/plan_advice.h"
#include "model/engine/reservation.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/process_memory.h"
#include "quire/paging/kv_layout.h"

namespace quire {
namespace {

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

  // Pages under one sequence, on all devices.
  Bytes BytesOf(uint64_t tokens) const {
    Bytes bytes;
    for (const DeviceLayers& part : layers_) {
      const auto pages = part.layout.PagesForTokens(tokens, page_size_);
      const auto size = pages ? CheckedBytes(*pages, page_size_) : std::nullopt;
      bytes = SaturatingAdd(bytes, size.value_or(Bytes(UINT64_MAX)));
    }
    return bytes;
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
    outlook.weights_fit &= std::max(device.fixed, device.peak) <= device.usable;
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
    const auto pages = part.layout.PagesForTokens(max_model_len, page_size);
    const auto sequence =
        pages ? CheckedBytes(*pages, page_size) : std::nullopt;
    device.running_peak =
        SaturatingAdd(device.fixed, sequence.value_or(Bytes(UINT64_MAX)));
  }
  for (DevicePlan& device : outlook.devices)
    device.running_peak = std::max(device.peak, device.running_peak);
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

// Parameters times the bytes that their format is named for: codes, without
// scales, zero points and tables; vectors do not count.
Bytes NominalBytes(const ModelWeights& weights) {
  Bytes total;
  const auto add = [&](Bytes bytes) { total = SaturatingAdd(total, bytes); };
  const auto add_dense = [&](const DenseMatrix& matrix) {
    add(BytesOf(matrix.dtype, matrix.in_features * matrix.out_features)
            .value_or(Bytes(0)));
  };
  const auto add_linear = [&](const Linear& linear) {
    if (const auto* dense = std::get_if<DenseMatrix>(&linear.matrix)) {
      add_dense(*dense);
    } else if (const auto* gptq = std::get_if<GptqMatrix>(&linear.matrix)) {
      add(Bytes(gptq->in_features * gptq->out_features *
                static_cast<uint64_t>(gptq->bits) / 8));
    } else {
      add(CodeBytes(std::get<ScaledMatrix>(linear.matrix)));
    }
  };
  for (const DecoderLayer& layer : weights.layers())
    for (const Linear* linear :
         {&layer.query, &layer.key, &layer.value, &layer.attention_output,
          &layer.gate, &layer.up, &layer.down})
      add_linear(*linear);
  add_linear(weights.output());
  if (!weights.tied_head()) add_dense(weights.embedding());
  return total;
}

// What stays on devices comes first, then the parts that are kept elsewhere,
// each of which stays when its ring has gone. Pinning what is kept takes no
// memory. What is on disk is read back through one buffer when it has come, and
// through all of them when it runs.
Bytes HostPeak(const ModelWeights& weights, const SessionOptions& options) {
  const OffloadOptions& offload = options.placement.offload;
  const std::vector<WeightPart>& parts = weights.parts();
  const WeightStaging& staging = weights.staging();
  // An embedding whose rows are read elsewhere comes before all others.
  const MemoryTier embedding = parts.front().place.tier;
  const bool from_host = embedding == MemoryTier::kHost;
  const bool rows_on_disk =
      embedding == MemoryTier::kDisk && options.placement.embedding_by_rows;
  const bool rows = (from_host || rows_on_disk) && !weights.tied_head();
  Bytes kept;
  std::set<DeviceId> read_back;  // devices of what is on disk
  std::set<DeviceId> from_disk;  // devices that run what is on disk
  Bytes rows_of_batch;
  if (rows && from_host) {
    kept = parts.front().size;
  } else if (rows) {
    kept = offload.buffer_size;
    read_back.insert(weights.residences().front().device);
  }
  if (rows_on_disk) {
    const DenseMatrix& matrix = weights.embedding();
    rows_of_batch = BytesOf(matrix.dtype, options.decoder.max_batch_tokens *
                                              matrix.in_features)
                        .value_or(Bytes(0));
  }
  Bytes peak = SaturatingAdd(kept, staging.resident);
  if (rows) peak = std::max(peak, staging.parts.front());
  for (size_t i = rows ? 1 : 0; i < parts.size(); ++i) {
    peak = std::max(peak, SaturatingAdd(kept, staging.parts[i]));
    if (parts[i].place.tier == MemoryTier::kHost)
      kept = SaturatingAdd(kept, parts[i].size);
    if (parts[i].place.tier != MemoryTier::kDisk || parts[i].size.zero())
      continue;
    const DeviceId device = weights.residences()[i].device;
    from_disk.insert(device);
    if (read_back.insert(device).second)
      kept = SaturatingAdd(kept, offload.buffer_size);
  }
  const auto other_buffers = CheckedMultiply(
      offload.buffer_size,
      from_disk.size() * static_cast<uint64_t>(offload.buffers - 1));
  kept = SaturatingAdd(kept, other_buffers.value_or(Bytes(UINT64_MAX)));
  kept = SaturatingAdd(kept, rows_of_batch);
  return std::max(peak, kept);
}

// ---- Alternatives -----------------------------------------------------------

// More of the same device than anybody has in one machine.
constexpr int kMaxAlternativeDevices = 8;

absl::StatusOr<PlannedAlternative> TryPlacement(
    std::string description, const char* policy, const Checkpoint& checkpoint,
    const ModelConfig& config, SessionOptions options,
    std::vector<MemoryLimit> max_memory, const std::vector<Bytes>& limits,
    uint64_t max_model_len) {
  options.placement.device_map = policy;
  options.placement.max_memory = std::move(max_memory);
  PlannedAlternative alternative{.description = std::move(description)};
  const absl::StatusOr<PlacedWeights> placed =
      PlaceWeights(checkpoint, config, options, limits);
  // That there is no room this way either is what is to be said.
  if (absl::IsResourceExhausted(placed.status())) return alternative;
  QUIRE_RETURN_IF_ERROR(placed.status());
  WeightPlacement placement = placed->placement;
  absl::StatusOr<Outlook> look =
      LookAt(checkpoint, config, options, placement, limits, max_model_len);
  if (absl::IsFailedPrecondition(look.status()) &&
      placement.offload.folder.empty()) {
    alternative.needs_folder = true;
    placement.offload.folder.assign(1, '.');  // any: nothing is written
    look =
        LookAt(checkpoint, config, options, placement, limits, max_model_len);
  }
  QUIRE_RETURN_IF_ERROR(look.status());
  const Outlook& outlook = *look;
  alternative.places = placement.places;
  alternative.host =
      BytesIn(outlook.reservation.weights->parts(), MemoryTier::kHost);
  alternative.disk =
      BytesIn(outlook.reservation.weights->parts(), MemoryTier::kDisk);
  alternative.longest_sequence = outlook.longest_sequence;
  alternative.fits =
      outlook.weights_fit && outlook.longest_sequence == max_model_len;
  return alternative;
}

// Devices that a part went to.
size_t DevicesUsed(const std::vector<MemoryPlace>& places) {
  std::set<DeviceId> devices;
  for (const MemoryPlace& place : places)
    if (place.tier == MemoryTier::kDevice) devices.insert(place.device);
  return devices.size();
}

// What the host, and what more devices like the first, would change, where that
// is for the better: than `longest_sequence`, which is what fits now.
absl::StatusOr<std::vector<PlannedAlternative>> FindAlternatives(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const SessionOptions& options, const std::vector<Bytes>& limits,
    uint64_t max_model_len, uint64_t longest_sequence) {
  std::vector<PlannedAlternative> alternatives;
  const auto add_if_better = [&](PlannedAlternative alternative) {
    if (alternative.fits || alternative.longest_sequence > longest_sequence)
      alternatives.push_back(std::move(alternative));
  };
  std::vector<MemoryLimit> places;
  for (size_t i = 0; i < limits.size(); ++i)
    places.push_back({DevicePlace(static_cast<int32_t>(i)), limits[i]});
  std::vector<MemoryLimit> with_host = places;
  QUIRE_ASSIGN_OR_RETURN(const Bytes available, ReadAvailableMemory());
  with_host.push_back({kHostPlace, available});
  QUIRE_ASSIGN_OR_RETURN(
      PlannedAlternative host,
      TryPlacement("weights on the host", "auto", checkpoint, config, options,
                   with_host, limits, max_model_len));
  if (host.places.empty()) {
    // The host does not hold them, and is not to be used up either.
    with_host.back().limit = Bytes(available.value() / 4 * 3);
    with_host.push_back({kDiskPlace, checkpoint.total_size()});
    QUIRE_ASSIGN_OR_RETURN(
        host,
        TryPlacement("weights on the host and on disk", "auto", checkpoint,
                     config, options, with_host, limits, max_model_len));
    host.max_memory = std::move(with_host);
  }
  add_if_better(std::move(host));
  std::vector<Bytes> more = limits;
  while (more.size() < kMaxAlternativeDevices) {
    places.push_back(
        {DevicePlace(static_cast<int32_t>(more.size())), limits.front()});
    more.push_back(limits.front());
    QUIRE_ASSIGN_OR_RETURN(PlannedAlternative devices,
                           TryPlacement("", "sequential", checkpoint, config,
                                        options, places, more, max_model_len));
    devices.description = absl::StrCat(DevicesUsed(devices.places), " devices");
    const bool enough = devices.fits;
    // The fewest that suffice, or that the most do not.
    if (enough || more.size() == kMaxAlternativeDevices)
      add_if_better(std::move(devices));
    if (enough) break;
  }
  return alternatives;
}

std::vector<KvLengthPlan> Batches(const KvRoom& room, const KvLayout& layout,
                                  uint64_t max_model_len,
                                  uint32_t max_sequences) {
  std::vector<KvLengthPlan> batches;
  for (const uint64_t tokens : PlannedLengths(max_model_len)) {
    const uint64_t fit = room.SequencesOf(tokens);
    batches.push_back(
        {tokens, layout.KeptBytes(tokens).value_or(Bytes(UINT64_MAX)),
         room.BytesOf(tokens), fit, std::min<uint64_t>(fit, max_sequences)});
  }
  return batches;
}

}  // namespace

absl::StatusOr<ModelPlan> PlanModel(const Checkpoint& checkpoint,
                                    const ModelConfig& config,
                                    const SessionOptions& options) {
  QUIRE_RETURN_IF_ERROR(options.Validate());
  ModelPlan plan;
  QUIRE_ASSIGN_OR_RETURN(const KvLayout layout, MakeKvLayout(config, options));
  QUIRE_ASSIGN_OR_RETURN(plan.max_model_len, LongestSequence(config, options));
  QUIRE_ASSIGN_OR_RETURN(const DeviceOptions devices,
                         DevicesFor(checkpoint, config, options));
  QUIRE_ASSIGN_OR_RETURN(const DeviceView view, LookAtDevices(devices));
  const std::vector<Bytes>& limits = view.limits;
  plan.device_memory = view.memory;
  plan.page_size = options.device.page_size;
  const absl::StatusOr<PlacedWeights> found =
      PlaceWeights(checkpoint, config, options, limits);
  if (!found.ok() && !absl::IsResourceExhausted(found.status()))
    return found.status();
  const PlacedWeights placed = found.ok() ? *found : PlacedWeights{};
  QUIRE_ASSIGN_OR_RETURN(const Outlook outlook,
                         LookAt(checkpoint, config, options, placed.placement,
                                limits, plan.max_model_len));

  const ModelWeights& weights = *outlook.reservation.weights;
  plan.parts = weights.parts();
  plan.warnings = weights.warnings();
  plan.warnings.insert(plan.warnings.end(), placed.empty_devices.begin(),
                       placed.empty_devices.end());
  for (const WeightPart& part : plan.parts)
    plan.weights = SaturatingAdd(plan.weights, part.size);
  plan.host = BytesIn(plan.parts, MemoryTier::kHost);
  plan.disk = BytesIn(plan.parts, MemoryTier::kDisk);
  plan.tensors = weights.tensors();
  plan.staging_peak = weights.staging().resident;
  for (const Bytes bytes : weights.staging().parts)
    plan.staging_peak = std::max(plan.staging_peak, bytes);
  plan.host_peak = HostPeak(weights, options);
  plan.parameters = weights.Parameters();
  for (const AdapterInfo& adapter : outlook.reservation.adapters) {
    plan.adapters.push_back({adapter.name, adapter.bytes});
    plan.warnings.insert(plan.warnings.end(), adapter.warnings.begin(),
                         adapter.warnings.end());
  }
  plan.rule_of_thumb = Bytes(NominalBytes(weights).value() / 5 * 6);

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
      const KvLayout kept,
      KvLayout::Create(WithLimitOf(MakeKvShape(config, options), options),
                       plan.layers_per_row));
  plan.kinds = SizesByKind(kept);
  QUIRE_ASSIGN_OR_RETURN(plan.layouts,
                         ChooseKvLayout(MakeKvShape(config, options), options,
                                        plan.max_model_len));
  plan.longest_sequence = outlook.longest_sequence;
  plan.batches =
      Batches(KvRoom(outlook.reservation, plan.devices, plan.page_size), layout,
              plan.max_model_len, options.max_sequences);
  plan.fits = found.ok() && outlook.weights_fit &&
              plan.longest_sequence == plan.max_model_len;
  if (plan.fits) return plan;
  QUIRE_ASSIGN_OR_RETURN(
      plan.alternatives,
      FindAlternatives(checkpoint, config, options, limits, plan.max_model_len,
                       plan.longest_sequence));
  QUIRE_ASSIGN_OR_RETURN(plan.advice, AdviseOn(plan, outlook.reservation.layers,
                                               checkpoint, options));
  if (!found.ok())
    plan.advice.insert(plan.advice.begin(),
                       std::string(found.status().message()));
  return plan;
}

}  // namespace quire
