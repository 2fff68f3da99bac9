// Writes a float32 matrix as NumPy's .npy, row by row.
// Format:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

#ifndef QUIRE_MODEL_CLI_NPY_WRITER_H_
#define QUIRE_MODEL_CLI_NPY_WRITER_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

class NpyWriter {
 public:
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(
      const std::string& path, uint64_t rows, uint64_t columns);
  ~NpyWriter();

  // `values`: any number of elements, in order.
  absl::Status Append(std::span<const float> values);
  // Errors: fewer or more elements than rows * columns; the disk's.
  absl::Status Finish();

 private:
  NpyWriter(std::string path, uint64_t expected, FILE* file)
      : path_(std::move(path)), expected_(expected), file_(file) {}

  const std::string path_;
  const uint64_t expected_;
  uint64_t written_ = 0;
  FILE* file_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_NPY_WRITER_H_
