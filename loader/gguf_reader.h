// Reads a GGUF file's metadata and tensor list (versions 2 and 3,
// little-endian).
//
//   "GGUF" | u32 version | u64 tensors | u64 pairs
//   pairs:   string key | u32 type | value
//   tensors: string name | u32 n | n * u64 dimensions, fastest first | u32 type
//            | u64 offset from the begin of the data
//   padding to general.alignment (32 where it is not set) | data
//   string:  u64 length | bytes;  array: u32 type | u64 count | values
//
// After a success every tensor lies in the file, is aligned, has the bytes that
// its type and shape need, and shares none with another. No weight is read.
// Memory is bounded (kMaxGgufHeaderMemory), whatever counts the file claims.
// Heavy to include: for .cc files only.

#ifndef QUIRE_LOADER_GGUF_READER_H_
#define QUIRE_LOADER_GGUF_READER_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/random_access_file.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"

namespace quire {

// Twice what the largest vocabularies (200,000 tokens, 450,000 merges) take.
inline constexpr Bytes kMaxGgufHeaderMemory = MiB(160);

struct GgufFile {
  nlohmann::json metadata = nlohmann::json::object();  // keys stay flat
  std::vector<TensorInfo> tensors;                     // by offset; file 0
  Bytes header_size;  // of what stands before padding and data
  std::vector<std::string> warnings;
};

// Whether the file begins with GGUF's four letters.
absl::StatusOr<bool> IsGguf(const RandomAccessFile& file);

// Errors name the file and the key or the tensor.
absl::StatusOr<GgufFile> ReadGguf(const RandomAccessFile& file);

}  // namespace quire

#endif  // QUIRE_LOADER_GGUF_READER_H_
