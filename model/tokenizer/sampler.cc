#include "quire/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_format.h"

namespace quire {
namespace {

// e to the power of x for x <= 0. std::exp differs between C libraries in the
// last bit, and that bit may decide a draw. Only additions, multiplications and
// scaling by powers of two: the same everywhere (this file is compiled without
// contraction to fused operations), and within a few units in the last place.
double PortableExp(double x) {
  constexpr double kLog2E = 1.4426950408889634074;
  // ln 2 in two parts; the first has zeros at its end, so that k times it is
  // exact.
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  if (x < -740) return 0;  // below the smallest double
  const double k = std::floor(x * kLog2E + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;  // |r| <= ln 2 / 2
  // Taylor's series; the 14th term is below 2^-60.
  double sum = 1;
  for (int n = 14; n >= 1; --n) sum = 1 + r / n * sum;
  return std::ldexp(sum, static_cast<int>(k));
}

// Uniform in [0, 1), from the upper 53 bits.
double Uniform(std::mt19937_64* random) {
  return static_cast<double>((*random)() >> 11) * 0x1p-53;
}

absl::Status OutOfRange(const char* option, double value, const char* range) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g, not %s", option, value, range));
}

}  // namespace

absl::Status SamplingOptions::Validate() const {
  // Written so that NaN is outside every range.
  if (!(temperature >= 0) || std::isinf(temperature)) {
    return OutOfRange("temperature", temperature, "0 or more, and finite");
  }
  if (top_k < 0) {
    return OutOfRange("top_k", static_cast<double>(top_k), "0 or more");
  }
  if (!(top_p > 0 && top_p <= 1)) {
    return OutOfRange("top_p", top_p, "above 0 and up to 1");
  }
  if (!(min_p >= 0 && min_p <= 1)) {
    return OutOfRange("min_p", min_p, "from 0 to 1");
  }
  if (!(repetition_penalty > 0) || std::isinf(repetition_penalty)) {
    return OutOfRange("repetition_penalty", repetition_penalty,
                      "above 0, and finite");
  }
  return absl::OkStatus();
}

Sampler::Sampler(const SamplingOptions& options)
    : options_(options), random_(options.seed) {}

absl::StatusOr<TokenId> Sampler::Sample(std::span<const float> logits,
                                        std::span<const TokenId> history) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  scores_.assign(logits.begin(), logits.end());
  for (float& score : scores_) {
    if (std::isnan(score)) score = kNever;
  }
  if (options_.repetition_penalty != 1) {
    for (const TokenId token : history) {
      if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
      // From the logit, not the score: a token counts once.
      const float logit = logits[static_cast<size_t>(token)];
      if (std::isnan(logit)) continue;
      const double penalty = options_.repetition_penalty;
      scores_[static_cast<size_t>(token)] =
          static_cast<float>(logit < 0 ? logit * penalty : logit / penalty);
    }
  }

  for (const TokenId token : options_.suppressed_tokens) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    scores_[static_cast<size_t>(token)] = kNever;
  }

  const auto best = std::max_element(scores_.begin(), scores_.end());
  if (best == scores_.end() || *best == kNever) {
    return absl::InternalError(
        absl::StrFormat("no token can be chosen: all %d logits are NaN or -inf",
                        logits.size()));
  }
  if (options_.temperature == 0) {
    return static_cast<TokenId>(best - scores_.begin());
  }
  return Draw(*best);
}

TokenId Sampler::Draw(float best) {
  // The weight of a token, relative to the most probable one's.
  const auto weight = [this, best](uint32_t id) -> double {
    const float score = scores_[id];
    // Also where both are +inf, whose difference is NaN.
    if (score == best) return 1;
    return PortableExp(
        (static_cast<double>(score) - static_cast<double>(best)) /
        options_.temperature);
  };
  const auto before = [this](uint32_t a, uint32_t b) {
    return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
  };

  order_.clear();
  for (uint32_t id = 0; id < scores_.size(); ++id) {
    if (scores_[id] > -std::numeric_limits<float>::infinity()) {
      order_.push_back(id);
    }
  }
  if (options_.top_k > 0 &&
      static_cast<uint64_t>(options_.top_k) < order_.size()) {
    const auto end = order_.begin() + options_.top_k;
    std::nth_element(order_.begin(), end, order_.end(), before);
    order_.erase(end, order_.end());
  }
  if (options_.top_p < 1) KeepTopP(weight, before);
  if (options_.min_p > 0) {
    std::erase_if(order_,
                  [&](uint32_t id) { return weight(id) < options_.min_p; });
  }
  // What nth_element and heaps leave is in no order that a standard fixes.
  std::sort(order_.begin(), order_.end());

  double total = 0;
  for (const uint32_t id : order_) total += weight(id);
  const double target = Uniform(&random_) * total;
  double sum = 0;
  for (const uint32_t id : order_) {
    sum += weight(id);
    if (target < sum) return static_cast<TokenId>(id);
  }
  // Rounding may bring the target up to the sum.
  return static_cast<TokenId>(order_.back());
}

// The fewest tokens, most probable first, whose probabilities reach top_p.
template <typename Weight, typename Before>
void Sampler::KeepTopP(Weight weight, Before before) {
  std::sort(order_.begin(), order_.end());
  double total = 0;
  for (const uint32_t id : order_) total += weight(id);
  // A heap gives the few that are kept without sorting the vocabulary.
  const auto after = [&before](uint32_t a, uint32_t b) { return before(b, a); };
  std::make_heap(order_.begin(), order_.end(), after);
  auto end = order_.end();
  double sum = 0;
  while (end != order_.begin() && sum < options_.top_p * total) {
    std::pop_heap(order_.begin(), end, after);
    --end;
    sum += weight(*end);
  }
  order_.erase(order_.begin(), end);
}

}  // namespace quire
