#include "model/cli/stream_view.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/cli/output.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

size_t TerminalColumns() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20)
    return 80;
  return size.ws_col;
}

// The end of `text` on one line of at most `columns` characters: control
// characters become spaces, and no UTF-8 character is cut. Wide characters
// count as one, so such a line may wrap.
std::string Tail(const std::string& text, size_t columns) {
  size_t begin = text.size();
  for (size_t characters = 0; begin > 0 && characters < columns; ++characters) {
    do {
      --begin;
    } while (begin > 0 &&
             (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
  }
  std::string line = text.substr(begin);
  std::replace_if(
      line.begin(), line.end(),
      [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte < 0x20 || byte == 0x7f;
      },
      ' ');
  return line;
}

}  // namespace

StreamView::StreamView(size_t sequences, bool live)
    : live_(live), texts_(sequences) {}

void StreamView::Append(size_t sequence, std::string_view text) {
  texts_[sequence] += text;
}

absl::Status StreamView::Refresh() {
  if (!live_) return absl::OkStatus();
  if (texts_.size() == 1) {
    QUIRE_RETURN_IF_ERROR(
        PrintText(std::string_view(texts_[0]).substr(printed_)));
    printed_ = texts_[0].size();
    return absl::OkStatus();
  }
  std::string frame;
  if (drawn_) absl::StrAppend(&frame, "\033[", texts_.size(), "A");
  const size_t columns = TerminalColumns();
  for (size_t i = 0; i < texts_.size(); ++i) {
    const std::string label = absl::StrCat("[", i + 1, "] ");
    absl::StrAppend(&frame, "\r", label,
                    Tail(texts_[i], columns - label.size() - 1), "\033[K\n");
  }
  drawn_ = true;
  return PrintText(frame);
}

absl::Status StreamView::Finish(const std::vector<std::string>& titles) {
  if (texts_.size() == 1) return PrintText(texts_[0].substr(printed_) + "\n");
  std::string output;
  if (drawn_) absl::StrAppend(&output, "\033[", texts_.size(), "A\r\033[J");
  for (size_t i = 0; i < texts_.size(); ++i)
    absl::StrAppend(&output, "[", i + 1, "] ", titles[i], "\n", texts_[i],
                    "\n\n");
  return PrintText(output);
}

}  // namespace quire
