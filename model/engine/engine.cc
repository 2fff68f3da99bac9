#include "quire/model/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/adapters/adapter.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"
#include "quire/paging/mapping_calls.h"
#include "quire/paging/victim_policy.h"

namespace quire {
namespace {

double Seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStopped:
      return "stopped";
  }
  return "?";
}

// A continuation of a request.
struct Engine::Sequence {
  Sequence(size_t the_index, uint32_t the_continuation,
           std::shared_ptr<const Request> the_request, AdapterRef the_adapter)
      : index(the_index),
        continuation(the_continuation),
        request(std::move(the_request)),
        adapter(std::move(the_adapter)),
        sampler(Seeded(request->sampling, continuation)),
        tokens(request->prompt) {
    if (adapter == nullptr) return;
    keys = tokens;
    keys.front() = adapter->PrefixKey(tokens.front());
  }

  static SamplingOptions Seeded(SamplingOptions sampling,
                                uint32_t continuation) {
    sampling.seed += continuation;
    return sampling;
  }

  void Append(TokenId token) {
    tokens.push_back(token);
    if (adapter != nullptr) keys.push_back(token);
  }

  // What the cache shares rows by. The rows of a sequence are those of its
  // tokens *and* its adapter: with another adapter they are others, from the
  // first token on. So a number for both stands in that one's place.
  std::span<const TokenId> Keys() const {
    return adapter == nullptr ? tokens : keys;
  }

  size_t index;  // in completions()
  uint32_t continuation;
  std::shared_ptr<const Request> request;
  AdapterRef adapter;  // null: the base model
  Sampler sampler;
  std::vector<TokenId> tokens;  // prompt and output
  std::vector<TokenId> keys;    // of a sequence with an adapter
};

Engine::Engine(Decoder* decoder, SequenceCache* cache,
               const AdapterSet* adapters)
    : decoder_(decoder), cache_(cache), adapters_(adapters) {}

