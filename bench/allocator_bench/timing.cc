#include "bench/allocator_bench/timing.h"

#include <sched.h>

#include <algorithm>
#include <ctime>

namespace quire {
namespace {

uint64_t Nanoseconds(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000 +
         static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

uint64_t ThreadNanoseconds() { return Nanoseconds(CLOCK_THREAD_CPUTIME_ID); }
uint64_t WallNanoseconds() { return Nanoseconds(CLOCK_MONOTONIC); }

const std::vector<int>& AllowedProcessors() {
  static const std::vector<int>* const processors = [] {
    auto* const allowed = new std::vector<int>;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
      for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (CPU_ISSET(i, &set)) allowed->push_back(i);
      }
    }
    if (allowed->empty()) allowed->push_back(0);
    return allowed;
  }();
  return *processors;
}

void PinThread(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  (void)sched_setaffinity(0, sizeof(one), &one);
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace quire
