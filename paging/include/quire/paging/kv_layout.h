// Where a token's keys and values lie.
//
// Layers are of one kind or of several: sliding-window layers beside full ones,
// say, or layers with other heads. For g consecutive layers of a kind one token
// is a row:
//   [layer 0 K | layer 0 V | layer 1 K | layer 1 V | ...], each
//   kv_heads*head_dim
// and a sequence is, for each group of g layers, a contiguous array of rows.
// g = 1 is a per-layer cache; g = layers puts all of a token side by side, so a
// sequence ends in one partly used page instead of one per layer. Attention ops
// take a base address and a row stride, so both ends cost the same code.
//
// With values apart, a group is the keys of g layers or their values. "The next
// layer of a kind" skips layers of other kinds: where windows alternate, a row
// has every second layer. A row never mixes kinds, since what is behind a
// window goes by whole rows.
//
// A side, K or V, of one layer is
//   [head 0 | head 1 | ...] elements, then, where there are scales,
//   [padding to the size of a scale | one scale a head]
// so that elements, scales and rows are aligned to the larger of an element's
// and a scale's size.

#ifndef QUIRE_PAGING_KV_LAYOUT_H_
#define QUIRE_PAGING_KV_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

enum class KvDType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kF8E5M2, kInt8 };
// "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8".
const char* KvDTypeName(KvDType dtype);
Bytes KvElementSize(KvDType dtype);

// What the elements of a head are multiplied with: one factor per token and
// head, kept beside them.
enum class KvScale : uint8_t { kNone, kF16, kF32 };
Bytes KvScaleSize(KvScale scale);  // 0 for kNone

// What a layer keeps of a token, and which tokens it keeps.
struct KvLayerKind {
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;    // elements of a head's key
  uint32_t value_dim = 0;  // of its value; 0: there are no values
  KvDType dtype = KvDType::kF16;
  KvScale scale = KvScale::kNone;  // for elements of 8 bits
  // How many tokens attention sees, the new one included; 0: all. Beyond them
  // it sees the first `sinks` tokens.
  uint64_t window = 0;
  uint64_t sinks = 0;

  friend bool operator==(const KvLayerKind&, const KvLayerKind&) = default;
};

// Multi-head latent attention: one vector a token, from which keys and values
// are computed, and the part of the key that carries the position.
KvLayerKind LatentKvLayer(uint32_t kv_lora_rank, uint32_t rope_dim,
                          KvDType dtype);

// A model whose layers are all alike and keep every token.
struct KvShape {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  KvDType dtype = KvDType::kF16;
  KvScale scale = KvScale::kNone;
};

inline constexpr uint32_t kMaxKvLayers = 4096;

// The kind of each layer of a model. Of a KvShape with more than kMaxKvLayers
// layers, only one more than that many: KvLayout refuses it.
struct KvModelShape {
  KvModelShape() = default;
  KvModelShape(const KvShape& shape);  // NOLINT: every KvShape is one

  std::vector<KvLayerKind> layers;
};

struct KvLayoutOptions {
  // g, 1 to the number of layers. A kind with fewer layers has them all in a
  // row; the last group of a kind has the layers that are left.
  uint32_t layers_per_row = 1;
  // Keys in one array and values in another.
  bool values_apart = false;

  friend bool operator==(const KvLayoutOptions&,
                         const KvLayoutOptions&) = default;
};

// Tokens that a layer keeps: [0, sinks) and [first, the length).
struct KvKeptTokens {
  uint64_t sinks = 0;
  uint64_t first = 0;  // at least `sinks`
};
// Of a sequence of `length` tokens.
KvKeptTokens KeptTokens(const KvLayerKind& kind, uint64_t length);

// A bound on the tokens that are kept of a sequence, whatever its layers would
// see: the oldest go first, but for the first `sinks`.
struct KvTokenLimit {
  uint64_t max_tokens = 0;  // 0: none; otherwise more than `sinks`
  uint64_t sinks = 0;