Engine::Engine(Decoder* decoder, SequenceCache* cache, uint32_t max_sequences,
               const AdapterSet* adapters)
    : Engine(decoder, cache, adapters) {
  // Only options that are not the default ones could be refused.
  CreateScheduler({.max_sequences = max_sequences}).IgnoreError();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(
    Decoder* decoder, SequenceCache* cache, const EngineOptions& options,
    const AdapterSet* adapters) {
  std::unique_ptr<Engine> engine(new Engine(decoder, cache, adapters));
  QUIRE_RETURN_IF_ERROR(engine->CreateScheduler(options));
  return engine;
}

absl::Status Engine::CreateScheduler(const EngineOptions& options) {
  std::unique_ptr<VictimPolicy> policy =
      MakeVictimPolicy(options.victim_policy);
  if (policy == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat("victim policy '", options.victim_policy,
                     "': 'youngest' or 'fifo', 'lru' or 'page-aware'"));
  SchedulerOptions scheduler;
  scheduler.max_num_seqs = std::max(options.max_sequences, 1u);
  scheduler.max_num_batched_tokens = decoder_->options().max_batch_tokens;
  scheduler.max_logit_rows = decoder_->options().max_logit_rows;
  scheduler.batch_limit = options.batch_limit;
  scheduler.prepare_next = options.prepare_next;
  prepare_next_ = options.prepare_next;
  QUIRE_ASSIGN_OR_RETURN(
      scheduler_,
      Scheduler::Create(cache_, scheduler, std::move(policy), cache_->swap(),
                        [this](RequestId id) -> std::span<const TokenId> {
                          return sequences_.at(id)->Keys();
                        }));
  return absl::OkStatus();
}

// The scheduler gives the pages back. Forward has waited for its work, so
// nothing can still use them.
Engine::~Engine() = default;

absl::StatusOr<size_t> Engine::Add(Request request) {
  QUIRE_RETURN_IF_ERROR(request.sampling.Validate());
  if (request.continuations == 0)
    return absl::InvalidArgumentError(
        "a request of 0 continuations has nothing to decode");
  if (request.prompt.empty())
    return absl::InvalidArgumentError(
        "the prompt has no tokens: there is nothing to continue");
  QUIRE_RETURN_IF_ERROR(
      CheckTokens(request.prompt, decoder_->config().vocab_size));
  AdapterRef adapter;
  if (request.adapter != AdapterId()) {
    if (adapters_ == nullptr)
      return absl::InvalidArgumentError(
          "the request names an adapter, and the engine has none");
    QUIRE_ASSIGN_OR_RETURN(adapter, adapters_->Use(request.adapter));
  }
  const size_t index = completions_.size();
  if (request.max_new_tokens == 0) {
    completions_.resize(index + request.continuations,
                        {.reason = FinishReason::kLength});
    return index;
  }
  QUIRE_ASSIGN_OR_RETURN(
      const RequestId first,
      scheduler_->Add(
          request.prompt.size(), request.max_new_tokens,
          {.continuations = request.continuations, .sequence = request.cache}));
  const auto shared = std::make_shared<const Request>(std::move(request));
  for (uint32_t i = 0; i < shared->continuations; ++i) {
    completions_.emplace_back();
    sequences_[RequestId(first.value() + i)] =
        std::make_unique<Sequence>(index + i, i, shared, adapter);
  }
  return index;
}

bool Engine::done() const { return sequences_.empty(); }

std::vector<ScheduledTokens> Engine::GroupByAdapter(
    std::span<const ScheduledTokens> step) const {
  std::vector<ScheduledTokens> grouped(step.begin(), step.end());
  std::stable_sort(grouped.begin(), grouped.end(),
                   [this](const ScheduledTokens& a, const ScheduledTokens& b) {
                     return sequences_.at(a.request)->request->adapter <
                            sequences_.at(b.request)->request->adapter;
                   });
  return grouped;
}

std::vector<BatchItem> Engine::MakeBatch(
    std::span<const ScheduledTokens> step) const {
  std::vector<BatchItem> batch;
  batch.reserve(step.size());
  for (const ScheduledTokens& item : step) {
    const Sequence& sequence = *sequences_.at(item.request);
    const std::span<const TokenId> tokens = sequence.tokens;
    batch.push_back({.sequence = item.sequence,
                     .tokens = tokens.subspan(item.first, item.count),
                     .position = item.first,
                     .logit_rows = item.needs_logits ? 1u : 0u,
                     .adapter = sequence.adapter.get()});
  }
  return batch;
}

absl::StatusOr<std::vector<Engine::NextToken>> Engine::Sample(
    std::span<const ScheduledTokens> step, std::span<const float> logits) {
  const size_t vocab = decoder_->config().vocab_size;
  std::vector<NextToken> tokens;
  for (const ScheduledTokens& item : step) {
    if (!item.needs_logits) continue;
    for (auto it = sequences_.find(item.request);
         it != sequences_.end() && it->first <= item.last; ++it) {
      Sequence& sequence = *it->second;
      QUIRE_ASSIGN_OR_RETURN(
          const TokenId token,
          sequence.sampler.Sample(logits.first(vocab), sequence.tokens));
      tokens.push_back({it->first, token});
    }
    logits = logits.subspan(vocab);
  }
  return tokens;
}

FinishReason Engine::Append(Sequence* sequence, TokenId token) {
  const Request& request = *sequence->request;
  if (std::find(request.eos_tokens.begin(), request.eos_tokens.end(), token) !=
      request.eos_tokens.end())
    return FinishReason::kEos;
  std::vector<TokenId>& output = completions_[sequence->index].tokens;
  output.push_back(token);
  sequence->Append(token);
  if (request.on_token && !request.on_token(token, sequence->continuation))
    return FinishReason::kStopped;
  return output.size() == request.max_new_tokens ? FinishReason::kLength
                                                 : FinishReason::kNone;
}

void Engine::PrepareNext() {
  statistics_.driver_calls += TakeDriverCalls();
  absl::Status status = scheduler_->PrepareNext();
  unprepared_ = !status.ok();
  status.Update(cache_->PrepareNextSteps());
  if (!status.ok()) ++statistics_.refused_preparations;
  statistics_.driver_calls_meanwhile += TakeDriverCalls();
}

uint64_t Engine::TakeDriverCalls() {
  const uint64_t calls = CountMappingCalls(decoder_->driver());
  return calls - std::exchange(counted_calls_, calls);
}

// Twice: others may have taken what was made.
absl::StatusOr<std::span<const ScheduledTokens>> Engine::Schedule() {
  if (prepare_next_ && unprepared_)
    QUIRE_RETURN_IF_ERROR(scheduler_->PrepareNext());
  auto step = scheduler_->Schedule();
  for (int round = 0; round < 2 && make_room_ != nullptr; ++round) {
    const auto shortage = OutOfMemoryVerdict::FromStatus(step.status());
    if (!shortage || !make_room_(shortage->requested).ok()) break;
    step = scheduler_->Schedule();
  }
  return step;
}

absl::Status Engine::Step() {
  TakeDriverCalls();  // those between steps are others'
  const uint64_t driver_calls = statistics_.driver_calls;
  QUIRE_ASSIGN_OR_RETURN(const auto scheduled_step, Schedule());
  unprepared_ = true;
  if (scheduled_step.empty()) return absl::OkStatus();
  const std::vector<ScheduledTokens> step = GroupByAdapter(scheduled_step);
  uint64_t prompt_tokens = 0;
  for (const ScheduledTokens& item : step) {
    const bool decodes =
        item.count == 1 &&
        item.first >= sequences_.at(item.request)->request->prompt.size();
    if (!decodes) prompt_tokens += item.count;
  }

  const double start = Seconds();
  QUIRE_ASSIGN_OR_RETURN(const std::span<const float> logits,
                         decoder_->Forward(MakeBatch(step), *cache_, [this] {
                           if (prepare_next_) PrepareNext();
                         }));
  (prompt_tokens > 0 ? statistics_.prompt_seconds
                     : statistics_.decode_seconds) += Seconds() - start;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<NextToken> tokens,
                         Sample(step, logits));

  ++statistics_.steps;
  statistics_.prompt_tokens += prompt_tokens;
  statistics_.decoded_tokens += tokens.size();
  std::vector<RequestId> ended;
  for (const auto& [id, token] : tokens) {
    Sequence* const sequence = sequences_.at(id).get();
    const FinishReason reason = Append(sequence, token);
    completions_[sequence->index].reason = reason;
    if (reason != FinishReason::kNone) ended.push_back(id);
  }
  statistics_.driver_calls += TakeDriverCalls();
  const absl::Status status = scheduler_->Complete(ended, Fence());
  for (const RequestId id : ended) sequences_.erase(id);
  // Where all have ended, no step waits for what that takes.
  (done() ? statistics_.driver_calls_meanwhile : statistics_.driver_calls) +=
      TakeDriverCalls();
  if (prompt_tokens == 0) {
    ++statistics_.decode_steps;
    if (statistics_.driver_calls > driver_calls)
      ++statistics_.decode_steps_waiting;
  }
  const SchedulerStatistics scheduled = scheduler_->GetStatistics();
  unprepared_ |= scheduled.running == 0;
  statistics_.preemptions = scheduled.preemptions;
  statistics_.swaps = scheduled.swaps;
  statistics_.forks = scheduled.forks;
  statistics_.batch_halvings = scheduled.halvings;
  statistics_.cached_prompt_tokens = scheduled.cached_tokens;
  return status;
}

absl::Status Engine::RunToCompletion() {
  while (!done()) QUIRE_RETURN_IF_ERROR(Step());
  return absl::OkStatus();
}

}  // namespace quire
