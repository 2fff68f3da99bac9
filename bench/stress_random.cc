#include "bench/stress_random.h"

#include <cmath>

namespace quire {

double StressRandom::Uniform() {
  return static_cast<double>(random_() >> 11) * 0x1p-53;
}

double StressRandom::Exponential(double mean) {
  return -mean * std::log1p(-Uniform());
}

double StressRandom::Normal() {  // Box and Muller
  const double radius = std::sqrt(2 * Exponential(1));
  return radius * std::cos(2 * M_PI * Uniform());
}

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
double StressRandom::Gamma(double shape, double scale) {
  if (shape < 1)
    return Gamma(shape + 1, scale) * std::pow(1 - Uniform(), 1 / shape);
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = Normal();
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    const double u = 1 - Uniform();
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v))
      return d * v * scale;
  }
}

double StressRandom::Weibull(double shape, double scale) {
  return scale * std::pow(Exponential(1), 1 / shape);
}

}  // namespace quire
