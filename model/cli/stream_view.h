// Shows the text of several sequences as it is decoded.
//
// One sequence streams as plain text. Several share a terminal as one line
// each, redrawn in place, and are printed whole when all are done. Where nobody
// watches there is only the final text.

#ifndef QUIRE_MODEL_CLI_STREAM_VIEW_H_
#define QUIRE_MODEL_CLI_STREAM_VIEW_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace quire {

class StreamView {
 public:
  // `live`: a terminal is there to redraw.
  StreamView(size_t sequences, bool live);

  void Append(size_t sequence, std::string_view text);
  // Redraws what changed; the line of a terminal is `columns` wide.
  absl::Status Refresh();
  // Takes the live lines away and prints every text, with its title where there
  // are several.
  absl::Status Finish(const std::vector<std::string>& titles);

  const std::string& text(size_t sequence) const { return texts_[sequence]; }

 private:
  const bool live_;
  std::vector<std::string> texts_;
  size_t printed_ = 0;  // bytes of a single sequence that are on screen
  bool drawn_ = false;  // the live lines are on screen
};

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_STREAM_VIEW_H_
