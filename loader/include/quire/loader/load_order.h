// The order in which a model needs its tensors.
//
// Writers order tensors by name or by size: layer 10 before layer 2, the
// embedding last. Streamed in the order given here, with LoadOrder::kGiven, the
// first layers are on the device while the last ones are still on disk.

#ifndef QUIRE_LOADER_LOAD_ORDER_H_
#define QUIRE_LOADER_LOAD_ORDER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "quire/loader/checkpoint.h"

namespace quire {

// What is needed at once.
struct LoadGroup {
  std::string name;  // "model.layers.3"; "embedding", "head"
  size_t end = 0;    // of its tensors in LayerOrder::tensors
};

struct LayerOrder {
  std::vector<const TensorInfo*> tensors;
  std::vector<LoadGroup> groups;
};

// By the names alone, whatever the family: what names an embedding comes first,
// then everything of layer 0, 1, ..., the first number in a name, and then the
// rest: last norm and head. Within a group in the order of the files. Of the
// same tensors as checkpoint.tensors(). O(n log n).
LayerOrder OrderByLayer(const Checkpoint& checkpoint);

}  // namespace quire

#endif  // QUIRE_LOADER_LOAD_ORDER_H_
