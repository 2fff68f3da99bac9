// What the verbs print: JSON and text on stdout, messages on stderr.

#ifndef QUIRE_MODEL_CLI_OUTPUT_H_
#define QUIRE_MODEL_CLI_OUTPUT_H_

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "quire/loader/streaming_loader.h"

namespace quire {

// Before anything is opened: standard streams that are closed are bound to
// nothing, else what is printed would go into the files that get their numbers.
// To print is an error then, as to print to a closed stream is.
void BindStandardStreams();

// Both report what could not be written: a full disk behind stdout is an error.
absl::Status PrintText(std::string_view text);
absl::Status PrintJson(const nlohmann::json& json);

// "quire: MESSAGE" on one line of stderr, control characters made visible.
void PrintError(std::string_view message);
void PrintWarning(std::string_view message);

// Several lines for stderr, as they are.
void PrintMessage(std::string_view text);

// True where a person watches: progress is shown then, and never otherwise.
bool IsInteractive();

// Redraws a progress line on stderr; empty (shows nothing) where nobody
// watches.
std::function<void(const LoadProgress&)> LoadProgressLine();

// One event of a load on stderr, as a JSON object on a line of its own:
//   {"event": "progress", "bytes": ..., "total": ..., "seconds": ...,
//    "bytes_per_second": ..., "seconds_left": ...}
void PrintEvent(const nlohmann::json& event);

// As --progress says.
std::function<void(const LoadProgress&)> LoadProgressIn(
    const std::string& mode);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_OUTPUT_H_
