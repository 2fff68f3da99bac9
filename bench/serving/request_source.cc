#include "bench/serving/request_source.h"

#include <algorithm>

#include "quire/alloc/units.h"

namespace quire {

std::vector<StressRequest> MakeRandomRequests(
    const RandomRequestOptions& options) {
  StressRandom random(options.seed);
  // At least 1, and `rest` tokens below the longest sequence.
  const auto length = [&](double mean, uint64_t rest) {
    const uint64_t longest =
        SaturatingSubtract(options.max_sequence_length, rest);
    return std::clamp(
        static_cast<uint64_t>(std::min(random.Exponential(mean), 1e15)),
        uint64_t{1}, std::max(longest, uint64_t{1}));
  };
  std::vector<StressRequest> requests(options.requests);
  double arrival = 0;
  for (StressRequest& request : requests) {
    arrival += random.Exponential(1 / options.arrivals_per_step);
    request.arrival = arrival;
    request.output = length(options.output_mean, 1);
    request.prompt = length(options.prompt_mean, request.output + 1);
  }
  return requests;
}

}  // namespace quire
