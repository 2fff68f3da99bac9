// Continuous batching: requests in, tokens out as they are decoded.
//
// Each Step runs one Forward over what a Scheduler (quire/paging/scheduler.h)
// plans: one token for sequences that decode, chunks of prompts for the others.
// Where the cache runs out in mid-flight, the youngest sequence gives up its
// pages: it waits on the host where the cache has swap space for it, and else
// is computed again later. Its tokens are kept, so its output does not change.
//
// With EngineOptions::prepare_next the next step is prepared while the device
// computes this one, on the thread that calls Step, which would only wait
// (Decoder::Forward): who has ended is released, who comes next is admitted, or
// swapped in, and the cache maps what the next steps will need. So a step that
// decodes finds its pages mapped, and waits for no call that changes pages or
// addresses. The kernels that run meanwhile read and write rows of the batch's
// sequences, at addresses that were taken before. That is safe since none of
// these sequences is released, swapped out or stepped before the batch has
// ended; pages are mapped where none were, behind what the batch needs; and
// those that are unmapped belong to nobody, or lie behind windows of the batch,
// or beyond what its sequences need. Rows that are copied, for prompts that
// begin alike or for sequences that come back, go to pages of sequences that
// are not in the batch. It takes no further thread, so the hooks of the memory
// run on the thread that calls Step, as they do without.

#ifndef QUIRE_MODEL_ENGINE_H_
#define QUIRE_MODEL_ENGINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/model/adapters.h"
#include "quire/model/decoder.h"
#include "quire/model/sampler.h"
#include "quire/paging/batch_limit.h"
#include "quire/paging/scheduler.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

enum class FinishReason : uint8_t { kNone, kLength, kEos, kStopped };
const char* FinishReasonName(FinishReason reason);  // "length", "eos", ...

struct Request {
  std::vector<TokenId> prompt;  // at least one token
  uint64_t max_new_tokens = 0;
  // Of the prompt, which is computed once for all (vLLM's n): at least one.
  uint32_t continuations = 1;
  // Continuation i draws with the seed sampling.seed + i, modulo 2^64: its
  // tokens are those of a request of its own with that seed. Without a
  // temperature all are the same.
  SamplingOptions sampling;
  AdapterId adapter;  // in use until the request has ended
  // Of its keys and values: a max_cache_len of its own, and how long they stay
  // for prompts to come once the request has ended.
  SequenceOptions cache;
  // Ends after one of these, which is not part of the output.
  std::vector<TokenId> eos_tokens;
  // Called for each token of the output, from the thread that calls Step.
  // Returning false ends the continuation (FinishReason::kStopped).
  std::function<bool(TokenId token, uint32_t continuation)> on_token;
};

struct Completion {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::kNone;
};

struct EngineStatistics {
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;         // computed, recomputation included
  uint64_t cached_prompt_tokens = 0;  // not computed: the cache had their rows
  uint64_t decoded_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t swaps = 0;           // of these, to the host
  uint64_t forks = 0;           // continuations that took over their prompt
  uint64_t batch_halvings = 0;  // of what may run at once
  double prompt_seconds = 0;    // of steps that computed prompt tokens
  double decode_seconds = 0;    // of the others
  // Calls that changed pages or addresses (mapping_calls.h): those that a step
  // waited for, and those that were made while it was computed, or when all
  // requests had ended.
  uint64_t driver_calls = 0;
  uint64_t driver_calls_meanwhile = 0;
  uint64_t decode_steps = 0;          // that computed no prompt tokens
  uint64_t decode_steps_waiting = 0;  // of these, with driver_calls
  // What was refused while a step was computed. It is tried again before the
  // next one, where a refusal is the error of that step.
  uint64_t refused_preparations = 0;
};

struct EngineOptions {
  uint32_t max_sequences = 64;  // that run at once; at least one
  // Who gives way where memory is short: MakeVictimPolicy's names.
  std::string victim_policy = "youngest";
  BatchLimitOptions batch_limit;
  // The next step is prepared while one is computed. Requests are then admitted
  // one step ahead (SchedulerOptions::prepare_next), but where none run, at
  // once. What is mapped ahead is for the cache: PageAheadOptions.
  bool prepare_next = false;
};

// Not thread-safe.
class Engine {
 public:
  // With other options as they are by default. All must outlive the engine.
  // `adapters` null: requests use none.
  Engine(Decoder* decoder, SequenceCache* cache, uint32_t max_sequences,
         const AdapterSet* adapters = nullptr);
  // The same. Errors: kInvalidArgument for a policy that there is not, and for
  // levels out of order.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      Decoder* decoder, SequenceCache* cache, const EngineOptions& options,
      const AdapterSet* adapters = nullptr);
  // Sequences still running give their pages back.
  ~Engine();

  // Asked, with what is missing, where the oldest request lacks memory that no
  // other one holds; OK: there may be more now, and it is tried again. Null:
  // nobody is asked.
  void set_make_room(std::function<absl::Status(Bytes missing)> make_room) {
    make_room_ = std::move(make_room);
  }

  // The index in completions() of the request's first continuation, which the
  // others follow in their order. kInvalidArgument for an empty prompt, no
  // continuations, a token outside the vocabulary, more tokens than a sequence
  // may have, or a limit that the cache refuses (SequenceCache::CheckLimit);
  // kNotFound for an adapter that is not resident.
  absl::StatusOr<size_t> Add(Request request);
  // The time that SequenceOptions::retain_until is in; never less than before.
  void AdvanceClock(uint64_t now) { cache_->AdvanceClock(now); }
  bool done() const;
  // Advances every running sequence. On an error the engine is still valid; the
  // requests that were running are as before the call.
  absl::Status Step();
  absl::Status RunToCompletion();

  const std::vector<Completion>& completions() const { return completions_; }
  const EngineStatistics& statistics() const { return statistics_; }

 private:
  struct Sequence;

  // Without a scheduler.
  Engine(Decoder* decoder, SequenceCache* cache, const AdapterSet* adapters);
  absl::Status CreateScheduler(const EngineOptions& options);
  // Sequences with the same adapter side by side.
  std::vector<ScheduledTokens> GroupByAdapter(
      std::span<const ScheduledTokens> step) const;
  absl::StatusOr<std::span<const ScheduledTokens>> Schedule();
  // The batch of a step, and after it the next token of each request that has
  // logits.
  std::vector<BatchItem> MakeBatch(std::span<const ScheduledTokens> step) const;
  struct NextToken {
    RequestId request;
    TokenId token;
  };
  absl::StatusOr<std::vector<NextToken>> Sample(
      std::span<const ScheduledTokens> step, std::span<const float> logits);
  // While the device computes.
  void PrepareNext();
  // Mapping calls since the last time.
  uint64_t TakeDriverCalls();
  // Gives the sequence its token; why it ends with it.
  FinishReason Append(Sequence* sequence, TokenId token);

  Decoder* const decoder_;
  SequenceCache* const cache_;
  const AdapterSet* const adapters_;
  std::map<RequestId, std::unique_ptr<Sequence>> sequences_;  // not ended
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Completion> completions_;
  EngineStatistics statistics_;
  std::function<absl::Status(Bytes)> make_room_;
  bool prepare_next_ = false;
  // Nothing was prepared for the next step.
  bool unprepared_ = true;
  uint64_t counted_calls_ = 0;  // of the driver
};

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_H_
