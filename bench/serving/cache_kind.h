// The caches that are held against each other.

#ifndef QUIRE_BENCH_SERVING_CACHE_KIND_H_
#define QUIRE_BENCH_SERVING_CACHE_KIND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "quire/alloc/device_memory.h"
#include "quire/paging/kv_cache.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/kv_layout_choice.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

struct CacheKind {
  enum class Family { kContiguous, kBlocks, kStatic };
  Family family = Family::kContiguous;
  uint32_t layers_per_row = 1;  // not of kBlocks
  uint32_t block_tokens = 0;    // of kBlocks
  std::string name;
  std::string reason;  // of a layout that was chosen
};

// "contiguous:G" with G layers to a row, "contiguous:all", "contiguous:auto"
// for the `workload`, "blocks:N" with N tokens to a block,
// "static". Error: kInvalidArgument.
absl::StatusOr<CacheKind> ParseCacheKind(const std::string& text,
                                         const KvModelShape& shape,
                                         const KvWorkload& workload,
                                         Bytes page_size);

struct CacheSettings {
  KvModelShape shape;
  uint64_t max_sequence_length = 0;
  uint32_t max_sequences = 0;
  Bytes page_size;
  Bytes headroom;
  PageCount map_ahead;
  // Of contiguous caches: steps that pages are mapped ahead, told the time by
  // `clock`, and whether what ends is unmapped at once, or which of it is not.
  uint32_t page_ahead = 0;
  std::function<uint64_t()> clock;
  bool eager_reclaim = false;
  PageCount max_parked = kAllParked;
  Bytes swap_space;
  OwnerId owner;
  StreamId stream;
};

// Addresses that all its sequences, and those just released, need; 0 where the
// default will do.
absl::StatusOr<Bytes> AddressesOf(const CacheKind& kind,
                                  const CacheSettings& settings);
absl::StatusOr<std::unique_ptr<SequenceCache>> MakeStressCache(
    const CacheKind& kind, const CacheSettings& settings, DeviceMemory* memory);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_CACHE_KIND_H_
