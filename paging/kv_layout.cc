#include "quire/paging/kv_layout.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

struct Side {
  Bytes scales;  // where they begin
  Bytes size;
};

// nullopt where the size does not fit.
std::optional<Side> SideOf(const KvLayerKind& kind, uint32_t dim) {
  // Below 2^64 as a product of two numbers of 32 bits.
  const auto elements =
      CheckedMultiply(KvElementSize(kind.dtype), uint64_t{kind.kv_heads} * dim);
  if (!elements) return std::nullopt;
  if (kind.scale == KvScale::kNone || dim == 0)
    return Side{*elements, *elements};
  const Bytes scale = KvScaleSize(kind.scale);
  const auto scales = CheckedAlignUp(*elements, scale);
  const auto size =
      scales ? CheckedAdd(*scales, Bytes(scale.value() * kind.kv_heads))
             : std::nullopt;
  return size ? std::optional(Side{*scales, *size}) : std::nullopt;
}

absl::Status CheckKind(const KvLayerKind& kind) {
  const struct {
    const char* name;
    uint32_t value;
  } sizes[] = {{"kv_heads", kind.kv_heads}, {"head_dim", kind.key_dim}};
  for (const auto& size : sizes) {
    if (size.value == 0)
      return absl::InvalidArgumentError(
          absl::StrCat("KV layout: ", size.name, " is 0"));
  }
  const bool scaled = kind.scale != KvScale::kNone;
  if (scaled && KvElementSize(kind.dtype) != Bytes(1))
    return absl::InvalidArgumentError(absl::StrCat(
        "KV layout: elements of ", KvDTypeName(kind.dtype), " have no scales"));
  if (!scaled && kind.dtype == KvDType::kInt8)
    return absl::InvalidArgumentError(
        "KV layout: elements of int8 need scales");
  return absl::OkStatus();
}

// Bytes of a token in one layer; nullopt where they do not fit.
std::optional<Bytes> LayerBytes(const KvLayerKind& kind) {
  const auto keys = SideOf(kind, kind.key_dim);
  const auto values = SideOf(kind, kind.value_dim);
  return keys && values ? CheckedAdd(keys->size, values->size) : std::nullopt;
}

uint32_t IndexOf(const KvLayerKind& kind, std::vector<KvLayerKind>* kinds) {
  const auto found = std::find(kinds->begin(), kinds->end(), kind);
  if (found != kinds->end())
    return static_cast<uint32_t>(found - kinds->begin());
  kinds->push_back(kind);
  return static_cast<uint32_t>(kinds->size() - 1);
}

// The pages under bytes [begin, end) of a part that starts with a page, of
// which those below `from` are counted already.
struct PageSpan {
  uint64_t count;
  uint64_t end;
};
PageSpan PagesUnder(uint64_t begin, uint64_t end, uint64_t from, Bytes page) {
  if (begin == end) return {0, from};
  const uint64_t first = std::max(begin / page.value(), from);
  const uint64_t last = PagesFor(Bytes(end), page).value();
  return {last - std::min(first, last), std::max(last, from)};
}

}  // namespace

const char* KvDTypeName(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32:
      return "f32";
    case KvDType::kF16:
      return "f16";
    case KvDType::kBF16:
      return "bf16";
    case KvDType::kF8E4M3:
      return "fp8_e4m3";
    case KvDType::kF8E5M2:
      return "fp8_e5m2";
    case KvDType::kInt8:
      return "int8";
  }
  return "?";
}

Bytes KvElementSize(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32:
      return Bytes(4);
    case KvDType::kF16:
    case KvDType::kBF16:
      return Bytes(2);
    case KvDType::kF8E4M3:
    case KvDType::kF8E5M2:
    case KvDType::kInt8:
      return Bytes(1);
  }
  return Bytes(0);
}

Bytes KvScaleSize(KvScale scale) {
  switch (scale) {
    case KvScale::kNone:
      return Bytes(0);
    case KvScale::kF16:
      return Bytes(2);
    case KvScale::kF32:
      return Bytes(4);
  }
  return Bytes(0);
}

KvLayerKind LatentKvLayer(uint32_t kv_lora_rank, uint32_t rope_dim,
                          KvDType dtype) {
  KvLayerKind kind;
  kind.kv_heads = 1;
  // A sum that does not fit is refused as one of 0 is.
  const uint64_t dim = uint64_t{kv_lora_rank} + rope_dim;
  kind.key_dim = dim > UINT32_MAX ? 0 : static_cast<uint32_t>(dim);
  kind.dtype = dtype;
  return kind;
}

KvModelShape::KvModelShape(const KvShape& shape)
    : layers(std::min(shape.layers, kMaxKvLayers + 1),
             KvLayerKind{.kv_heads = shape.kv_heads,
                         .key_dim = shape.head_dim,
                         .value_dim = shape.head_dim,
                         .dtype = shape.dtype,
                         .scale = shape.scale}) {}

KvKeptTokens KeptTokens(const KvLayerKind& kind, uint64_t length) {
  if (kind.window == 0 || length <= kind.window) return {};
  const uint64_t first = length - kind.window;
  return {std::min(kind.sinks, first), first};
}

absl::Status CheckTokenLimit(const KvTokenLimit& limit) {
  if (limit.max_tokens == 0 || limit.max_tokens > limit.sinks)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("KV cache: a limit of ", limit.max_tokens,
                   " tokens is not more than its ", limit.sinks, " sinks"));
}

