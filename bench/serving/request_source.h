// Requests to be served: from a trace, or drawn at random.

#ifndef QUIRE_BENCH_SERVING_REQUEST_SOURCE_H_
#define QUIRE_BENCH_SERVING_REQUEST_SOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/stress_random.h"

namespace quire {

struct StressRequest {
  double arrival = 0;  // seconds, or steps of the random requests
  uint64_t prompt = 0;
  uint64_t output = 0;
  // The contents of the prompt: one id for each kPrefixBlock tokens, equal ids
  // for equal tokens behind equal prefixes. Empty: unlike any other.
  std::vector<uint32_t> blocks;

  uint64_t tokens() const { return prompt + output; }
};

// Tokens that an id of the mooncake traces stands for.
inline constexpr uint64_t kPrefixBlock = 512;

struct RandomRequestOptions {
  uint64_t requests = 2000;
  double arrivals_per_step = 0.15;
  // Means of exponential lengths.
  double prompt_mean = 1155;
  double output_mean = 211;
  uint64_t max_sequence_length = 8192;  // longer ones are cut
  uint64_t seed = 1;
};
std::vector<StressRequest> MakeRandomRequests(
    const RandomRequestOptions& options);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_REQUEST_SOURCE_H_
