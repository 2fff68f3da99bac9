#include "model/engine/kv_shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/engine.h"

namespace quire {

absl::StatusOr<uint64_t> LongestSequence(uint64_t max_positions,
                                         const SessionOptions& options) {
  if (options.max_model_len > max_positions)
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-model-len ", options.max_model_len,
        " exceeds the model's own limit of ", max_positions, " tokens"));
  return options.max_model_len == 0 ? max_positions : options.max_model_len;
}

absl::StatusOr<uint64_t> LongestSequence(const ModelConfig& config,
                                         const SessionOptions& options) {
  absl::StatusOr<uint64_t> longest =
      LongestSequence(config.max_positions, options);
  // Beyond it every key would be turned anew as the sequence grows.
  if (!longest.ok() && config.rope.scaling == RopeScaling::kDynamic)
    return absl::Status(
        longest.status().code(),
        absl::StrCat(longest.status().message(),
                     ", beyond which dynamic rotary scaling is not supported"));
  return longest;
}

EngineOptions SessionOptions::ForEngine() const {
  return {.max_sequences = max_sequences,
          .victim_policy = victim_policy,
          .batch_limit = batch_limit,
          .prepare_next = PageAhead() > 0};
}

namespace {

// What the contiguous cache alone can do: the others have all their memory from
// the start, and compute again what was preempted.
absl::Status CheckCacheKind(const SessionOptions& options) {
  if (options.kv_cache == KvCacheKind::kContiguous) return absl::OkStatus();
  std::string option;
  if (options.PageAhead() > 0)
    option = absl::StrCat("--page-ahead ", *options.page_ahead);
  else if (options.max_parked)
    option = absl::StrCat("--max-parked ", *options.max_parked);
  else if (!options.swap_space.zero())
    option = absl::StrCat("--swap-space ", FormatBytes(options.swap_space));
  else if (!options.sharing.ledger.empty())
    option = absl::StrCat("--ledger ", options.sharing.ledger);
  if (option.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      option, " takes --kv-cache ", KvCacheKindName(KvCacheKind::kContiguous),
      ", which --kv-cache ", KvCacheKindName(options.kv_cache), " is not"));
}

// More than a machine has. A number beyond is a slip, and each device that it
// stands for would be made.
constexpr int kMostDevices = 64;

// Whether each device can have a page at all.
absl::Status CheckPages(const SessionOptions& options) {
  const Bytes page = options.device.page_size;
  const auto check = [&](Bytes memory, const std::string& option) {
    return memory >= page
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(
                     option, FormatBytes(memory), " holds no page of ",
                     FormatBytes(page), ": more, or a smaller --page-unit"));
  };
  if (!options.device.device_memory.zero())
    QUIRE_RETURN_IF_ERROR(
        check(options.device.device_memory, "--device-memory "));
  for (const MemoryLimit& limit : options.placement.max_memory) {
    if (limit.place.tier != MemoryTier::kDevice) continue;
    const std::string option =
        absl::StrCat("--max-memory ", PlaceName(limit.place), ":");
    if (limit.place.device.value() >= kMostDevices)
      return absl::InvalidArgumentError(
          absl::StrCat(option, FormatBytes(limit.limit), ": devices are 0 to ",
                       kMostDevices - 1));
    QUIRE_RETURN_IF_ERROR(check(limit.limit, option));
  }
  return absl::OkStatus();
}

absl::Status CheckSharing(const SessionOptions& options) {
  if (options.sharing.ledger.empty()) {
    if (options.sharing.min.zero()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--ledger-min ", FormatBytes(options.sharing.min),
                     " is kept free by those who share a --ledger, and none is "
                     "given"));
  }
  if (options.placement.in_use())
    return absl::InvalidArgumentError(
        absl::StrCat("--ledger ", options.sharing.ledger,
                     " claims all weights for one device: neither --device-map "
                     "nor --max-memory go with it"));
  return absl::OkStatus();
}

}  // namespace

