// How the keys and values of a session lie, as its options say.

#ifndef QUIRE_MODEL_ENGINE_KV_SHAPE_H_
#define QUIRE_MODEL_ENGINE_KV_SHAPE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "quire/model/session.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/kv_layout_choice.h"

namespace quire {

// The longest sequence of a model with so many positions. Its error names the
// option.
absl::StatusOr<uint64_t> LongestSequence(uint64_t max_positions,
                                         const SessionOptions& options);

// The layers under the options' limit of tokens.
KvModelShape WithLimitOf(KvModelShape shape, const SessionOptions& options);

// The layouts that the layers of `shape` could have, and the one that the
// workload of the options would take. Where that has no mean length, it is half
// of `longest`. The limit of the options counts.
absl::StatusOr<KvLayoutChoice> ChooseKvLayout(const KvModelShape& shape,
                                              const SessionOptions& options,
                                              uint64_t longest);
// What the options' layers_per_row is for these layers, and why, in a sentence.
struct LayersInRow {
  uint32_t layers;
  std::string why;
};
absl::StatusOr<LayersInRow> LayersPerRow(const KvModelShape& shape,
                                         const SessionOptions& options,
                                         uint64_t longest);

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_KV_SHAPE_H_
