// Writes a safetensors file tensor by tensor, in bounded memory.

#ifndef QUIRE_LOADER_SAFETENSORS_WRITER_H_
#define QUIRE_LOADER_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/dtype.h"

namespace quire {

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  std::vector<uint64_t> shape;
};

// The header is written first, so every name and shape is known at the start;
// the bytes of the tensors then come in any order. Written to a temporary name
// beside `path` and renamed by Finish: a file of that name is always whole.
class SafetensorsWriter {
 public:
  // The data is laid out as safetensors' own writer does: by type, widest
  // first, then by name. `metadata` becomes __metadata__; with none there is no
  // such field. kResourceExhausted where the disk has no room for the file.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<SafetensorsEntry> entries,
      const std::vector<std::pair<std::string, std::string>>& metadata);
  // Removes the temporary file where Finish was not reached.
  ~SafetensorsWriter();

  // `data` is the next part of the tensor, in order. After an error of the disk
  // the file is lost: destroy the writer.
  absl::Status Append(const std::string& name, std::span<const std::byte> data);
  // Puts the file, synced, under its name. Errors: a tensor that did not get
  // all its bytes, by name; the writer can go on then.
  absl::Status Finish();

 private:
  class Impl;
  explicit SafetensorsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_SAFETENSORS_WRITER_H_
