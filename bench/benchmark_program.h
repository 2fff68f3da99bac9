// The main of programs that are made of Google Benchmark's benchmarks.

#ifndef QUIRE_BENCH_BENCHMARK_PROGRAM_H_
#define QUIRE_BENCH_BENCHMARK_PROGRAM_H_

#include <benchmark/benchmark.h>

#include "bench/program.h"

namespace quire {

// Runs those that the options choose. Returns what main returns.
inline int RunBenchmarks(const char* program, int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return kWrongUsage;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return FinishOutput(program, 0);
}

}  // namespace quire

#endif  // QUIRE_BENCH_BENCHMARK_PROGRAM_H_