absl::Status SessionOptions::Validate() const {
  QUIRE_RETURN_IF_ERROR(CheckPages(*this));
  QUIRE_RETURN_IF_ERROR(CheckCacheKind(*this));
  QUIRE_RETURN_IF_ERROR(CheckSharing(*this));
  // NaN is out of order with everything.
  if (!(batch_limit.grow_below >= 0 &&
        batch_limit.grow_below <= batch_limit.halve_above))
    return absl::InvalidArgumentError(absl::StrCat(
        "--grow-below ", batch_limit.grow_below,
        " is to be from 0 to --halve-above, ", batch_limit.halve_above));
  if (max_parked && !(*max_parked >= 0 && *max_parked <= 1))
    return absl::InvalidArgumentError(
        absl::StrCat("--max-parked ", *max_parked, " is to be from 0 to 1"));
  if (kv_limit.max_tokens == 0 && kv_limit.sinks > 0)
    return absl::InvalidArgumentError(
        absl::StrCat("--attention-sinks ", kv_limit.sinks,
                     " are what --max-cache-len keeps, and it is not given"));
  if (kv_limit.max_tokens > 0 && kv_limit.max_tokens <= kv_limit.sinks)
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-cache-len ", kv_limit.max_tokens,
        " keeps nothing beside --attention-sinks ", kv_limit.sinks));
  return absl::OkStatus();
}

KvShape MakeKvShape(const ModelConfig& config, const SessionOptions& options) {
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .dtype = options.kv_dtype,
          .scale = KvElementSize(options.kv_dtype) == Bytes(1)
                       ? KvScale::kF16
                       : KvScale::kNone};
}

absl::StatusOr<KvLayout> MakeKvLayout(const ModelConfig& config,
                                      const SessionOptions& options) {
  const KvModelShape shape = MakeKvShape(config, options);
  QUIRE_ASSIGN_OR_RETURN(const uint64_t longest,
                         LongestSequence(config, options));
  QUIRE_ASSIGN_OR_RETURN(const LayersInRow row,
                         LayersPerRow(shape, options, longest));
  return KvLayout::Create(shape, row.layers);
}

KvModelShape WithLimitOf(KvModelShape shape, const SessionOptions& options) {
  for (KvLayerKind& kind : shape.layers)
    kind = WithLimit(kind, options.kv_limit);
  return shape;
}

absl::StatusOr<KvLayoutChoice> ChooseKvLayout(const KvModelShape& shape,
                                              const SessionOptions& options,
                                              uint64_t longest) {
  KvWorkload workload = options.kv_workload;
  if (workload.mean_tokens == 0)
    workload.mean_tokens = std::max<uint64_t>(longest / 2, 1);
  // What is mapped ahead is not needed yet.
  workload.idle_tokens += options.PageAhead();
  return ChooseLayout(WithLimitOf(shape, options), workload,
                      options.device.page_size);
}

absl::StatusOr<LayersInRow> LayersPerRow(const KvModelShape& shape,
                                         const SessionOptions& options,
                                         uint64_t longest) {
  const auto layers = static_cast<uint32_t>(shape.layers.size());
  if (options.layers_per_row == kAutoLayersPerRow) {
    QUIRE_ASSIGN_OR_RETURN(const KvLayoutChoice choice,
                           ChooseKvLayout(shape, options, longest));
    return LayersInRow{choice.options.layers_per_row, choice.reason};
  }
  if (options.layers_per_row > layers)
    return absl::InvalidArgumentError(absl::StrCat(
        "--layers-per-row ", options.layers_per_row, ": there are ", layers,
        " layers; 1 to ", layers, ", all or auto"));
  if (options.layers_per_row == 0)
    return LayersInRow{layers,
                       absl::StrCat(layers,
                                    " layers per row: all, which wastes "
                                    "least")};
  return LayersInRow{options.layers_per_row,
                     absl::StrCat(options.layers_per_row,
                                  " layers per row, as was asked for")};
}

}  // namespace quire
