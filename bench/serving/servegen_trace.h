// Requests drawn from ServeGen's statistics of production clients.

#ifndef QUIRE_BENCH_SERVING_SERVEGEN_TRACE_H_
#define QUIRE_BENCH_SERVING_SERVEGEN_TRACE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/serving/traces.h"

namespace quire {

// `path` is a chunk-N-trace.csv or a folder of them. Each client draws its
// arrivals from the renewal process of each window of ten minutes, and lengths
// from the last histograms before. The first max_requests of all clients
// together. Not sorted.
absl::StatusOr<std::vector<StressRequest>> ReadServegen(
    const std::string& path, const TraceOptions& options);

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_SERVEGEN_TRACE_H_
