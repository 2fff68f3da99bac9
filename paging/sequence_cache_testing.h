// Every kind of cache in several layouts, for tests of what they have in
// common.

#ifndef QUIRE_PAGING_SEQUENCE_CACHE_TESTING_H_
#define QUIRE_PAGING_SEQUENCE_CACHE_TESTING_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paging/kv_cache_testing.h"
#include "quire/paging/block_table_cache.h"
#include "quire/paging/kv_cache.h"
#include "quire/paging/sequence_cache.h"
#include "quire/paging/static_cache.h"

namespace quire {

enum class CacheKind { kContiguous, kBlocks, kStatic };

struct CacheSetting {
  std::string name;
  CacheKind kind;
  KvLayout layout;

  friend std::ostream& operator<<(std::ostream& out,
                                  const CacheSetting& setting) {
    return out << setting.name;
  }
};

inline constexpr uint64_t kCacheTokens = 200;
inline constexpr uint32_t kCacheSequences = 6;

inline absl::StatusOr<std::unique_ptr<SequenceCache>> MakeSequenceCache(
    const CacheSetting& setting, DeviceMemory* memory, StreamId stream,
    const KvTokenLimit& limit = {}) {
  switch (setting.kind) {
    case CacheKind::kContiguous:
      return KvCache::Create(memory, setting.layout,
                             {.max_sequence_length = kCacheTokens,
                              .max_sequences = kCacheSequences,
                              .limit = limit,
                              .stream = stream});
    case CacheKind::kBlocks:
      return BlockTableCache::Create(memory, setting.layout,
                                     {.max_sequence_length = kCacheTokens,
                                      .max_sequences = kCacheSequences,
                                      .blocks = 200,
                                      .limit = limit,
                                      .stream = stream});
    case CacheKind::kStatic:
      return StaticCache::Create(memory, setting.layout,
                                 {.max_sequence_length = kCacheTokens,
                                  .max_sequences = kCacheSequences,
                                  .limit = limit,
                                  .stream = stream});
  }
  return absl::InternalError("no such kind");
}

inline std::vector<CacheSetting> CacheSettings() {
  std::vector<CacheSetting> settings;
  for (const auto& [name, kind] :
       {std::pair("Contiguous", CacheKind::kContiguous),
        std::pair("Blocks", CacheKind::kBlocks),
        std::pair("Static", CacheKind::kStatic)}) {
    const std::string prefix = name;
    settings.push_back({prefix + "LayersApart", kind, TestLayout(1)});
    settings.push_back({prefix + "AllLayers", kind, TestLayout(5)});
    settings.push_back({prefix + "ValuesApart", kind, TestLayout(2, true)});
    settings.push_back({prefix + "Windows", kind, WindowTestLayout(40, 20)});
  }
  return settings;
}

}  // namespace quire

#endif  // QUIRE_PAGING_SEQUENCE_CACHE_TESTING_H_