KvLayerKind WithLimit(KvLayerKind kind, const KvTokenLimit& limit) {
  const bool keeps_more =
      kind.window == 0 ||
      SaturatingAdd(kind.window, kind.sinks) > limit.max_tokens;
  if (limit.max_tokens == 0 || !keeps_more) return kind;
  kind.window = limit.max_tokens - limit.sinks;
  kind.sinks = limit.sinks;
  return kind;
}

absl::StatusOr<KvLayout> KvLayout::Create(const KvModelShape& shape,
                                          const KvLayoutOptions& options) {
  const size_t layers = shape.layers.size();
  if (layers == 0) return absl::InvalidArgumentError("KV layout: layers is 0");
  if (layers > kMaxKvLayers)
    return absl::InvalidArgumentError(absl::StrCat(
        "KV layout: there are more than ", kMaxKvLayers, " layers"));
  if (options.layers_per_row == 0 || options.layers_per_row > layers)
    return absl::InvalidArgumentError(
        absl::StrCat("KV layout: layers_per_row is ", options.layers_per_row,
                     ", which is not from 1 to the ", layers, " layers"));

  KvLayout layout;
  layout.options_ = options;
  layout.layers_.resize(layers);
  std::vector<std::vector<uint32_t>> layers_of_kind;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const KvLayerKind& kind = shape.layers[layer];
    QUIRE_RETURN_IF_ERROR(CheckKind(kind));
    // Every other size of the layout is a part of a token over all layers.
    const auto bytes = LayerBytes(kind);
    const auto token =
        bytes ? CheckedAdd(layout.token_bytes_, *bytes) : std::nullopt;
    if (!token)
      return absl::InvalidArgumentError(absl::StrCat(
          "KV layout: a token of ", layers, " layers, ", kind.kv_heads,
          " heads and dimension ", kind.key_dim, " exceeds 2^64 bytes"));
    layout.token_bytes_ = *token;
    const uint32_t index = IndexOf(kind, &layout.kinds_);
    layout.layers_[layer].kind = index;
    layers_of_kind.resize(layout.kinds_.size());
    layers_of_kind[index].push_back(layer);
  }
  for (uint32_t kind = 0; kind < layers_of_kind.size(); ++kind) {
    std::span<const uint32_t> left = layers_of_kind[kind];
    while (!left.empty()) {
      const size_t count =
          std::min<size_t>(options.layers_per_row, left.size());
      layout.PlaceLayers(kind, left.first(count));
      left = left.subspan(count);
    }
  }
  return layout;
}

void KvLayout::PlaceLayers(uint32_t kind, std::span<const uint32_t> layers) {
  const Side keys = *SideOf(kinds_[kind], kinds_[kind].key_dim);
  const Side values = *SideOf(kinds_[kind], kinds_[kind].value_dim);
  const bool has_values = !values.size.zero();
  const bool apart = options_.values_apart && has_values;
  const uint32_t key_group = groups();
  const uint32_t value_group = apart ? key_group + 1 : key_group;
  const uint64_t key_step =
      keys.size.value() + (apart ? 0 : values.size.value());
  const uint64_t value_step = apart ? values.size.value() : key_step;
  const uint64_t first_value = apart ? 0 : keys.size.value();
  groups_.push_back({kind, Bytes(key_step * layers.size())});
  if (apart) groups_.push_back({kind, Bytes(value_step * layers.size())});

  const auto place = [&](uint32_t group, const Side& side, uint64_t offset) {
    return SidePlace{group, Bytes(offset), Bytes(offset + side.scales.value()),
                     RowBytes(group)};
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerPlace& at = layers_[layers[i]].place;
    at.keys = place(key_group, keys, key_step * i);
    at.values = has_values
                    ? place(value_group, values, first_value + value_step * i)
                    : at.keys;
  }
}

std::optional<Bytes> KvLayout::KeptBytes(uint64_t tokens) const {
  Bytes sum;
  for (const Group& group : groups_) {
    const KvKeptTokens kept = KeptTokens(kinds_[group.kind], tokens);
    const auto bytes =
        CheckedMultiply(group.row, kept.sinks + (tokens - kept.first));
    const auto total = bytes ? CheckedAdd(sum, *bytes) : std::nullopt;
    if (!total) return std::nullopt;
    sum = *total;
  }
  return sum;
}

std::optional<PageCount> KvLayout::PagesForTokens(uint64_t tokens,
                                                  Bytes page_size) const {
  uint64_t sum = 0;
  for (const Group& group : groups_) {
    const auto bytes = CheckedMultiply(group.row, tokens);
    const auto total =
        bytes ? CheckedAdd(sum, PagesFor(*bytes, page_size).value())
              : std::nullopt;
    if (!total) return std::nullopt;
    sum = *total;
  }
  return PageCount(sum);
}

std::optional<PageCount> KvLayout::PagesKept(uint64_t tokens,
                                             Bytes page_size) const {
  uint64_t sum = 0;
  for (const Group& group : groups_) {
    if (!CheckedMultiply(group.row, tokens)) return std::nullopt;
    const uint64_t row = group.row.value();
    const KvKeptTokens kept = KeptTokens(kinds_[group.kind], tokens);
    const PageSpan sinks = PagesUnder(0, kept.sinks * row, 0, page_size);
    const PageSpan window =
        PagesUnder(kept.first * row, tokens * row, sinks.end, page_size);
    const auto total = CheckedAdd(sum, sinks.count + window.count);
    if (!total) return std::nullopt;
    sum = *total;
  }
  return PageCount(sum);
}

}  // namespace quire
