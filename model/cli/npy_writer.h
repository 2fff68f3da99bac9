// Writes a float32 matrix as NumPy's .npy, row by row.
// Format:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

#ifndef QUIRE_MODEL_CLI_NPY_WRITER_H_
#define QUIRE_MODEL_CLI_NPY_WRITER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/output_file.h"

namespace quire {

class NpyWriter {
 public:
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(
      const std::string& path, uint64_t rows, uint64_t columns);

  // `values`: any number of elements, in order.
  absl::Status Append(std::span<const float> values);
  // The file appears under its name now. Errors: fewer or more elements than
  // rows * columns; the disk's.
  absl::Status Finish();

 private:
  NpyWriter(std::string path, uint64_t expected,
            std::unique_ptr<OutputFile> file)
      : path_(std::move(path)), expected_(expected), file_(std::move(file)) {}

  const std::string path_;
  const uint64_t expected_;
  uint64_t written_ = 0;
  const std::unique_ptr<OutputFile> file_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_NPY_WRITER_H_
