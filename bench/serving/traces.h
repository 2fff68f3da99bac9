// Public traces of requests, as their authors publish them.
//
//   azure     AzureLLMInferenceTrace_*.csv: time, prompt and output lengths
//   mooncake  *.jsonl: the same with an id for each 512 tokens of the prompt
//   vidur     *.csv of lengths: arrivals are drawn at a mean rate, where there
//             is no column of them
//   servegen  chunk-N-trace.csv with chunk-N-dataset.json beside it, or a
//   folder
//             of such pairs: rates and length histograms of clients, from which
//             requests are drawn
//
// Which of them a file is shows from its first line, or its name. Every error
// names the file, and the line where there is one.

#ifndef QUIRE_BENCH_SERVING_TRACES_H_
#define QUIRE_BENCH_SERVING_TRACES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/serving/request_source.h"

namespace quire {

struct TraceOptions {
  // The first so many; by default all, and 10,000 of servegen.
  uint64_t max_requests = UINT64_MAX;
  double arrivals_per_second = 1;  // of traces without times
  uint64_t seed = 1;               // of what is drawn
};

// In the order of arrival, the first at 0 seconds.
absl::StatusOr<std::vector<StressRequest>> ReadTrace(
    const std::string& path, const TraceOptions& options);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_TRACES_H_
