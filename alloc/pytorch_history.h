// The events of a memory snapshot in PyTorch's terms, such that they lead to
// the state of the snapshot.
//
// PyTorch's viewers start from the state at the end and undo events one by one.
// An event that does not fit (of memory that was given away again before its
// record, of pages that were partly there already) would lead them astray, so
// the same is done here first, and only what fits is kept.

#ifndef QUIRE_ALLOC_PYTORCH_HISTORY_H_
#define QUIRE_ALLOC_PYTORCH_HISTORY_H_

#include <cstdint>
#include <map>
#include <vector>

#include "alloc/memory_snapshot_data.h"

namespace quire {

struct PyTorchBlock {
  uint64_t size = 0;
  uint64_t requested = 0;
  uint32_t owner = 0;
};

// Live pages side by side, and what is in use on them.
struct PyTorchSegment {
  uint64_t address = 0;
  uint64_t size = 0;
  std::map<uint64_t, PyTorchBlock> blocks;  // by address, without overlap
};

struct PyTorchEvent {
  const char* action = "";
  uint64_t nanoseconds = 0;
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t stream = 0;
  uint32_t owner = 0;
};

struct PyTorchHistory {
  std::vector<PyTorchSegment> segments;  // in order of address
  std::vector<PyTorchEvent> events;      // in order of time
};

// Pages that their owner uses whole, as KV caches do, are one block each.
// Cooling pages are in no segment: their owner has given them up. The snapshot
// is not trusted: what overlaps or lies outside is left out.
PyTorchHistory BuildPyTorchHistory(const MemorySnapshot& snapshot);

}  // namespace quire

#endif  // QUIRE_ALLOC_PYTORCH_HISTORY_H_
