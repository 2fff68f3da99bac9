// Files made by hand for the tests and fuzzers of the readers.
//
// The writers here share no code with the readers: they put bytes one after the
// other, as the formats' descriptions say.

#ifndef QUIRE_LOADER_CHECKPOINT_TEST_UTIL_H_
#define QUIRE_LOADER_CHECKPOINT_TEST_UTIL_H_

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "loader/random_access_file.h"
#include "loader/testing/temporary_folder.h"
#include "quire/alloc/units.h"

namespace quire {

// Bytes in memory, read like a file. `claimed_size` beyond the bytes makes a
// file that is shorter than it was when it was opened.
class MemoryFile : public RandomAccessFile {
 public:
  explicit MemoryFile(std::string bytes, std::string path = "test.bin")
      : RandomAccessFile(std::move(path), Bytes(bytes.size())),
        bytes_(std::move(bytes)) {}
  MemoryFile(std::string bytes, std::string path, Bytes claimed_size)
      : RandomAccessFile(std::move(path), claimed_size),
        bytes_(std::move(bytes)) {}

  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
      return absl::DataLossError(display_name() + ": the file ends early");
    if (!out.empty())
      std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return absl::OkStatus();
  }

 private:
  const std::string bytes_;
};

// Bytes with a hole of zeros behind them, up to `size`.
class SparseFile : public RandomAccessFile {
 public:
  SparseFile(std::string bytes, std::string path, Bytes size)
      : RandomAccessFile(std::move(path), size), bytes_(std::move(bytes)) {}

  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      const uint64_t position = offset + i;
      out[i] = position < bytes_.size()
                   ? static_cast<std::byte>(bytes_[position])
                   : std::byte{0};
    }
    return absl::OkStatus();
  }

 private:
  const std::string bytes_;
};

template <typename T>
std::string LittleEndian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i)
    bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  return bytes;
}

// A safetensors file with this header and `data_size` bytes of data.
inline std::string Safetensors(std::string_view header, size_t data_size = 0) {
  return LittleEndian<uint64_t>(header.size()) + std::string(header) +
         std::string(data_size, '\x5a');
}

// An entry of a header: "name":{...}.
inline std::string Entry(std::string_view name, std::string_view dtype,
                         std::string_view shape, std::string_view offsets) {
  std::string entry = "\"";
  entry.append(name).append("\":{\"dtype\":\"").append(dtype);
  entry.append("\",\"shape\":").append(shape);
  entry.append(",\"data_offsets\":").append(offsets).append("}");
  return entry;
}

// "[begin,end]".
inline std::string Offsets(uint64_t begin, uint64_t end) {
  return absl::StrCat("[", begin, ",", end, "]");
}

// A header with these entries.
template <typename... Entries>
std::string Header(const Entries&... entries) {
  std::string header = "{";
  ((header.append(header.size() == 1 ? "" : ",").append(entries)), ...);
  header.append("}");
  return header;
}

}  // namespace quire

#endif  // QUIRE_LOADER_CHECKPOINT_TEST_UTIL_H_
