#include "bench/serving_replay/service.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace quire {

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const auto rank = [&](double share) {
    return values[static_cast<size_t>(std::ceil(share * count)) - 1];
  };
  return {std::accumulate(values.begin(), values.end(), 0.0) / count, rank(0.5),
          rank(0.9), rank(0.99), values.back()};
}

ServiceQuality Judge(const std::vector<RequestTiming>& timings,
                     const ServiceObjective& objective) {
  ServiceQuality quality;
  if (timings.empty()) return quality;
  std::vector<double> first;
  std::vector<double> between;
  double begin = timings.front().arrival;
  double end = begin;
  double tokens = 0;
  for (const RequestTiming& timing : timings) {
    first.push_back(timing.time_to_first_token());
    if (timing.output > 1) between.push_back(timing.time_per_output_token());
    if (timing.time_to_first_token() <= objective.time_to_first_token &&
        timing.time_per_output_token() <= objective.time_per_output_token) {
      ++quality.kept;
    }
    begin = std::min(begin, timing.arrival);
    end = std::max(end, timing.last_token);
    tokens += static_cast<double>(timing.output);
  }
  quality.time_to_first_token = PercentilesOf(std::move(first));
  quality.time_per_output_token = PercentilesOf(std::move(between));
  const auto count = static_cast<double>(timings.size());
  const auto kept = static_cast<double>(quality.kept);
  quality.attainment = kept / count;
  if (end > begin) {
    quality.requests_per_second = count / (end - begin);
    quality.tokens_per_second = tokens / (end - begin);
    quality.goodput = kept / (end - begin);
  }
  return quality;
}

}  // namespace quire
