// How far a long run is and how long it will take, for whoever waits at a
// terminal: one line on stderr, from the third second on.

#ifndef QUIRE_BENCH_PROGRESS_H_
#define QUIRE_BENCH_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace quire {

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `done` of `total` parts of the whole run. Draws at most a few times a
  // second, and nothing where stderr is no terminal.
  void Update(const std::string& what, double done, double total);
  // Takes the line away, as before something is printed where it stands; the
  // next Update draws it again.
  void Clear();

 private:
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
  bool visible_ = false;
};

// "17 s", "3 min": what is left after `elapsed` seconds for a part of the work,
// the rest taking as long.
std::string RemainingTime(double elapsed, double done, double total);

}  // namespace quire

#endif  // QUIRE_BENCH_PROGRESS_H_