  friend bool operator==(const KvTokenLimit&, const KvTokenLimit&) = default;
};
// kInvalidArgument for a limit of no more than its sinks.
absl::Status CheckTokenLimit(const KvTokenLimit& limit);
// What a layer keeps under the limit, which only counts where it keeps more.
KvLayerKind WithLimit(KvLayerKind kind, const KvTokenLimit& limit);

// Immutable.
class KvLayout {
 public:
  // Errors: kInvalidArgument for zeros, sizes that do not fit, and scales that
  // do not go with the elements: only those of 8 bits have scales, and kInt8
  // needs them.
  static absl::StatusOr<KvLayout> Create(const KvModelShape& shape,
                                         const KvLayoutOptions& options);
  static absl::StatusOr<KvLayout> Create(const KvModelShape& shape,
                                         uint32_t layers_per_row) {
    return Create(shape, KvLayoutOptions{layers_per_row, false});
  }
  static absl::StatusOr<KvLayout> Create(const KvShape& shape,
                                         uint32_t layers_per_row) {
    return Create(KvModelShape(shape), layers_per_row);
  }

  uint32_t layers() const { return static_cast<uint32_t>(layers_.size()); }
  // The distinct kinds, in the order of their first layers.
  std::span<const KvLayerKind> kinds() const { return kinds_; }
  // REQUIRES: layer < layers().
  const KvLayerKind& KindOf(uint32_t layer) const {
    return kinds_[layers_[layer].kind];
  }
  const KvLayoutOptions& options() const { return options_; }

  // Arrays of rows, those of one kind side by side.
  uint32_t groups() const { return static_cast<uint32_t>(groups_.size()); }
  // Bytes of one token's row in a group: the row stride, above 0.
  // REQUIRES: group < groups().
  Bytes RowBytes(uint32_t group) const { return groups_[group].row; }
  // Index into kinds() of a group's layers.
  uint32_t GroupKind(uint32_t group) const { return groups_[group].kind; }
  // Bytes of one token over all groups.
  Bytes TokenBytes() const { return token_bytes_; }

  // Where a layer's K and V stand in rows of their groups. Of a layer without
  // values, the places of K and V are the same; without scales, those of the
  // scales are the ends of the sides.
  struct SidePlace {
    uint32_t group;
    Bytes offset;
    Bytes scales;  // offset of the first one
    Bytes row_stride;
  };
  struct LayerPlace {
    SidePlace keys;
    SidePlace values;
  };
  // REQUIRES: layer < layers().
  const LayerPlace& PlaceOf(uint32_t layer) const {
    return layers_[layer].place;
  }

  // The bytes that the layers keep of `tokens` tokens, and no more than these:
  // no tail of a page, and nothing behind a window. nullopt where that does not
  // fit in 64 bits.
  std::optional<Bytes> KeptBytes(uint64_t tokens) const;
  // Pages that `tokens` tokens need in all groups together, windows not yet
  // taken into account; nullopt where the sizes do not fit in 64 bits.
  // REQUIRES: page_size > 0.
  std::optional<PageCount> PagesForTokens(uint64_t tokens,
                                          Bytes page_size) const;
  // The same for what the layers keep of them: pages that hold a token that is
  // kept.
  std::optional<PageCount> PagesKept(uint64_t tokens, Bytes page_size) const;

 private:
  struct Layer {
    uint32_t kind;
    LayerPlace place;
  };
  struct Group {
    uint32_t kind;
    Bytes row;
  };

  KvLayout() = default;
  void PlaceLayers(uint32_t kind, std::span<const uint32_t> layers);

  KvLayoutOptions options_;
  std::vector<KvLayerKind> kinds_;
  std::vector<Layer> layers_;
  std::vector<Group> groups_;
  Bytes token_bytes_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_LAYOUT_H_
