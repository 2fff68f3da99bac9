// Where a token's keys and values lie.
//
// For g consecutive layers one token is a row:
//   [layer 0 K | layer 0 V | layer 1 K | layer 1 V | ...], each
//   kv_heads*head_dim
// and a sequence is, for each group of g layers, a contiguous array of rows.
// g = 1 is a per-layer cache; g = layers puts all of a token side by side, so a
// sequence ends in one partly used page instead of one per layer. Attention ops
// take a base address and a row stride, so both ends cost the same code.

#ifndef QUIRE_PAGING_KV_LAYOUT_H_
#define QUIRE_PAGING_KV_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

enum class KvDType : uint8_t { kF32, kF16, kBF16 };
const char* KvDTypeName(KvDType dtype);  // "f32", "f16", "bf16"
Bytes KvElementSize(KvDType dtype);

struct KvShape {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  KvDType dtype = KvDType::kF16;
};

// Immutable.
class KvLayout {
 public:
  // `layers_per_row` is g, 1 to shape.layers; the last group has the layers
  // that are left. Errors: kInvalidArgument for zeros and for sizes that do not
  // fit.
  static absl::StatusOr<KvLayout> Create(const KvShape& shape,
                                         uint32_t layers_per_row);

  const KvShape& shape() const { return shape_; }
  uint32_t layers_per_row() const { return layers_per_row_; }
  uint32_t groups() const { return groups_; }
  // Bytes of one token's row in a group: the row stride. All groups but the
  // last have rows of one size. REQUIRES: group < groups().
  Bytes RowBytes(uint32_t group) const;
  // Bytes of one token over all groups.
  Bytes TokenBytes() const;

  // Where a layer's K and V stand in a row of its group.
  struct LayerPlace {
    uint32_t group;
    Bytes key_offset;
    Bytes value_offset;
    Bytes row_stride;
  };
  // REQUIRES: layer < shape().layers.
  LayerPlace PlaceOf(uint32_t layer) const;

  // Pages that `tokens` tokens need in all groups together; nullopt where the
  // sizes do not fit in 64 bits. REQUIRES: page_size > 0.
  std::optional<PageCount> PagesForTokens(uint64_t tokens,
                                          Bytes page_size) const;

 private:
  KvLayout() = default;
  KvShape shape_;
  uint32_t layers_per_row_ = 1;
  uint32_t groups_ = 0;
  Bytes side_bytes_;  // K, or V, of one token in one layer
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_LAYOUT_H_
