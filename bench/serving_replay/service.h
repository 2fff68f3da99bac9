// How well requests were served: what their users waited for, and how many were
// served as fast as was promised.

#ifndef QUIRE_BENCH_SERVING_REPLAY_SERVICE_H_
#define QUIRE_BENCH_SERVING_REPLAY_SERVICE_H_

#include <cstdint>
#include <vector>

#include "bench/serving/simulation.h"

namespace quire {

// Of some figure over all requests: nearest ranks.
struct Percentiles {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};
// All 0 where there are no values.
Percentiles PercentilesOf(std::vector<double> values);

// What is promised, in seconds.
struct ServiceObjective {
  double time_to_first_token = 0;
  double time_per_output_token = 0;
};

struct ServiceQuality {
  Percentiles time_to_first_token;
  // Of requests with more than one token.
  Percentiles time_per_output_token;
  uint64_t kept = 0;      // requests for which both promises were kept
  double attainment = 0;  // kept, of all
  // In a second of the virtual clock, from the first arrival to the last token.
  double requests_per_second = 0;
  double tokens_per_second = 0;  // decoded
  double goodput = 0;            // requests of `kept`
};
ServiceQuality Judge(const std::vector<RequestTiming>& timings,
                     const ServiceObjective& objective);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_REPLAY_SERVICE_H_
