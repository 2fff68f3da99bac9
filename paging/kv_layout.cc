#include "quire/paging/kv_layout.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire {

const char* KvDTypeName(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32:
      return "f32";
    case KvDType::kF16:
      return "f16";
    case KvDType::kBF16:
      return "bf16";
  }
  return "?";
}

Bytes KvElementSize(KvDType dtype) {
  return Bytes(dtype == KvDType::kF32 ? 4 : 2);
}

absl::StatusOr<KvLayout> KvLayout::Create(const KvShape& shape,
                                          uint32_t layers_per_row) {
  const struct {
    const char* name;
    uint32_t value;
  } sizes[] = {{"layers", shape.layers},
               {"kv_heads", shape.kv_heads},
               {"head_dim", shape.head_dim}};
  for (const auto& size : sizes) {
    if (size.value == 0)
      return absl::InvalidArgumentError(
          absl::StrCat("KV layout: ", size.name, " is 0"));
  }
  if (layers_per_row == 0 || layers_per_row > shape.layers)
    return absl::InvalidArgumentError(
        absl::StrCat("KV layout: layers_per_row is ", layers_per_row,
                     ", which is not from 1 to the ", shape.layers, " layers"));

  // Every other size of the layout is a part of a token over all layers.
  const uint64_t head = 2 * KvElementSize(shape.dtype).value() * shape.head_dim;
  const auto layer = CheckedMultiply(head, shape.kv_heads);
  const auto token =
      layer ? CheckedMultiply(*layer, shape.layers) : std::nullopt;
  if (!token)
    return absl::InvalidArgumentError(absl::StrCat(
        "KV layout: a token of ", shape.layers, " layers, ", shape.kv_heads,
        " heads and dimension ", shape.head_dim, " exceeds 2^64 bytes"));

  KvLayout layout;
  layout.shape_ = shape;
  layout.layers_per_row_ = layers_per_row;
  layout.groups_ = (shape.layers - 1) / layers_per_row + 1;
  layout.side_bytes_ = Bytes(*layer / 2);
  return layout;
}

Bytes KvLayout::RowBytes(uint32_t group) const {
  const uint32_t first = group * layers_per_row_;
  const uint32_t layers = std::min(layers_per_row_, shape_.layers - first);
  return Bytes(2 * side_bytes_.value() * layers);
}

Bytes KvLayout::TokenBytes() const {
  return Bytes(2 * side_bytes_.value() * shape_.layers);
}

KvLayout::LayerPlace KvLayout::PlaceOf(uint32_t layer) const {
  const uint32_t group = layer / layers_per_row_;
  const uint64_t key = 2 * side_bytes_.value() * (layer % layers_per_row_);
  return {group, Bytes(key), Bytes(key + side_bytes_.value()), RowBytes(group)};
}

std::optional<PageCount> KvLayout::PagesForTokens(uint64_t tokens,
                                                  Bytes page_size) const {
  // All groups but the last have rows of one size.
  const auto full = CheckedMultiply(RowBytes(0), tokens);
  const auto last = CheckedMultiply(RowBytes(groups_ - 1), tokens);
  if (!full || !last) return std::nullopt;
  const auto pages =
      CheckedMultiply(PagesFor(*full, page_size).value(), groups_ - 1);
  const auto total =
      pages ? CheckedAdd(*pages, PagesFor(*last, page_size).value())
            : std::nullopt;
  return total ? std::optional(PageCount(*total)) : std::nullopt;
}

}  // namespace quire
