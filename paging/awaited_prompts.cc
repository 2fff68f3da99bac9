#include "paging/awaited_prompts.h"

#include <array>
#include <cstring>

namespace quire {

template <typename Visit>
void AwaitedPrompts::ForEachChunk(std::span<const int32_t> tokens,
                                  Visit visit) const {
  constexpr size_t kChunkBytes = kChunkTokens * sizeof(int32_t);
  std::array<std::byte, sizeof(Hash128) + kChunkBytes> data;
  Hash128 hash;
  for (; tokens.size() >= kChunkTokens; tokens = tokens.subspan(kChunkTokens)) {
    std::memcpy(data.data(), &hash, sizeof(hash));
    std::memcpy(data.data() + sizeof(hash), tokens.data(), kChunkBytes);
    hash = SipHash128(key_, data);
    if (!visit(hash)) return;
  }
}

void AwaitedPrompts::Add(uint64_t turn, std::span<const int32_t> prompt) {
  ++prompts_;
  ForEachChunk(prompt, [&](const Hash128& hash) {
    turns_[hash].insert(turn);
    return true;
  });
}

void AwaitedPrompts::Remove(uint64_t turn, std::span<const int32_t> prompt) {
  --prompts_;
  ForEachChunk(prompt, [&](const Hash128& hash) {
    const auto found = turns_.find(hash);
    if (found == turns_.end()) return false;
    found->second.erase(turn);
    if (found->second.empty()) turns_.erase(found);
    return true;
  });
}

AwaitedPrompts::Found AwaitedPrompts::Find(
    std::span<const int32_t> tokens) const {
  Found result;
  ForEachChunk(tokens, [&](const Hash128& hash) {
    const auto found = turns_.find(hash);
    if (found == turns_.end()) return false;
    result.tokens += kChunkTokens;
    result.turn = *found->second.begin();
    return true;
  });
  return result;
}

}  // namespace quire
