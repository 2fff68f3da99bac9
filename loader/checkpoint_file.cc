#include "loader/checkpoint_file.h"

#include <zlib.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kHeaderStep = 64 << 10;

absl::StatusOr<uint32_t> HeaderChecksum(const RandomAccessFile& file,
                                        Bytes header_size) {
  uLong crc = crc32_z(0, nullptr, 0);
  std::vector<std::byte> buffer(std::min(kHeaderStep, header_size.value()));
  for (uint64_t done = 0; done < header_size.value();) {
    const auto step = std::span(buffer).first(
        std::min<uint64_t>(buffer.size(), header_size.value() - done));
    QUIRE_RETURN_IF_ERROR(file.Read(done, step));
    crc =
        crc32_z(crc, reinterpret_cast<const Bytef*>(step.data()), step.size());
    done += step.size();
  }
  return static_cast<uint32_t>(crc);
}

std::string WhatChanged(const FileStamp& then, const FileStamp& now) {
  constexpr char kSince[] = " when its index was read";
  if (now.size != then.size)
    return absl::StrCat("the file has ", now.size.value(), " bytes, but had ",
                        then.size.value(), kSince);
  if (now.inode != then.inode || now.device != then.device)
    return absl::StrCat("the file was replaced: it is another one than",
                        kSince);
  return "the file was written to since its index was read";
}

}  // namespace

absl::StatusOr<CheckpointFile> MakeCheckpointFile(const RandomAccessFile& file,
                                                  Bytes header_size) {
  CheckpointFile result;
  result.path = file.path();
  result.size = file.size();
  result.stamp = file.stamp();
  result.header_size = header_size;
  QUIRE_ASSIGN_OR_RETURN(result.header_crc32,
                         HeaderChecksum(file, header_size));
  return result;
}

absl::StatusOr<std::unique_ptr<PosixFile>> OpenUnchanged(
    const CheckpointFile& expected) {
  QUIRE_ASSIGN_OR_RETURN(auto file, PosixFile::Open(expected.path));
  const FileStamp now = file->stamp();
  if (now != expected.stamp)
    return absl::DataLossError(absl::StrCat(file->display_name(), ": ",
                                            WhatChanged(expected.stamp, now)));
  return file;
}

absl::Status CheckUnchanged(const CheckpointFile& expected) {
  QUIRE_ASSIGN_OR_RETURN(const auto file, OpenUnchanged(expected));
  QUIRE_ASSIGN_OR_RETURN(const uint32_t crc,
                         HeaderChecksum(*file, expected.header_size));
  if (crc == expected.header_crc32) return absl::OkStatus();
  // Its time of change says nothing: it was set back, or is too coarse.
  return absl::DataLossError(
      absl::StrCat(file->display_name(),
                   ": the header is another one than when it was first read"));
}

}  // namespace quire
