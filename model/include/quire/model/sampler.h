// Chooses the next token from logits.

#ifndef QUIRE_MODEL_SAMPLER_H_
#define QUIRE_MODEL_SAMPLER_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/model/tokenizer.h"

namespace quire {

// The names and meanings are those of vLLM and transformers. Applied in this
// order: suppressed tokens, repetition penalty, temperature, top-k, top-p,
// min-p.
struct SamplingOptions {
  double temperature = 0;         // 0: greedy, the first of equal largest
  int64_t top_k = 0;              // 0: all
  double top_p = 1;               // (0, 1]
  double min_p = 0;               // [0, 1]; relative to the largest probability
  double repetition_penalty = 1;  // > 0; over prompt and output
  uint64_t seed = 0;
  std::vector<TokenId> suppressed_tokens;  // never chosen

  // kInvalidArgument that names the option outside its range.
  absl::Status Validate() const;
};

// One per sequence: the stream of random numbers is the sequence's own, so what
// else is in the batch changes nothing. The same seed gives the same tokens on
// every platform.
class Sampler {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit Sampler(const SamplingOptions& options);

  // `history`: the prompt and what was chosen so far. NaN logits are never
  // chosen; where all are NaN or -inf, kInternal. Of equal logits the lower id
  // comes first, also where top-k or top-p ends among them.
  absl::StatusOr<TokenId> Sample(std::span<const float> logits,
                                 std::span<const TokenId> history);

 private:
  // Draws by scores_, of which `best` is the largest.
  TokenId Draw(float best);
  template <typename Weight, typename Before>
  void KeepTopP(Weight weight, Before before);

  SamplingOptions options_;
  std::mt19937_64 random_;
  // Scratch, kept to avoid an allocation per token.
  std::vector<float> scores_;
  std::vector<uint32_t> order_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_SAMPLER_H_
