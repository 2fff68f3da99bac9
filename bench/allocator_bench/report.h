// What was measured: figures with their bars, as a table and as JSON.

#ifndef QUIRE_BENCH_ALLOCATOR_BENCH_REPORT_H_
#define QUIRE_BENCH_ALLOCATOR_BENCH_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace quire {

// One measured number and what it is held against. The better direction is down
// unless `higher_is_better`.
struct Figure {
  std::string name;
  std::string unit;  // "ns", "x" (a ratio), "calls"
  double value = 0;
  // Of mimalloc, for the same sequence in the same run.
  std::optional<double> mimalloc;
  std::optional<double> bar;  // what has to be reached
  std::optional<double> aim;  // what is wished for
  // The most that value / mimalloc may be.
  std::optional<double> mimalloc_bar;
  bool higher_is_better = false;

  std::optional<double> ratio_to_mimalloc() const;
  // "aim", "bar" or "missed": the worst of what it is held against. Empty where
  // there is no bar.
  std::string Verdict() const;
};

// Figures that belong together, measured in one go.
struct Section {
  std::string name;    // "hit", for --section
  std::string title;   // what is done, in words
  std::string method;  // how the numbers came about, and what was left out
  std::vector<Figure> figures;
};

// The machine, the date, and everything that decides what the figures mean.
struct Circumstances {
  std::string machine;  // processor, cores, memory, kernel
  std::string compiler;
  std::string date;      // UTC
  std::string load;      // load average at start: others may be at work
  std::string mimalloc;  // its version, or why it is not there
  uint64_t seed = 0;
  int repetitions = 0;
};
Circumstances DescribeCircumstances();

std::string FormatReport(const Circumstances& circumstances,
                         const std::vector<Section>& sections);
nlohmann::json ReportToJson(const Circumstances& circumstances,
                            const std::vector<Section>& sections);

}  // namespace quire

#endif  // QUIRE_BENCH_ALLOCATOR_BENCH_REPORT_H_
