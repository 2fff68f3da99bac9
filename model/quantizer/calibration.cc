// Where calibration tokens come from, and how well a model predicts text.

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/engine.h"
#include "quire/model/quantizer.h"

namespace quire {

absl::StatusOr<std::vector<std::vector<TokenId>>> SampleCalibration(
    Session& session, uint32_t count, uint32_t length, uint64_t seed,
    const std::function<void(uint32_t done, uint32_t total)>& progress) {
  std::mt19937_64 random(seed);
  Engine engine(&session.decoder(), &session.cache(), count);
  std::vector<std::vector<TokenId>> sequences(count);
  for (uint32_t i = 0; i < count; ++i) {
    sequences[i].reserve(length);
    sequences[i].push_back(
        static_cast<TokenId>(random() % session.config().vocab_size));
    Request request;
    request.prompt = sequences[i];
    request.max_new_tokens = length - 1;
    request.sampling.temperature = 1;
    request.sampling.seed = random();
    QUIRE_RETURN_IF_ERROR(engine.Add(std::move(request)).status());
  }
  while (!engine.done()) {
    QUIRE_RETURN_IF_ERROR(engine.Step());
    if (progress) {
      const uint64_t tokens = engine.statistics().decoded_tokens;
      progress(static_cast<uint32_t>(tokens / std::max(count, 1u)), length - 1);
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    const std::vector<TokenId>& written = engine.completions()[i].tokens;
    sequences[i].insert(sequences[i].end(), written.begin(), written.end());
  }
  return sequences;
}

std::vector<std::vector<TokenId>> CutCalibration(
    std::span<const TokenId> tokens, uint32_t count, uint32_t length) {
  const size_t pieces = std::min<size_t>(
      count, (tokens.size() + length - 1) / std::max(length, 1u));
  std::vector<std::vector<TokenId>> sequences;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t from = tokens.size() * i / pieces;
    const std::span<const TokenId> piece =
        tokens.subspan(from, std::min<size_t>(length, tokens.size() - from));
    sequences.emplace_back(piece.begin(), piece.end());
  }
  return sequences;
}

absl::StatusOr<double> ComputePerplexity(
    Session& session, std::span<const TokenId> tokens, uint32_t window,
    const std::function<void(uint64_t done, uint64_t total)>& progress) {
  const uint64_t windows = window < 2 ? 0 : tokens.size() / window;
  if (windows == 0)
    return absl::InvalidArgumentError(absl::StrCat("a text of ", tokens.size(),
                                                   " tokens has no window of ",
                                                   window, " (2 at least)"));
  const size_t vocab = session.config().vocab_size;
  double negative_log_likelihood = 0;
  for (uint64_t w = 0; w < windows; ++w) {
    const std::span<const TokenId> text = tokens.subspan(w * window, window);
    size_t at = 0;
    QUIRE_RETURN_IF_ERROR(
        session.ComputeLogits(text, [&](std::span<const float> rows) {
          for (; !rows.empty(); rows = rows.subspan(vocab), ++at) {
            if (at + 1 == text.size()) continue;
            const std::span<const float> logits = rows.first(vocab);
            const double largest =
                *std::max_element(logits.begin(), logits.end());
            double sum = 0;
            for (const float logit : logits) sum += std::exp(logit - largest);
            negative_log_likelihood +=
                largest + std::log(sum) -
                logits[static_cast<size_t>(text[at + 1])];
          }
          return absl::OkStatus();
        }));
    if (progress) progress(w + 1, windows);
  }
  const double perplexity = std::exp(
      negative_log_likelihood / static_cast<double>(windows * (window - 1)));
  if (!std::isfinite(perplexity))
    return absl::InternalError(
        "the model's logits are not all finite: it has no perplexity");
  return perplexity;
}

}  // namespace quire
