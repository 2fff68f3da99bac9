// Whatever the bytes, a shard index is refused or maps names to files that
// stand in the same folder.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "loader/checkpoint_test_util.h"
#include "loader/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto index = quire::ShardIndex::Read(quire::MemoryFile(bytes));
  if (!index.ok()) return 0;
  for (const std::string& shard : index->shards())
    if (shard.empty() || shard.front() == '.' ||
        shard.find_first_of("/\\") != std::string::npos)
      std::abort();
  for (const auto& mapping : index->mappings()) {
    if (mapping.shard >= index->shards().size()) std::abort();
    const auto found = index->Find(index->Name(mapping));
    if (!found || &index->mappings()[*found] != &mapping) std::abort();
  }
  return 0;
}
