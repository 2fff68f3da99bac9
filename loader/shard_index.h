// model.safetensors.index.json: which shard holds which tensor.
//
//   {"metadata": {"total_size": n}, "weight_map": {tensor: shard, ...}}

#ifndef QUIRE_LOADER_SHARD_INDEX_H_
#define QUIRE_LOADER_SHARD_INDEX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/random_access_file.h"
#include "quire/alloc/units.h"

namespace quire {

inline constexpr Bytes kMaxShardIndexSize = Bytes(100'000'000);

class ShardIndex {
 public:
  struct Mapping {
    uint32_t name_begin = 0;
    uint32_t name_size = 0;
    uint32_t shard = 0;  // index into shards()
  };

  // Errors name the file and the tensor: a name that occurs twice, a shard that
  // is no plain name of a .safetensors file, no weight_map at all.
  static absl::StatusOr<ShardIndex> Read(const RandomAccessFile& file);

  // Plain file names, sorted.
  const std::vector<std::string>& shards() const { return shards_; }
  // Sorted by name.
  const std::vector<Mapping>& mappings() const { return mappings_; }
  std::string_view Name(const Mapping& mapping) const {
    return std::string_view(names_).substr(mapping.name_begin,
                                           mapping.name_size);
  }
  // The position in mappings(); nullopt where the index does not list `name`.
  std::optional<size_t> Find(std::string_view name) const;
  // What metadata.total_size claims, where it is a whole number.
  std::optional<uint64_t> total_size() const { return total_size_; }

 private:
  friend class ShardIndexHandler;

  std::string names_;
  std::vector<std::string> shards_;
  std::vector<Mapping> mappings_;
  std::optional<uint64_t> total_size_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_SHARD_INDEX_H_
