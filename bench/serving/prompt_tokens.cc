#include "bench/serving/prompt_tokens.h"

namespace quire {

std::span<const int32_t> PromptTokens::Of(RequestId id) {
  auto& [request, tokens] = texts_.at(id);
  if (!tokens.empty()) return tokens;
  tokens.reserve(request->tokens());
  for (uint64_t at = 0; at < request->tokens(); ++at) {
    const uint64_t block = at / kPrefixBlock;
    if (at < request->prompt && block < request->blocks.size()) {
      tokens.push_back(static_cast<int32_t>(
          request->blocks[block] * kPrefixBlock + at % kPrefixBlock));
    } else {
      // Negative, so unlike every block; the first one tells requests apart.
      const uint64_t own = id.value() * 1'000'003 + at;
      tokens.push_back(-1 - static_cast<int32_t>(own % INT32_MAX));
    }
  }
  return tokens;
}

}  // namespace quire
