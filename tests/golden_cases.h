// Golden model cases: small checkpoints with reference logits and greedy tokens
// computed by transformers. The format is described in tests/golden/README.md.

#ifndef QUIRE_TESTS_GOLDEN_CASES_H_
#define QUIRE_TESTS_GOLDEN_CASES_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "quire/model/adapters.h"
#include "quire/model/model_weights.h"
#include "quire/model/session.h"
#include "quire/model/tokenizer.h"

namespace quire {

struct GoldenCase {
  std::string name;
  std::filesystem::path folder;
  std::filesystem::path model;    // the folder, or the file in it
  std::filesystem::path adapter;  // empty: none
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;
  double rtol = 0;
  LoadQuantization quantization = LoadQuantization::kNone;
  std::vector<float> logits;  // [prompt, vocab]
  size_t vocab = 0;
};

// The cases of a folder whose names begin with one of `prefixes` (all: ""), in
// order of names. Empty where the folder does not exist.
std::vector<std::filesystem::path> FindGoldenCases(
    const std::filesystem::path& root,
    const std::vector<std::string>& prefixes);

// Throws where the case itself is unreadable: a test that cannot run fails.
GoldenCase ReadGoldenCase(const std::filesystem::path& folder);

// The logits after each of `tokens`, [tokens, vocab]. Throws where they cannot
// be computed.
std::vector<float> AllLogits(Session& session,
                             const std::vector<TokenId>& tokens,
                             AdapterId adapter = AdapterId());
// The largest difference, as a part of the largest expected value. Throws where
// the sizes differ.
double RelativeError(const std::vector<float>& actual,
                     const std::vector<float>& expected);

}  // namespace quire

#endif  // QUIRE_TESTS_GOLDEN_CASES_H_
