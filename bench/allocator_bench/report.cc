#include "bench/allocator_bench/report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace quire {
namespace {

// The rest of the first line of `file` that begins with `key`, less ": \t".
std::string LineOf(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const size_t start = line.find_first_not_of(": \t", key.size());
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

std::string Machine() {
  utsname system = {};
  uname(&system);
  return absl::StrFormat("%s, %d cores, %s of memory, Linux %s",
                         LineOf("/proc/cpuinfo", "model name"),
                         sysconf(_SC_NPROCESSORS_ONLN),
                         LineOf("/proc/meminfo", "MemTotal"), system.release);
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

std::string Load() {
  double loads[3] = {};
  if (getloadavg(loads, 3) != 3) return "unknown";
  return absl::StrFormat("%.1f %.1f %.1f", loads[0], loads[1], loads[2]);
}

std::string Cell(std::optional<double> value) {
  if (!value) return "";
  if (*value > 0 && *value < 0.001) return absl::StrFormat("%.1e", *value);
  if (*value > 0 && *value < 10) return absl::StrFormat("%.3f", *value);
  return absl::StrFormat("%.1f", *value);
}

// A bound with its direction: "<= 50".
std::string BoundCell(const Figure& figure, std::optional<double> bound) {
  if (!bound) return "";
  return absl::StrFormat("%s %g",
                         figure.higher_is_better ? ">=" : "<=", *bound);
}

nlohmann::json OrNull(std::optional<double> value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

std::optional<double> Figure::ratio_to_mimalloc() const {
  if (!mimalloc || *mimalloc <= 0) return std::nullopt;
  return value / *mimalloc;
}

std::string Figure::Verdict() const {
  const auto holds = [this](double bound) {
    return higher_is_better ? value >= bound : value <= bound;
  };
  const std::optional<double> ratio = ratio_to_mimalloc();
  const bool compared = mimalloc_bar && ratio;
  if (!bar && !compared) return "";
  if (bar && !holds(*bar)) return "missed";
  if (compared && *ratio > *mimalloc_bar) return "missed";
  return aim && holds(*aim) ? "aim" : "bar";
}

Circumstances DescribeCircumstances() {
  Circumstances circumstances;
  circumstances.machine = Machine();
  circumstances.compiler = __VERSION__;
  circumstances.date = Now();
  circumstances.load = Load();
  return circumstances;
}

std::string FormatReport(const Circumstances& circumstances,
                         const std::vector<Section>& sections) {
  std::string text = absl::StrFormat(
      "%s\ncompiler %s, mimalloc %s\n%s, load %s, seed %u, medians of %d\n",
      circumstances.machine, circumstances.compiler, circumstances.mimalloc,
      circumstances.date, circumstances.load, circumstances.seed,
      circumstances.repetitions);
  for (const Section& section : sections) {
    absl::StrAppendFormat(&text, "\n%s: %s\n(%s)\n", section.name,
                          section.title, section.method);
    size_t width = 0;
    for (const Figure& figure : section.figures) {
      width = std::max(width, figure.name.size());
    }
    absl::StrAppendFormat(&text, "  %-*s %-5s %9s %9s %7s %9s %9s\n",
                          static_cast<int>(width), "", "", "quire", "mimalloc",
                          "ratio", "bar", "aim");
    for (const Figure& figure : section.figures) {
      std::string line = absl::StrFormat(
          "  %-*s %-5s %9s %9s %7s %9s %9s  %s", static_cast<int>(width),
          figure.name, figure.unit, Cell(figure.value), Cell(figure.mimalloc),
          Cell(figure.ratio_to_mimalloc()), BoundCell(figure, figure.bar),
          BoundCell(figure, figure.aim), figure.Verdict());
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  }
  return text;
}

nlohmann::json ReportToJson(const Circumstances& circumstances,
                            const std::vector<Section>& sections) {
  nlohmann::json json = {{"machine", circumstances.machine},
                         {"compiler", circumstances.compiler},
                         {"mimalloc", circumstances.mimalloc},
                         {"date", circumstances.date},
                         {"load", circumstances.load},
                         {"seed", circumstances.seed},
                         {"repetitions", circumstances.repetitions},
                         {"sections", nlohmann::json::array()}};
  for (const Section& section : sections) {
    nlohmann::json figures = nlohmann::json::array();
    for (const Figure& figure : section.figures) {
      figures.push_back({{"name", figure.name},
                         {"unit", figure.unit},
                         {"quire", figure.value},
                         {"mimalloc", OrNull(figure.mimalloc)},
                         {"bar", OrNull(figure.bar)},
                         {"aim", OrNull(figure.aim)},
                         {"mimalloc_bar", OrNull(figure.mimalloc_bar)},
                         {"higher_is_better", figure.higher_is_better},
                         {"verdict", figure.Verdict()}});
    }
    json["sections"].push_back({{"name", section.name},
                                {"title", section.title},
                                {"method", section.method},
                                {"figures", std::move(figures)}});
  }
  return json;
}

}  // namespace quire
