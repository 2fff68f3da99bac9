#include "bench/serving/servegen_trace.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "bench/serving/trace_lines.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_text.h"

namespace quire {
namespace {

constexpr double kWindowSeconds = 600;

// How often each length was seen.
class Histogram {
 public:
  // "{12: 0.25, 80: 0.75}", or "{}". nullopt for anything else.
  static std::optional<Histogram> Parse(const std::string& text) {
    absl::string_view inner = text;
    if (!absl::ConsumePrefix(&inner, "{") || !absl::ConsumeSuffix(&inner, "}"))
      return std::nullopt;
    Histogram histogram;
    double sum = 0;
    for (const absl::string_view entry :
         absl::StrSplit(inner, ',', absl::SkipWhitespace())) {
      const std::vector<absl::string_view> parts = absl::StrSplit(entry, ':');
      double length = 0;
      double weight = 0;
      if (parts.size() != 2 || !absl::SimpleAtod(parts[0], &length) ||
          !absl::SimpleAtod(parts[1], &weight) ||
          !(length >= 0 && length <= 1e9) || !(weight >= 0 && weight <= 1e9))
        return std::nullopt;
      if (weight == 0) continue;
      sum += weight;
      histogram.sums_.push_back(sum);
      histogram.lengths_.push_back(
          std::max<uint64_t>(1, static_cast<uint64_t>(length)));
    }
    return histogram;
  }

  bool empty() const { return lengths_.empty(); }
  // REQUIRES: !empty().
  uint64_t Draw(StressRandom* random) const {
    const auto at = std::upper_bound(sums_.begin(), sums_.end(),
                                     random->Uniform() * sums_.back());
    const auto index = std::min<size_t>(static_cast<size_t>(at - sums_.begin()),
                                        lengths_.size() - 1);
    return lengths_[index];
  }

 private:
  std::vector<uint64_t> lengths_;
  std::vector<double> sums_;  // of the weights so far
};

struct Lengths {
  Histogram prompt;
  Histogram output;
};
using Dataset = std::map<double, Lengths>;  // by the start of the window

absl::StatusOr<Dataset> ReadDataset(const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const nlohmann::json root, ReadJsonText(path));
  if (!root.is_object())
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no JSON object"));
  Dataset dataset;
  for (const auto& [key, window] : root.items()) {
    const auto error = [&, key = key](std::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": window ", key, ": ", std::string(what)));
    };
    double start = 0;
    if (!absl::SimpleAtod(key, &start) || !(start >= 0 && start < 1e12))
      return error("is no time");
    const auto histogram =
        [&, &window = window](const char* name) -> std::optional<Histogram> {
      if (!window.is_object()) return std::nullopt;
      const auto it = window.find(name);
      if (it == window.end() || !it->is_string()) return std::nullopt;
      return Histogram::Parse(it->template get<std::string>());
    };
    for (const char* name : {"input_tokens", "output_tokens"}) {
      if (window.is_object() && !window.contains(name))
        return error(absl::StrCat(name,
                                  " is missing: only clients of text are "
                                  "read"));
    }
    auto prompt = histogram("input_tokens");
    if (!prompt) return error("input_tokens is no histogram");
    auto output = histogram("output_tokens");
    if (!output) return error("output_tokens is no histogram");
    if (prompt->empty() || output->empty()) continue;
    dataset.emplace(start, Lengths{*std::move(prompt), *std::move(output)});
  }
  return dataset;
}

// One line of a client's arrivals.
struct Window {
  double start;
  double rate;
  bool gamma;  // else Weibull
  double shape;
  double scale;
};

absl::StatusOr<Window> ParseWindow(const TraceLines& lines) {
  QUIRE_ASSIGN_OR_RETURN(const auto fields, lines.Fields(6));
  Window window = {};
  QUIRE_ASSIGN_OR_RETURN(window.start, lines.Number(fields[0]));
  QUIRE_ASSIGN_OR_RETURN(window.rate, lines.Number(fields[1]));
  QUIRE_ASSIGN_OR_RETURN(window.shape, lines.Number(fields[4]));
  QUIRE_ASSIGN_OR_RETURN(window.scale, lines.Number(fields[5]));
  if (window.rate == 0) return window;
  window.gamma = fields[3] == "Gamma";
  if (!window.gamma && fields[3] != "Weibull")
    return lines.Error(
        absl::StrCat("'", fields[3], "' is neither Gamma nor Weibull"));
  if (window.shape == 0 || window.scale == 0)
    return lines.Error("arrivals of shape or scale 0");
  return window;
}

std::string DatasetPath(const std::string& trace) {
  constexpr std::string_view kEnd = "-trace.csv";
  return trace.substr(0, trace.size() - kEnd.size()) + "-dataset.json";
}

absl::Status ReadClient(const std::string& path, const TraceOptions& options,
                        StressRandom* random,
                        std::vector<StressRequest>* requests) {
  QUIRE_ASSIGN_OR_RETURN(const Dataset dataset, ReadDataset(DatasetPath(path)));
  QUIRE_ASSIGN_OR_RETURN(TraceLines lines, TraceLines::Open(path));
  uint64_t drawn = 0;
  while (drawn < options.max_requests && lines.Next()) {
    QUIRE_ASSIGN_OR_RETURN(const Window window, ParseWindow(lines));
    auto lengths = dataset.upper_bound(window.start);
    if (window.rate == 0 || lengths == dataset.begin()) continue;
    --lengths;
    double at = window.start;
    while (drawn < options.max_requests) {
      at += window.gamma ? random->Gamma(window.shape, window.scale)
                         : random->Weibull(window.shape, window.scale);
      if (!(at < window.start + kWindowSeconds)) break;
      StressRequest request;
      request.arrival = at;
      request.prompt = lengths->second.prompt.Draw(random);
      request.output = lengths->second.output.Draw(random);
      requests->push_back(std::move(request));
      ++drawn;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<StressRequest>> ReadServegen(
    const std::string& path, const TraceOptions& options) {
  std::vector<std::string> traces;
  if (std::filesystem::is_directory(path)) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("chunk-") && name.ends_with("-trace.csv"))
        traces.push_back(entry.path().string());
    }
    if (traces.empty())
      return absl::NotFoundError(
          absl::StrCat(path, ": has no file chunk-N-trace.csv"));
    std::sort(traces.begin(), traces.end());
  } else {
    traces.push_back(path);
  }
  StressRandom random(options.seed);
  std::vector<StressRequest> requests;
  for (const std::string& trace : traces)
    QUIRE_RETURN_IF_ERROR(ReadClient(trace, options, &random, &requests));
  if (requests.size() > options.max_requests) {
    std::stable_sort(requests.begin(), requests.end(),
                     [](const StressRequest& a, const StressRequest& b) {
                       return a.arrival < b.arrival;
                     });
    requests.resize(options.max_requests);
  }
  return requests;
}

}  // namespace quire
