#include "quire/model/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

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

struct Engine::Sequence {
  Sequence(size_t request_index, Request the_request)
      : index(request_index),
        request(std::move(the_request)),
        sampler(request.sampling),
        tokens(request.prompt) {}

  uint64_t remaining() const { return tokens.size() - computed; }

  size_t index;
  Request request;
  Sampler sampler;
  std::vector<TokenId> tokens;  // prompt and output
  SequenceId cache_id;          // while running
  uint64_t computed = 0;        // tokens whose keys and values are cached
  uint64_t scheduled = 0;       // of remaining(), in the step under way
};

Engine::Engine(Decoder* decoder, SequenceCache* cache, uint32_t max_sequences)
    : decoder_(decoder), cache_(cache), max_sequences_(max_sequences) {}

Engine::~Engine() {
  // Forward has waited for its work, so nothing can still use the pages.
  for (const auto& sequence : running_)
    cache_->Release(sequence->cache_id, Fence()).IgnoreError();
}

absl::StatusOr<size_t> Engine::Add(Request request) {
  QUIRE_RETURN_IF_ERROR(request.sampling.Validate());
  if (request.prompt.empty())
    return absl::InvalidArgumentError(
        "the prompt has no tokens: there is nothing to continue");
  QUIRE_RETURN_IF_ERROR(
      CheckTokens(request.prompt, decoder_->config().vocab_size));
  const auto total = CheckedAdd(request.prompt.size(), request.max_new_tokens);
  if (!total || *total > cache_->max_sequence_length())
    return absl::InvalidArgumentError(absl::StrCat(
        "a prompt of ", request.prompt.size(), " tokens and ",
        request.max_new_tokens, " new ones exceed the longest sequence, ",
        cache_->max_sequence_length(), " tokens"));
  const size_t index = completions_.size();
  completions_.emplace_back();
  if (request.max_new_tokens == 0) {
    completions_.back().reason = FinishReason::kLength;
    return index;
  }
  waiting_.push_back(std::make_unique<Sequence>(index, std::move(request)));
  return index;
}

bool Engine::done() const { return running_.empty() && waiting_.empty(); }

// First come, first served: a request that does not fit keeps later ones
// waiting, so that none starves.
absl::Status Engine::AdmitWaiting() {
  while (!waiting_.empty() && running_.size() < max_sequences_) {
    Sequence& next = *waiting_.front();
    const absl::StatusOr<PromptAdmission> admission =
        cache_->AdmitPrompt(next.tokens);
    if (!admission.ok()) {
      const bool may_fit_later =
          absl::IsResourceExhausted(admission.status()) && !running_.empty();
      return may_fit_later ? absl::OkStatus() : admission.status();
    }
    next.cache_id = admission->sequence;
    next.computed = admission->cached_tokens;
    statistics_.cached_prompt_tokens += admission->cached_tokens;
    running_.push_back(std::move(waiting_.front()));
    waiting_.erase(waiting_.begin());
  }
  return absl::OkStatus();
}

void Engine::Preempt() {
  std::unique_ptr<Sequence> youngest = std::move(running_.back());
  running_.pop_back();
  // Nothing uses its pages: Forward has waited.
  cache_->Release(youngest->cache_id, Fence()).IgnoreError();
  youngest->cache_id = SequenceId();
  youngest->computed = 0;
  waiting_.insert(waiting_.begin(), std::move(youngest));
  ++statistics_.preemptions;
}

// Backs every running sequence up to its last token; the oldest always goes on.
absl::Status Engine::BackRunning() {
  std::vector<SequenceStep> steps;
  while (true) {
    steps.clear();
    for (const auto& sequence : running_)
      steps.push_back({sequence->cache_id, sequence->tokens.size()});
    const absl::Status status = cache_->Step(steps);
    if (status.ok() || !absl::IsResourceExhausted(status) ||
        running_.size() <= 1)
      return status;
    Preempt();
  }
}

