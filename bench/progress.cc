#include "bench/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"

namespace quire {
namespace {

constexpr double kQuietSeconds = 2;
constexpr double kSecondsPerDrawing = 0.25;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

std::string RemainingTime(double elapsed, double done, double total) {
  if (done <= 0) return "?";
  const double left = std::ceil(elapsed * (total - done) / done);
  if (left < 120) return absl::StrFormat("%.0f s", left);
  return absl::StrFormat("%.0f min", std::ceil(left / 60));
}

ProgressLine::ProgressLine()
    : terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_) {}

void ProgressLine::Clear() {
  if (!visible_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  visible_ = false;
}

void ProgressLine::Update(const std::string& what, double done, double total) {
  if (!terminal_) return;
  const double elapsed = SecondsSince(start_);
  if (elapsed < kQuietSeconds) return;
  if (visible_ && SecondsSince(drawn_) < kSecondsPerDrawing) return;
  std::fprintf(stderr, "\r\033[K%s: %.0f %%, %s left", what.c_str(),
               total > 0 ? 100 * done / total : 100,
               RemainingTime(elapsed, done, total).c_str());
  std::fflush(stderr);
  drawn_ = std::chrono::steady_clock::now();
  visible_ = true;
}

}  // namespace quire
