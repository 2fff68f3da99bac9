#include "model/cli/npy_writer.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {

static_assert(std::endian::native == std::endian::little,
              "the header says '<f4'");

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(
    const std::string& path, uint64_t rows, uint64_t columns) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file,
                         OutputFile::Create(path));

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
  QUIRE_RETURN_IF_ERROR(file->Write(header.data(), header.size()));
  return std::unique_ptr<NpyWriter>(
      new NpyWriter(path, rows * columns, std::move(file)));
}

absl::Status NpyWriter::Append(std::span<const float> values) {
  QUIRE_RETURN_IF_ERROR(file_->Write(values.data(), values.size_bytes()));
  written_ += values.size();
  return absl::OkStatus();
}

absl::Status NpyWriter::Finish() {
  if (written_ != expected_)
    return absl::InternalError(absl::StrCat(path_, ": ", written_,
                                            " elements written, the header "
                                            "says ",
                                            expected_));
  return file_->Commit();
}

}  // namespace quire
