// Prompts of tests that draw at random what a cache is asked for.

#ifndef QUIRE_PAGING_TESTING_RANDOM_PROMPT_H_
#define QUIRE_PAGING_TESTING_RANDOM_PROMPT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// Mostly begins like one of the last texts of `history`, or with a part of it,
// so that some of its rows may be in the cache; at most `max_tokens` long.
template <typename Generator>
std::vector<int32_t> RandomPrompt(Generator* random,
                                  std::span<const std::vector<int32_t>> history,
                                  size_t max_tokens) {
  const auto below = [random](uint64_t n) { return (*random)() % n; };
  std::vector<int32_t> tokens;
  if (!history.empty() && below(4) != 0) {
    const uint64_t recent = std::min<uint64_t>(history.size(), 8);
    tokens = history[history.size() - 1 - below(recent)];
    if (below(2) == 0) tokens.resize(below(tokens.size() + 1));
  }
  const uint64_t more = below(60);
  for (uint64_t i = 0; i < more && tokens.size() < max_tokens; ++i)
    tokens.push_back(static_cast<int32_t>((*random)()));
  return tokens;
}

}  // namespace quire

#endif  // QUIRE_PAGING_TESTING_RANDOM_PROMPT_H_
