#include "model/cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"

namespace quire {
namespace {

// A message quotes files; whatever it quotes, it is a line that can be read.
constexpr size_t kMaxMessage = 16384;

void PrintLine(const char* prefix, std::string_view message) {
  const std::string line =
      absl::StrCat(prefix, Printable(message, kMaxMessage), "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void BindStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest number that is free, which is this one. Left open on purpose.
    open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

absl::Status PrintText(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
      std::fflush(stdout) != 0)
    return absl::ErrnoToStatus(errno, "standard output: cannot write");
  return absl::OkStatus();
}

absl::Status PrintJson(const nlohmann::json& json) {
  // Token text may hold any bytes; JSON must be UTF-8.
  return PrintText(
      json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n");
}

void PrintError(std::string_view message) { PrintLine("quire: ", message); }
void PrintWarning(std::string_view message) {
  PrintLine("quire: warning: ", message);
}

void PrintMessage(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

bool IsInteractive() {
  return isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
}

std::function<void(const LoadProgress&)> LoadProgressLine() {
  if (!IsInteractive()) return nullptr;
  return [](const LoadProgress& progress) {
    const double rate = progress.bytes_per_second();
    std::fprintf(stderr, "\rloading %s of %s, %s/s, %.0f s left\033[K",
                 FormatBytes(progress.done).c_str(),
                 FormatBytes(progress.total).c_str(),
                 FormatBytes(Bytes(static_cast<uint64_t>(rate))).c_str(),
                 progress.seconds_left());
    if (progress.done == progress.total) std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
  };
}

void PrintEvent(const nlohmann::json& event) {
  PrintMessage(
      event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n");
}

std::function<void(const LoadProgress&)> LoadProgressIn(
    const std::string& mode) {
  if (mode == "auto") return LoadProgressLine();
  if (mode == "none") return nullptr;
  return [](const LoadProgress& progress) {
    PrintEvent({{"event", "progress"},
                {"bytes", progress.done.value()},
                {"total", progress.total.value()},
                {"seconds", progress.seconds},
                {"bytes_per_second", progress.bytes_per_second()},
                {"seconds_left", progress.seconds_left()}});
  };
}

}  // namespace quire
