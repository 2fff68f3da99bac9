// Reads GGUF's primitive values one after the other, through a small buffer.

#ifndef QUIRE_LOADER_GGUF_CURSOR_H_
#define QUIRE_LOADER_GGUF_CURSOR_H_

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "loader/random_access_file.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/alloc/utf8.h"

namespace quire {

class GgufCursor {
 public:
  // `memory` is what may be kept of the header; the file outlives this.
  GgufCursor(const RandomAccessFile& file, Bytes memory)
      : file_(file), memory_left_(memory.value()) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return file_.size().value() - position_; }

  // What is being read, for messages: `key "general.name"`.
  void SetSubject(std::string subject) { subject_ = std::move(subject); }

  absl::Status Error(const std::string& problem) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.display_name(), ": ", subject_,
                     subject_.empty() ? "" : ": ", problem));
  }

  // To be called before memory is taken for what the file describes.
  absl::Status Charge(uint64_t bytes) {
    const auto left = CheckedSubtract(memory_left_, bytes);
    if (!left)
      return Error("the header describes more than can be kept in memory");
    memory_left_ = *left;
    return absl::OkStatus();
  }

  template <typename T>
  requires std::is_arithmetic_v<T> absl::StatusOr<T> Read() {
    T value;
    QUIRE_RETURN_IF_ERROR(
        ReadBytes(std::as_writable_bytes(std::span(&value, 1))));
    return value;
  }

  // Valid UTF-8, as the format wants it. Its memory is charged.
  absl::StatusOr<std::string> ReadString(uint64_t max_size = UINT64_MAX) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t size, Read<uint64_t>());
    if (size > remaining()) return Truncated(size);
    if (size > max_size)
      return Error(absl::StrCat("a name of ", size,
                                " bytes is too long, the "
                                "limit is ",
                                max_size));
    QUIRE_RETURN_IF_ERROR(Charge(size));
    std::string text(size, '\0');
    QUIRE_RETURN_IF_ERROR(ReadBytes(std::as_writable_bytes(std::span(text))));
    if (!IsValidUtf8(text))
      return Error(absl::StrCat("the string ", Quoted(text), " is not UTF-8"));
    return text;
  }

 private:
  static constexpr uint64_t kBufferSize = 64 << 10;

  absl::Status Truncated(uint64_t wanted) const {
    return Error(absl::StrCat("the file ends at byte ", file_.size().value(),
                              ", within the ", wanted, " bytes at ", position_,
                              ": it is truncated"));
  }

  absl::Status ReadBytes(std::span<std::byte> out) {
    if (out.size() > remaining()) return Truncated(out.size());
    while (!out.empty()) {
      if (next_ == buffer_.size()) QUIRE_RETURN_IF_ERROR(Fill());
      const size_t n = std::min(out.size(), buffer_.size() - next_);
      std::memcpy(out.data(), buffer_.data() + next_, n);
      out = out.subspan(n);
      next_ += n;
      position_ += n;
    }
    return absl::OkStatus();
  }

  absl::Status Fill() {
    buffer_.resize(std::min(kBufferSize, remaining()));
    next_ = 0;
    return file_.Read(position_, buffer_);
  }

  const RandomAccessFile& file_;
  uint64_t memory_left_;
  std::string subject_;
  uint64_t position_ = 0;  // in the file, of the byte that comes next
  std::vector<std::byte> buffer_;
  size_t next_ = 0;
};

}  // namespace quire

#endif  // QUIRE_LOADER_GGUF_CURSOR_H_
