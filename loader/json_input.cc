#include "loader/json_input.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr uint64_t kReadSize = 64 << 10;

bool IsJsonSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

}  // namespace

JsonInput::JsonInput(const RandomAccessFile& file, uint64_t begin,
                     uint64_t size)
    : file_(file), begin_(begin), next_offset_(begin), unread_(size) {}

bool JsonInput::Fill() {
  const uint64_t size = std::min(unread_, kReadSize);
  if (size == 0) return false;
  buffer_.resize(size);
  next_ = 0;
  status_ =
      file_.Read(next_offset_, std::as_writable_bytes(std::span(buffer_)));
  if (!status_.ok()) {
    buffer_.clear();
    return false;
  }
  next_offset_ += size;
  unread_ -= size;
  return true;
}

void JsonInput::Advance() {
  while (!at_end_) {
    if (next_ == buffer_.size() && !Fill()) break;
    const char c = buffer_[next_++];
    ++consumed_;
    if (c == '\0') {
      // The lexer would take it for the end, and what follows for absent.
      status_ = absl::InvalidArgumentError(
          absl::StrCat(file_.display_name(), ": byte ", begin_ + consumed_ - 1,
                       ": no valid JSON: a NUL byte"));
      break;
    }
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
    } else if (IsJsonSpace(c)) {
      if (after_space_) continue;
      after_space_ = true;
    } else {
      after_space_ = false;
      if (c == '"') {
        in_string_ = true;
        run_ = 0;
      }
    }
    if (++run_ > kMaxRun) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(file_.display_name(), ": byte ", begin_ + consumed_ - 1,
                       ": one JSON token, or a stretch without any string, is "
                       "longer than ",
                       kMaxRun, " bytes"));
      break;
    }
    current_ = c;
    return;
  }
  at_end_ = true;
}

}  // namespace quire
