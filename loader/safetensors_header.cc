#include "loader/safetensors_header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/safetensors_syntax.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Entry = SafetensorsEntries::Entry;

constexpr uint64_t kLengthSize = 8;

absl::Status FileError(const RandomAccessFile& file, std::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(file.display_name(), ": ", std::string(message)));
}

// The length of the JSON, checked against the file before anything is made of
// that size.
absl::StatusOr<uint64_t> ReadHeaderLength(const RandomAccessFile& file) {
  QUIRE_ASSIGN_OR_RETURN(const bool lfs_pointer, IsGitLfsPointer(file));
  if (lfs_pointer) return GitLfsPointerError(file);
  if (file.size() < Bytes(kLengthSize))
    return FileError(file, absl::StrCat("a file of ", file.size().value(),
                                        " bytes is no safetensors file"));
  std::array<std::byte, kLengthSize + 1> start = {};
  const size_t available =
      std::min<uint64_t>(start.size(), file.size().value());
  QUIRE_RETURN_IF_ERROR(file.Read(0, std::span(start).first(available)));
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthSize; ++i)
    length |= std::to_integer<uint64_t>(start[i]) << (8 * i);
  if (length > kMaxSafetensorsHeader)
    return FileError(
        file, absl::StrCat("the header length is ", length,
                           ", more than the format's limit of ",
                           kMaxSafetensorsHeader,
                           " bytes: this is no safetensors file, or it is "
                           "damaged"));
  if (length > file.size().value() - kLengthSize)
    return FileError(
        file, absl::StrCat("the header of ", length,
                           " bytes does not fit in a file of ",
                           file.size().value(), " bytes: it is truncated"));
  if (length == 0) return FileError(file, "the header is empty");
  if (std::to_integer<char>(start[kLengthSize]) != '{')
    return FileError(file, absl::StrCat("byte ", kLengthSize,
                                        ": the header does not begin with {"));
  return length;
}

// Sorts by place and checks that the tensors tile the data: no hole, no
// overlap, no byte that belongs to none.
absl::Status CheckLayout(const RandomAccessFile& file, uint64_t data_begin,
                         SafetensorsEntries* header) {
  const auto fail = [&](const Entry& entry, std::string_view message) {
    return FileError(file, absl::StrCat("tensor ", Quoted(header->Name(entry)),
                                        ": ", std::string(message)));
  };
  std::sort(header->entries.begin(), header->entries.end(),
            [](const Entry& a, const Entry& b) {
              return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
            });
  uint64_t previous_end = 0;
  for (const Entry& entry : header->entries) {
    const auto shape = header->Shape(entry);
    const auto range = [&entry] {
      return absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "]");
    };
    const auto what = [&entry, shape] {
      return absl::StrCat(DTypeName(entry.dtype), " [",
                          absl::StrJoin(shape, ", "), "]");
    };
    if (entry.end < entry.begin)
      return fail(entry, absl::StrCat(range(), " end before they begin"));
    if (entry.begin < previous_end)
      return fail(entry, absl::StrCat(range(),
                                      " overlap the tensor before, which ends "
                                      "at ",
                                      previous_end));
    if (entry.begin > previous_end)
      return fail(entry, absl::StrCat(range(),
                                      " leave a hole: the data before ends at ",
                                      previous_end));
    previous_end = entry.end;
    const auto size = BytesOf(entry.dtype, shape);
    if (!size)
      return fail(entry, absl::StrCat(what(),
                                      " has more bytes than 64 bits can count, "
                                      "or no whole number of them"));
    if (entry.end - entry.begin != size->value())
      return fail(entry,
                  absl::StrCat(what(), " needs ", size->value(), " bytes, ",
                               range(), " give it ", entry.end - entry.begin));
  }
  const auto file_end = CheckedAdd(data_begin, previous_end);
  if (!file_end || *file_end > file.size().value()) {
    return FileError(
        file, absl::StrCat("the tensors end at byte ", previous_end,
                           " of the data, but only ",
                           file.size().value() - data_begin,
                           " bytes of data are there: the file is truncated"));
  }
  if (*file_end != file.size().value())
    return FileError(file,
                     absl::StrCat(file.size().value() - *file_end,
                                  " bytes follow the last tensor, which ends "
                                  "at byte ",
                                  *file_end));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TensorInfo>> ReadSafetensorsHeader(
    const RandomAccessFile& file, uint32_t file_index) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t length, ReadHeaderLength(file));
  QUIRE_ASSIGN_OR_RETURN(SafetensorsEntries header,
                         ParseSafetensorsHeader(file, kLengthSize, length));
  const uint64_t data_begin = kLengthSize + length;
  QUIRE_RETURN_IF_ERROR(CheckLayout(file, data_begin, &header));
  std::vector<TensorInfo> tensors;
  tensors.reserve(header.entries.size());
  for (const Entry& entry : header.entries) {
    const auto shape = header.Shape(entry);
    tensors.push_back({.name = std::string(header.Name(entry)),
                       .dtype = entry.dtype,
                       .shape = {shape.begin(), shape.end()},
                       .file = file_index,
                       .offset = data_begin + entry.begin,
                       .size = Bytes(entry.end - entry.begin)});
  }
  return tensors;
}

}  // namespace quire
