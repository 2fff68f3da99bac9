// Whatever the bytes, a shard index is refused or maps names to files that
// stand in the same folder.

#include <string>

#include "loader/checkpoint_test_util.h"
#include "loader/shard_index.h"
#include "quire/alloc/status_macros.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {

absl::Status FuzzShardIndex(std::string_view input) {
  const auto index = ShardIndex::Read(MemoryFile(std::string(input)));
  if (!index.ok()) return CheckRefusal(index.status());
  for (const std::string& shard : index->shards())
    QUIRE_RETURN_IF_ERROR(
        Property(!shard.empty() && shard.front() != '.' &&
                     shard.find_first_of("/\\") == std::string::npos,
                 "a shard is a plain file name"));
  for (const auto& mapping : index->mappings()) {
    QUIRE_RETURN_IF_ERROR(
        Property(mapping.shard < index->shards().size(), "a shard exists"));
    const auto found = index->Find(index->Name(mapping));
    QUIRE_RETURN_IF_ERROR(
        Property(found && &index->mappings()[*found] == &mapping,
                 "a name is found where it stands"));
  }
  return absl::OkStatus();
}

}  // namespace quire
