// The PagedAttention baseline: fixed-size blocks of tokens out of one pool, and
// a table of blocks per sequence (Kwon et al. 2023,
// https://arxiv.org/abs/2309.06180).
//
// What KvCache is measured against, so it is complete: the pool is committed
// whole when the cache is made, as vLLM does; blocks are counted and freed as
// sequences grow and end, at most one per sequence is partly used, sequences
// that begin alike share the blocks of their prefix, and forks share all blocks
// until one of them writes (copy-on-write), and what no layer sees any more,
// behind windows or a limit, is free for others (EndBatch): layers that drop
// other tokens than the rest have a table of their own. No driver call after
// Create but the copies of forks. What it costs instead: attention must go
// through the table, and memory of the pool serves nobody else.
//
// One lock, which is not held while Admit and Step wait for fences. In a forked
// child, calls fail with kFailedPrecondition or return empty values, and
// destroying the cache is harmless.

#ifndef QUIRE_PAGING_BLOCK_TABLE_CACHE_H_
#define QUIRE_PAGING_BLOCK_TABLE_CACHE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "quire/alloc/device_memory.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

struct BlockTableCacheOptions {
  uint64_t max_sequence_length = 0;
  uint32_t max_sequences = 256;
  OwnerId owner = kUnnamedOwner;
  uint32_t block_tokens = 16;  // a power of two
  // Of the pool. 0: as many as the memory has pages for now.
  uint64_t blocks = 0;
  // Blocks that Admit leaves free for the growth of those already admitted.
  uint64_t headroom_blocks = 0;
  // Blocks of rows are kept for prompts. Behind a window each is found until it
  // is used again, and a prompt goes on wherever those of one window are left,
  // as vLLM's hybrid manager has it.
  bool prefix_caching = true;
  KvTokenLimit limit;  // max_cache_len, of every sequence
  // That the kernels of all sequences run on, where blocks are copied as well:
  // a copy comes after what wrote the rows and before what reads them.
  StreamId stream;
};

struct BlockTableCacheStatistics {
  uint64_t blocks = 0;
  uint64_t free_blocks = 0;     // those below included
  uint64_t dropped_blocks = 0;  // behind windows
  uint64_t kept_blocks = 0;     // with rows that a prompt may take up again
  uint64_t block_copies = 0;
  uint64_t evictions = 0;      // kept blocks that were used for something else
  uint64_t prompt_tokens = 0;  // of AdmitPrompt
  uint64_t cached_prompt_tokens = 0;  // of these, found
};

class BlockTableCache : public SequenceCache {
 public:
  // `memory` and the stream must outlive the cache. The layout's rows lie in
  // blocks: a group of layers is an array of blocks, a block an array of rows.
  static absl::StatusOr<std::unique_ptr<BlockTableCache>> Create(
      DeviceMemory* memory, const KvLayout& layout,
      const BlockTableCacheOptions& options);

  virtual BlockTableCacheStatistics GetStatistics() const = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_BLOCK_TABLE_CACHE_H_
