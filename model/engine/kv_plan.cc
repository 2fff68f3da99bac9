#include "quire/model/kv_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/engine/kv_shape.h"
#include "model/engine/placement.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

std::string Formula(const KvLayerKind& kind, uint32_t layers, Bytes token) {
  const uint64_t element = KvElementSize(kind.dtype).value();
  const uint64_t scale = KvScaleSize(kind.scale).value();
  std::string sides;
  if (kind.value_dim == 0)
    sides = absl::StrCat("a vector of ", kind.key_dim);
  else if (kind.key_dim == kind.value_dim)
    sides = absl::StrCat("2 x ", kind.kv_heads, " heads x ", kind.key_dim);
  else
    sides = absl::StrCat(kind.kv_heads, " heads x (", kind.key_dim, " + ",
                         kind.value_dim, ")");
  std::string formula =
      absl::StrCat(layers, " layers x ", sides, " x ", element, " bytes");
  const uint64_t heads = uint64_t{layers} * kind.kv_heads;
  const uint64_t scales = heads * (kind.value_dim == 0 ? 1 : 2);
  if (scale != 0)
    absl::StrAppend(&formula, " + ", scales, " scales x ", scale, " bytes");
  const uint64_t told =
      heads * (uint64_t{kind.key_dim} + kind.value_dim) * element +
      scales * scale;
  if (told != token.value())
    absl::StrAppend(&formula, " + ", token.value() - told,
                    " bytes that align them");
  return formula;
}

KvLengthPlan PlanLength(const KvLayout& layout, uint64_t tokens,
                        const KvPlan& plan, uint32_t max_sequences) {
  constexpr Bytes kTooMany(UINT64_MAX);
  KvLengthPlan length;
  length.tokens = tokens;
  length.kept = layout.KeptBytes(tokens).value_or(kTooMany);
  const auto pages = layout.PagesKept(tokens, plan.page_size);
  length.mapped = pages
                      ? CheckedBytes(*pages, plan.page_size).value_or(kTooMany)
                      : kTooMany;
  length.room = plan.kv.value() / std::max<uint64_t>(length.mapped.value(), 1);
  length.sequences = std::min<uint64_t>(length.room, max_sequences);
  return length;
}

}  // namespace

std::vector<KvKindSize> SizesByKind(const KvLayout& layout) {
  std::vector<KvKindSize> sizes;
  for (const KvLayerKind& kind : layout.kinds())
    sizes.push_back({kind, 0, Bytes(), ""});
  for (uint32_t layer = 0; layer < layout.layers(); ++layer)
    ++sizes[static_cast<size_t>(&layout.KindOf(layer) - layout.kinds().data())]
          .layers;
  for (uint32_t group = 0; group < layout.groups(); ++group) {
    Bytes& token = sizes[layout.GroupKind(group)].token;
    token = SaturatingAdd(token, layout.RowBytes(group));
  }
  for (KvKindSize& size : sizes)
    size.formula = Formula(size.kind, size.layers, size.token);
  return sizes;
}

std::vector<uint64_t> PlannedLengths(uint64_t longest) {
  constexpr uint64_t kShortest = 256;
  std::vector<uint64_t> lengths;
  for (uint64_t tokens = kShortest; tokens < longest; tokens *= 2) {
    lengths.push_back(tokens);
    if (tokens > longest / 2) break;
  }
  lengths.push_back(longest);
  return lengths;
}

absl::StatusOr<KvPlan> PlanKv(const KvConfig& config,
                              std::optional<Bytes> weights,
                              std::string why_not_decoded,
                              const SessionOptions& options) {
  if (options.placement.in_use() || !options.adapters.empty() ||
      options.weights.quantization != LoadQuantization::kNone)
    return absl::InvalidArgumentError(
        absl::StrCat("only a model that is run has parts to place, takes "
                     "adapters and is quantised: ",
                     why_not_decoded));
  QUIRE_RETURN_IF_ERROR(options.Validate());
  KvPlan plan;
  plan.model_type = config.model_type;
  plan.why_not_decoded = std::move(why_not_decoded);
  plan.weights = weights;
  QUIRE_ASSIGN_OR_RETURN(const DeviceView devices,
                         LookAtDevices(options.device));
  plan.device_memory = devices.memory;
  plan.page_size = options.device.page_size;
  for (const Bytes limit : devices.limits)
    plan.usable = SaturatingAdd(plan.usable, limit);
  plan.kv = SaturatingSubtract(plan.usable, weights.value_or(Bytes()));

  QUIRE_ASSIGN_OR_RETURN(plan.max_model_len,
                         LongestSequence(config.max_positions, options));
  const KvModelShape shape =
      WithLimitOf(WithElements(config.shape, options.kv_dtype), options);
  QUIRE_ASSIGN_OR_RETURN(plan.layouts,
                         ChooseKvLayout(shape, options, plan.max_model_len));
  QUIRE_ASSIGN_OR_RETURN(const LayersInRow row,
                         LayersPerRow(shape, options, plan.max_model_len));
  QUIRE_ASSIGN_OR_RETURN(const KvLayout layout,
                         KvLayout::Create(shape, row.layers));
  plan.token = layout.TokenBytes();
  plan.kinds = SizesByKind(layout);
  for (const KvKindSize& size : plan.kinds)
    plan.layers_per_row =
        std::max(plan.layers_per_row, std::min(row.layers, size.layers));
  for (const uint64_t tokens : PlannedLengths(plan.max_model_len))
    plan.lengths.push_back(
        PlanLength(layout, tokens, plan, options.max_sequences));
  if (weights) plan.fits = plan.lengths.front().room > 0;
  return plan;
}

}  // namespace quire
