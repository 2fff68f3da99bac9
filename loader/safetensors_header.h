// The header of a safetensors file: read, and checked whole.
//
//   u64 little-endian header length n | n bytes of JSON | data
//   {"__metadata__": {string: string}, name: {"dtype": ..., "shape": [...],
//    "data_offsets": [begin, end]}, ...}
//
// After a success every byte of the data belongs to exactly one tensor, and
// every tensor has exactly the bytes that its type and shape need.
// docs/formats.md lists every rule. Time: n log n in the number of tensors.
// Memory: while the file can still be refused, about 50 bytes and its name per
// tensor.

#ifndef QUIRE_LOADER_SAFETENSORS_HEADER_H_
#define QUIRE_LOADER_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/random_access_file.h"
#include "quire/loader/checkpoint.h"

namespace quire {

// safetensors' own limit.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// The tensors in the order of their bytes, with offsets from the start of the
// file and `file_index` as their file. Errors name the file and the tensor.
absl::StatusOr<std::vector<TensorInfo>> ReadSafetensorsHeader(
    const RandomAccessFile& file, uint32_t file_index);

}  // namespace quire

#endif  // QUIRE_LOADER_SAFETENSORS_HEADER_H_
