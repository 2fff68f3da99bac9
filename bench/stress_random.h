// Random numbers for loads that others are to see again.

#ifndef QUIRE_BENCH_STRESS_RANDOM_H_
#define QUIRE_BENCH_STRESS_RANDOM_H_

#include <cstdint>
#include <random>

namespace quire {

// Draws that do not differ between standard libraries for one seed.
class StressRandom {
 public:
  explicit StressRandom(uint64_t seed) : random_(seed) {}
  double Uniform();  // [0, 1)
  double Exponential(double mean);
  double Normal();
  double Gamma(double shape, double scale);
  double Weibull(double shape, double scale);

 private:
  std::mt19937_64 random_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_STRESS_RANDOM_H_
