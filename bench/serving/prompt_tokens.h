// The tokens of requests whose contents are known by block: equal blocks have
// equal tokens, and what is decoded is like nothing else.

#ifndef QUIRE_BENCH_SERVING_PROMPT_TOKENS_H_
#define QUIRE_BENCH_SERVING_PROMPT_TOKENS_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "bench/serving/request_source.h"
#include "quire/paging/victim_policy.h"

namespace quire {

// Made when they are asked for, since those of all that wait are too many.
class PromptTokens {
 public:
  void Add(RequestId id, const StressRequest* request) {
    texts_[id].request = request;
  }
  void Remove(RequestId id) { texts_.erase(id); }
  // Prompt and output. REQUIRES: added and not removed.
  std::span<const int32_t> Of(RequestId id);

 private:
  struct Text {
    const StressRequest* request = nullptr;
    std::vector<int32_t> tokens;
  };
  std::map<RequestId, Text> texts_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_PROMPT_TOKENS_H_
