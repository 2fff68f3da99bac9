// Rows that tell whose tokens they belong to: what a test writes for token t is
// a hash of tokens 0 to t, as the rows of a model are a function of them. So
// rows that are shared rightly are right for everybody, and no others are.

#ifndef QUIRE_PAGING_KV_CACHE_SHARE_TESTING_H_
#define QUIRE_PAGING_KV_CACHE_SHARE_TESTING_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "paging/kv_cache_testing.h"
#include "quire/paging/kv_cache.h"

namespace quire {

using Tokens = std::vector<int32_t>;

inline Tokens TokensFrom(int32_t first, size_t count) {
  Tokens tokens(count);
  for (size_t i = 0; i < count; ++i)
    tokens[i] = first + static_cast<int32_t>(i);
  return tokens;
}

inline Tokens Concat(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The addresses of a sequence, which stay when the id is dead.
class TokenRows {
 public:
  TokenRows(const SequenceCache& cache, SequenceId sequence) {
    for (uint32_t layer = 0; layer < cache.layout().layers(); ++layer) {
      KvLayerView view = *cache.View(sequence, layer);
      if (view.block_table != nullptr) {
        const uint64_t rows = uint64_t{1} << view.block_shift;
        tables_.push_back(std::make_shared<const std::vector<uint32_t>>(
            view.block_table,
            view.block_table + (*cache.Length(sequence) + rows - 1) / rows));
        view.block_table = tables_.back()->data();
      }
      views_.push_back(view);
    }
  }

  void Write(const Tokens& tokens, uint64_t from) const {
    Visit(tokens, from, [](uint32_t* row, uint32_t hash) {
      for (uint32_t i = 0; i < kTestElements; ++i) row[i] = hash + i;
      return true;
    });
  }
  // The first token whose rows are not its own; their number if none is. Where
  // layers have windows, of the rows that a sequence of `seen_from` tokens
  // sees.
  uint64_t FirstWrong(const Tokens& tokens, uint64_t seen_from = 0) const {
    return Visit(
        tokens, 0,
        [](const uint32_t* row, uint32_t hash) {
          for (uint32_t i = 0; i < kTestElements; ++i)
            if (row[i] != hash + i) return false;
          return true;
        },
        seen_from);
  }

 private:
  template <typename Visitor>
  uint64_t Visit(const Tokens& tokens, uint64_t from, Visitor visit,
                 uint64_t seen_from = 0) const {
    uint64_t hash = 0x9e3779b97f4a7c15;
    for (uint64_t t = 0; t < tokens.size(); ++t) {
      hash = (hash ^ static_cast<uint32_t>(tokens[t])) * 0xbf58476d1ce4e5b9;
      hash ^= hash >> 29;
      if (t < from) continue;
      uint32_t side = static_cast<uint32_t>(hash >> 16);
      for (const KvLayerView& view : views_) {
        if (view.window != 0 && t >= view.sinks &&
            t + view.window < seen_from) {
          side += 2;
          continue;
        }
        if (!visit(view.KeyRow(t).host_pointer<uint32_t>(), side++) ||
            !visit(view.ValueRow(t).host_pointer<uint32_t>(), side++))
          return t;
      }
    }
    return tokens.size();
  }

  // Of blocks, which the cache may change.
  std::vector<std::shared_ptr<const std::vector<uint32_t>>> tables_;
  std::vector<KvLayerView> views_;
};

// Publishes what the sequence has, after writing it from `from` on.
inline void WriteAndPublish(KvCache* cache, SequenceId sequence,
                            const Tokens& tokens, uint64_t from = 0) {
  TokenRows(*cache, sequence).Write(tokens, from);
  EXPECT_TRUE(cache->Publish(sequence, tokens).ok());
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
}

inline PromptAdmission AdmitPrompt(KvCache* cache, const Tokens& tokens,
                                   const PromptOptions& options) {
  const auto admission = cache->AdmitPrompt(tokens, options);
  EXPECT_TRUE(admission.ok()) << admission.status();
  EXPECT_TRUE(cache->CheckInvariants().ok()) << cache->CheckInvariants();
  return admission.value_or(PromptAdmission());
}

}  // namespace quire

#endif  // QUIRE_PAGING_KV_CACHE_SHARE_TESTING_H_