absl::Status Engine::Retire(std::unique_ptr<Sequence> sequence) {
  return cache_->Release(sequence->cache_id, Fence());
}

absl::Status Engine::Step() {
  QUIRE_RETURN_IF_ERROR(AdmitWaiting());
  if (running_.empty()) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(BackRunning());

  // Sequences that decode come first: a long prompt must not stall them.
  std::vector<Sequence*> order;
  for (const auto& sequence : running_) order.push_back(sequence.get());
  std::stable_sort(order.begin(), order.end(),
                   [](const Sequence* a, const Sequence* b) {
                     return (a->remaining() > 1) < (b->remaining() > 1);
                   });
  std::vector<BatchItem> batch;
  std::vector<Sequence*> members;
  uint64_t token_budget = decoder_->options().max_batch_tokens;
  uint64_t logit_budget = decoder_->options().max_logit_rows;
  uint64_t prompt_tokens = 0;
  for (Sequence* sequence : order) {
    sequence->scheduled =
        std::min<uint64_t>(sequence->remaining(), token_budget);
    const bool completes = sequence->scheduled == sequence->remaining();
    if (sequence->scheduled == 0 || (completes && logit_budget == 0)) continue;
    if (sequence->remaining() > 1) prompt_tokens += sequence->scheduled;
    token_budget -= sequence->scheduled;
    logit_budget -= completes ? 1 : 0;
    batch.push_back(
        {.sequence = sequence->cache_id,
         .tokens = std::span<const TokenId>(sequence->tokens)
                       .subspan(sequence->computed, sequence->scheduled),
         .position = sequence->computed,
         .logit_rows = completes ? 1u : 0u});
    members.push_back(sequence);
  }

  const double start = Seconds();
  QUIRE_ASSIGN_OR_RETURN(const std::span<const float> logits,
                         decoder_->Forward(batch, *cache_));
  ++statistics_.steps;
  statistics_.prompt_tokens += prompt_tokens;
  (prompt_tokens > 0 ? statistics_.prompt_seconds
                     : statistics_.decode_seconds) += Seconds() - start;

  const size_t vocab = decoder_->config().vocab_size;
  size_t row = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    Sequence& sequence = *members[i];
    sequence.computed += sequence.scheduled;
    QUIRE_RETURN_IF_ERROR(cache_->Publish(
        sequence.cache_id,
        std::span<const TokenId>(sequence.tokens).first(sequence.computed)));
    if (batch[i].logit_rows == 0) continue;
    QUIRE_ASSIGN_OR_RETURN(
        const TokenId token,
        sequence.sampler.Sample(logits.subspan(vocab * row++, vocab),
                                sequence.tokens));
    ++statistics_.decoded_tokens;
    Completion& completion = completions_[sequence.index];
    const Request& request = sequence.request;
    if (std::find(request.eos_tokens.begin(), request.eos_tokens.end(),
                  token) != request.eos_tokens.end()) {
      completion.reason = FinishReason::kEos;
      continue;
    }
    completion.tokens.push_back(token);
    sequence.tokens.push_back(token);
    if (request.on_token && !request.on_token(token))
      completion.reason = FinishReason::kStopped;
    else if (completion.tokens.size() == request.max_new_tokens)
      completion.reason = FinishReason::kLength;
  }

  // Pages go to the next sequence in the same step that ends one.
  for (auto it = running_.begin(); it != running_.end();) {
    if (completions_[(*it)->index].reason == FinishReason::kNone) {
      ++it;
      continue;
    }
    std::unique_ptr<Sequence> finished = std::move(*it);
    it = running_.erase(it);
    QUIRE_RETURN_IF_ERROR(Retire(std::move(finished)));
  }
  return absl::OkStatus();
}

absl::Status Engine::RunToCompletion() {
  while (!done()) QUIRE_RETURN_IF_ERROR(Step());
  return absl::OkStatus();
}

}  // namespace quire
