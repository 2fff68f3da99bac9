// What a safetensors header says, before it is known whether it makes sense.

#ifndef QUIRE_LOADER_SAFETENSORS_SYNTAX_H_
#define QUIRE_LOADER_SAFETENSORS_SYNTAX_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/random_access_file.h"
#include "quire/loader/dtype.h"

namespace quire {

// A header of 100 MB can describe almost two million tensors. So entries are
// small, and names and shapes stand side by side in one buffer each.
struct SafetensorsEntries {
  struct Text {
    uint32_t begin = 0;
    uint32_t size = 0;
  };
  struct Entry {
    Text name;
    uint32_t shape_begin = 0;
    uint8_t rank = 0;
    DType dtype = DType::kF32;
    uint64_t begin = 0;  // of its bytes, from the start of the data
    uint64_t end = 0;
  };

  std::string text;
  std::vector<uint64_t> dimensions;
  std::vector<Entry> entries;  // in the order of the header

  std::string_view Name(const Entry& entry) const {
    return std::string_view(text).substr(entry.name.begin, entry.name.size);
  }
  std::span<const uint64_t> Shape(const Entry& entry) const {
    return std::span(dimensions).subspan(entry.shape_begin, entry.rank);
  }
};

// Reads the JSON in [begin, begin + size) of `file` and checks everything that
// can be said of one entry alone, and that no name occurs twice.
absl::StatusOr<SafetensorsEntries> ParseSafetensorsHeader(
    const RandomAccessFile& file, uint64_t begin, uint64_t size);

}  // namespace quire

#endif  // QUIRE_LOADER_SAFETENSORS_SYNTAX_H_
