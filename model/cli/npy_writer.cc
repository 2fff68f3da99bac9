#include "model/cli/npy_writer.h"

#include <bit>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quire {

static_assert(std::endian::native == std::endian::little,
              "the header says '<f4'");

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(
    const std::string& path, uint64_t rows, uint64_t columns) {
  FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr)
    return absl::ErrnoToStatus(errno,
                               absl::StrCat(path, ": cannot open for writing"));
  std::unique_ptr<NpyWriter> writer(new NpyWriter(path, rows * columns, file));

  // Magic, version 1.0 and a 16-bit length come before the dictionary; the
  // whole is padded with spaces to a multiple of 64 and ends with a newline.
  constexpr size_t kPreamble = 10;
  std::string dictionary =
      absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", rows,
                   ", ", columns, "), }");
  const size_t unpadded = kPreamble + dictionary.size() + 1;
  dictionary.append((64 - unpadded % 64) % 64, ' ');
  dictionary += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  header += dictionary;
  if (std::fwrite(header.data(), 1, header.size(), file) != header.size())
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot write"));
  return writer;
}

NpyWriter::~NpyWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

absl::Status NpyWriter::Append(std::span<const float> values) {
  if (std::fwrite(values.data(), sizeof(float), values.size(), file_) !=
      values.size())
    return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": cannot write"));
  written_ += values.size();
  return absl::OkStatus();
}

absl::Status NpyWriter::Finish() {
  if (std::fclose(std::exchange(file_, nullptr)) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": cannot write"));
  if (written_ != expected_)
    return absl::InternalError(absl::StrCat(path_, ": ", written_,
                                            " elements written, the header "
                                            "says ",
                                            expected_));
  return absl::OkStatus();
}

}  // namespace quire
