#include "quire/paging/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "paging/awaited_prompts.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

// Prompts that a step begins to expect at most: hashing one takes as long as a
// step of all that run.
constexpr int kExpectedPerStep = 4;

// What is missing, where the error says so.
Bytes Shortfall(const absl::Status& shortage) {
  const auto verdict = OutOfMemoryVerdict::FromStatus(shortage);
  return verdict
             ? SaturatingSubtract(verdict->requested, verdict->largest_possible)
             : Bytes(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(
    SequenceCache* cache, const SchedulerOptions& options,
    std::unique_ptr<VictimPolicy> policy, SequenceSwap* swap,
    TokenSource token_source) {
  if (options.max_num_batched_tokens == 0)
    return absl::InvalidArgumentError("scheduler: max_num_batched_tokens is 0");
  if (options.max_num_seqs == 0)
    return absl::InvalidArgumentError("scheduler: max_num_seqs is 0");
  const uint64_t longest = cache->max_sequence_length();
  if (options.max_model_len > longest)
    return absl::InvalidArgumentError(absl::StrCat(
        "scheduler: max_model_len is ", options.max_model_len,
        ", but the sequences of the cache have at most ", longest, " tokens"));
  QUIRE_ASSIGN_OR_RETURN(
      const BatchLimit batch_limit,
      BatchLimit::Create(options.max_num_seqs, options.batch_limit));
  if (policy == nullptr) policy = MakeYoungestPolicy();
  return std::unique_ptr<Scheduler>(new Scheduler(
      cache, options,
      options.max_model_len == 0 ? longest : options.max_model_len, batch_limit,
      std::move(policy), swap, std::move(token_source)));
}

Scheduler::Scheduler(SequenceCache* cache, const SchedulerOptions& options,
                     uint64_t max_model_len, BatchLimit batch_limit,
                     std::unique_ptr<VictimPolicy> policy, SequenceSwap* swap,
                     TokenSource token_source)
    : cache_(cache),
      options_(options),
      max_model_len_(max_model_len),
      policy_(std::move(policy)),
      swap_(swap),
      token_source_(std::move(token_source)),
      batch_limit_(batch_limit) {
  if (token_source_ && options_.expected_prompts > 0)
    expected_ = std::make_unique<AwaitedPrompts>();
}

Scheduler::~Scheduler() {
  ReleaseEnded().IgnoreError();
  for (Requests* requests : {&running_, &waiting_}) {
    for (auto& [id, request] : *requests) Forget(&request);
  }
}

absl::StatusOr<RequestId> Scheduler::Add(uint64_t prompt_tokens,
                                         uint64_t max_new_tokens,
                                         const RequestOptions& options) {
  if (options.continuations == 0)
    return absl::InvalidArgumentError(
        "scheduler: a request of 0 continuations has nothing to compute");
  if (prompt_tokens == 0 || max_new_tokens == 0)
    return absl::InvalidArgumentError(
        absl::StrCat("scheduler: a request of ", prompt_tokens, " and ",
                     max_new_tokens, " new tokens has nothing to compute"));
  const auto total = CheckedAdd(prompt_tokens, max_new_tokens);
  if (!total || *total > max_model_len_)
    return absl::InvalidArgumentError(
        absl::StrCat("scheduler: ", prompt_tokens, " tokens and ",
                     max_new_tokens, " new ones exceed the maximum of ",
                     max_model_len_, " tokens of a request"));
  if (options.sequence.limit)
    QUIRE_RETURN_IF_ERROR(cache_->CheckLimit(*options.sequence.limit));
  const RequestId id(++last_request_);
  const uint32_t forks = options.continuations - 1;
  last_request_ += forks;
  waiting_.emplace_hint(waiting_.end(), id,
                        Request{.tokens = prompt_tokens,
                                .max_tokens = *total,
                                .forks = forks,
                                .last = RequestId(last_request_),
                                .options = options.sequence});
  for (uint64_t i = 1; i <= forks; ++i)
    forks_.emplace_hint(forks_.end(), RequestId(id.value() + i), Fork{id});
  return id;
}

absl::Status Scheduler::Cancel(RequestId id, const Fence& fence) {
  if (CancelFork(id)) return absl::OkStatus();
  for (Requests* requests : {&running_, &waiting_}) {
    const auto it = requests->find(id);
    if (it == requests->end()) continue;
    const SequenceId sequence = it->second.sequence;
    StopExpecting(id, &it->second);
    if (it->second.forks > 0) {
      HandOver(requests, it);
      return absl::OkStatus();
    }
    requests->erase(it);
    std::erase_if(plan_, [&](const ScheduledTokens& scheduled) {
      return scheduled.request == id;
    });
    absl::Status status;
    if (running_.empty()) status = ReleaseEnded();
    if (sequence != SequenceId())
      status.Update(cache_->Release(sequence, fence));
    return status;
  }
  return absl::NotFoundError(
      absl::StrCat("scheduler: no request ", id.value(), " to cancel"));
}

// ---- The next step ----------------------------------------------------------

absl::StatusOr<std::span<const ScheduledTokens>> Scheduler::Schedule() {
  ForgetPlan();
  batch_limit_.Update(cache_->Use().fraction(),
                      static_cast<uint32_t>(running_.size()));
  preempted_ = false;
  QUIRE_RETURN_IF_ERROR(SeatOldest());
  QUIRE_ASSIGN_OR_RETURN(const Room room, BackRunning());
  if (!options_.prepare_next) {
    QUIRE_RETURN_IF_ERROR(AdmitWaiting(room, For::kThisStep));
    ExpectMore();
  }
  return plan_;
}

absl::Status Scheduler::PrepareNext() {
  if (!options_.prepare_next) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(ReleaseEnded());
  QUIRE_RETURN_IF_ERROR(AdmitWaiting(NextRoom(), For::kNextStep));
  ExpectMore();
  return absl::OkStatus();
}

absl::Status Scheduler::SeatOldest() {
  while (
      !waiting_.empty() &&
      (running_.empty() || waiting_.begin()->first < running_.begin()->first)) {
    Request& oldest = waiting_.begin()->second;
    absl::Status status =
        running_.size() < options_.max_num_seqs
            ? SeatForStep(&oldest)
            : absl::ResourceExhaustedError("scheduler: all sequences run");
    if (status.ok()) break;
    if (absl::IsResourceExhausted(status) && MakeRoom(status)) continue;
    if (!oldest.swapped) return status;
    // Nobody gives way to what it had: it is computed again.
    Forget(&oldest);
  }
  return absl::OkStatus();
}

// At once what the step may compute, so that it is mapped at once; where that
// is more than there is, as little as will do: the step says what it needs.
absl::Status Scheduler::SeatForStep(Request* oldest) {
  absl::Status status =
      Seat(std::min<uint64_t>(oldest->tokens, options_.max_num_batched_tokens));
  if (!absl::IsResourceExhausted(status) || oldest->swapped ||
      token_source_ != nullptr)
    return status;
  return Seat(1);
}

absl::Status Scheduler::Seat(uint64_t tokens) {
  auto& [id, request] = *waiting_.begin();
  if (request.swapped) {
    const absl::Status status = swap_->SwapIn(request.sequence);
    if (absl::IsResourceExhausted(status)) return status;
    if (status.ok()) {
      request.swapped = false;
    } else {
      // What it had does not come back: it is computed again.
      Forget(&request);
    }
  }
  if (request.sequence != SequenceId()) {
    tokens = request.computed;
  } else if (token_source_) {
    QUIRE_ASSIGN_OR_RETURN(
        const PromptAdmission admission,
        cache_->AdmitPromptInSteps(token_source_(id).first(request.tokens),
                                   options_.max_num_batched_tokens,
                                   request.options));
    request.sequence = admission.sequence;
    request.computed = admission.cached_tokens;
    StopExpecting(id, &request);
    if (expected_ != nullptr) {
      cache_->AdvanceTurn(id.value() + 1);
      ExpectAgain(id, request.tokens);
    }
    statistics_.cached_tokens += admission.cached_tokens;
    tokens = std::min(request.tokens,
                      admission.cached_tokens + FirstTokens(request));
  } else {
    QUIRE_ASSIGN_OR_RETURN(request.sequence,
                           cache_->Admit(tokens, request.options.limit));
  }
  request.backed = tokens;
  ++statistics_.admissions;
  running_.insert(waiting_.extract(waiting_.begin()));
  return absl::OkStatus();
}

absl::StatusOr<Scheduler::Room> Scheduler::BackRunning() {
  while (true) {
    const Room room = Plan();
    if (plan_.empty()) return room;
    lengths_.clear();
    for (const ScheduledTokens& scheduled : plan_)
      lengths_.push_back(
          {scheduled.sequence, scheduled.first + scheduled.count});
    const absl::Status status = cache_->Step(lengths_);
    if (status.ok()) return room;
    if (!absl::IsResourceExhausted(status) || !MakeRoom(status)) {
      ForgetPlan();
      return status;
    }
  }
}

// Those that decode come first: a long prompt must not stall them. Nor may they
// stall the oldest, whose next token is set aside.
Scheduler::Room Scheduler::Plan() {
  ForgetPlan();
  Room room = {.tokens = options_.max_num_batched_tokens,
               .logit_rows = options_.max_logit_rows == 0
                                 ? UINT32_MAX
                                 : options_.max_logit_rows};
  if (running_.empty()) return room;
  const uint32_t aside = running_.begin()->second.remaining() > 1 ? 1 : 0;
  room.tokens -= aside;
  room.logit_rows -= aside;
  for (auto& [id, request] : running_) {
    if (request.remaining() == 1) Take(id, &request, &room);
  }
  room.tokens += aside;
  room.logit_rows += aside;
  for (auto& [id, request] : running_) {
    if (request.remaining() > 1) Take(id, &request, &room);
  }
  return room;
}

Scheduler::Room Scheduler::NextRoom() const {
  Room room = {.tokens = options_.max_num_batched_tokens,
               .logit_rows = UINT32_MAX};
  for (const auto& [id, request] : running_) {
    const uint64_t left = request.remaining() - request.scheduled;
    room.tokens -= static_cast<uint32_t>(
        std::min<uint64_t>(room.tokens, left == 0 ? 1 + request.forks : left));
  }
  return room;
}

absl::Status Scheduler::AdmitWaiting(Room room, For step) {
  // Whoever gave up memory in this step does not get it back in the same one.
  if (preempted_) return absl::OkStatus();
  CountGrowths();
  while (!waiting_.empty() && SeatsTaken() < batch_limit_.value()) {
    // Stays where it is in memory when it moves to those that run.
    auto& [id, next] = *waiting_.begin();
    const uint32_t chunk = Chunk(next, room);
    if (chunk == 0 || !MayAdmit(next)) break;
    const bool was_swapped = next.swapped;
    uint64_t tokens = chunk;
    if (step == For::kNextStep) {
      // All of it where there is room for that: no later chunk waits then.
      growths_.push_back({.tokens = next.tokens, .limit = next.options.limit});
      tokens = cache_->HasRoomFor(growths_) ? next.tokens : FirstTokens(next);
      growths_.pop_back();
    }
    if (step == For::kNextStep && !PrepareRoom(id, next, tokens)) break;
    absl::Status status = Seat(tokens);
    if (status.ok() && step == For::kThisStep &&
        (was_swapped || token_source_)) {
      // A prompt that is backed as a whole may be computed in chunks. What the
      // cache may drop behind windows follows from what has been computed.
      const SequenceStep length = {next.sequence,
                                   next.computed + Chunk(next, room)};
      status = cache_->Step(std::span(&length, 1));
    }
    if (absl::IsResourceExhausted(status)) break;
    QUIRE_RETURN_IF_ERROR(status);
    if (step == For::kThisStep) {
      Take(id, &next, &room);
    } else {
      room.tokens -= chunk;
    }
    AddGrowth(next);
  }
  return absl::OkStatus();
}

void Scheduler::CountGrowths() {
  growths_.clear();
  for (const auto& [id, request] : running_) AddGrowth(request);
}

void Scheduler::AddGrowth(const Request& request) {
  AddForks(request);
  const uint64_t backed =
      std::max(request.backed, request.computed + request.scheduled);
  if (backed >= request.tokens) return;
  growths_.push_back({.computed = request.computed,
                      .backed = backed,
                      .tokens = request.tokens,
                      .step_tokens = options_.max_num_batched_tokens,
                      .limit = request.options.limit});
}

// Without token source an admission backs less than the prompt, so what the
// rest of it needs must be there as well. Else the admission itself finds out,
// and whatever lies in the cache already is not counted twice.
bool Scheduler::MayAdmit(const Request& request) {
  const bool finds_out = token_source_ != nullptr && !request.swapped;
  if (finds_out && growths_.empty() && request.forks == 0) return true;
  const size_t before = growths_.size();
  growths_.push_back({.tokens = request.tokens,
                      .step_tokens = options_.max_num_batched_tokens,
                      .limit = request.options.limit});
  AddForks(request);
  const bool has_room = cache_->HasRoomFor(growths_);
  growths_.resize(before);
  return has_room;
}

bool Scheduler::PrepareRoom(RequestId id, const Request& request,
                            uint64_t tokens) {
  SequenceGrowth growth = {.tokens = tokens,
                           .step_tokens = options_.max_num_batched_tokens,
                           .limit = request.options.limit};
  std::span<const int32_t> prompt;
  if (request.swapped) {
    growth.tokens = request.computed;
  } else if (token_source_) {
    growth.tokens = request.tokens;
    prompt = token_source_(id).first(request.tokens);
  }
  return cache_->PrepareRoom(prompt, growth);
}

uint64_t Scheduler::FirstTokens(const Request& request) const {
  return cache_->KeepsAllTokens() && !request.options.limit
             ? request.tokens
             : std::min<uint64_t>(request.tokens,
                                  options_.max_num_batched_tokens);
}

uint32_t Scheduler::Chunk(const Request& request, const Room& room) {
  const uint64_t count = std::min<uint64_t>(request.remaining(), room.tokens);
  const bool completes = count > 0 && count == request.remaining();
  return static_cast<uint32_t>(completes && room.logit_rows == 0 ? count - 1
                                                                 : count);
}

void Scheduler::Take(RequestId id, Request* request, Room* room) {
  const uint32_t count = Chunk(*request, *room);
  if (count == 0) return;
  const bool completes = count == request->remaining();
  room->tokens -= count;
  room->logit_rows -= completes ? 1 : 0;
  request->scheduled = count;
  plan_.push_back({.request = id,
                   .last = request->forks > 0 ? request->last : id,
                   .sequence = request->sequence,
                   .first = request->computed,
                   .count = count,
                   .needs_logits = completes});
}

void Scheduler::ForgetPlan() {
  plan_.clear();
  for (auto& [id, request] : running_) request.scheduled = 0;
}

// ---- Preemption -------------------------------------------------------------

absl::Status Scheduler::ReleaseEnded() {
  absl::Status status;
  std::erase_if(ended_, [&](SequenceId sequence) {
    const absl::Status released = cache_->Release(sequence, last_fence_);
    status.Update(released);
    return released.ok() || absl::IsNotFound(released);
  });
  return status;
}

bool Scheduler::MakeRoom(const absl::Status& shortage) {
  const size_t ended = ended_.size();
  // What the driver refuses is tried again when others have ended.
  ReleaseEnded().IgnoreError();
  return ended_.size() < ended || Preempt(shortage);
}

bool Scheduler::Preempt(const absl::Status& shortage) {
  auto first = running_.begin();
  const bool oldest_runs =
      first != running_.end() &&
      (waiting_.empty() || first->first < waiting_.begin()->first);
  if (oldest_runs) ++first;
  if (first == running_.end()) return false;

  candidates_.clear();
  for (auto it = first; it != running_.end(); ++it) {
    const auto& [id, request] = *it;
    candidates_.push_back(
        {.request = id,
         .last_step = request.last_step,
         .computed = request.computed,
         .frees = cache_->FreedByRelease(request.sequence).value_or(Bytes(0))});
  }
  const size_t chosen = policy_->Choose(candidates_, Shortfall(shortage));
  const auto victim = running_.find(candidates_[chosen].request);
  Request& request = victim->second;
  request.scheduled = 0;
  preempted_ = true;
  ++statistics_.preemptions;
  if (swap_ != nullptr && swap_->SwapOut(request.sequence, last_fence_).ok()) {
    request.swapped = true;
    ++statistics_.swaps;
  } else {
    Forget(&request);
  }
  waiting_.insert(running_.extract(victim));
  return true;
}

void Scheduler::Forget(Request* request) {
  // An error could only be that the sequence is not there.
  if (request->sequence != SequenceId())
    cache_->Release(request->sequence, last_fence_).IgnoreError();
  statistics_.recomputed_tokens += request->computed;
  request->sequence = SequenceId();
  request->swapped = false;
  request->computed = 0;
  request->backed = 0;
}

// ---- After the step ---------------------------------------------------------

absl::Status Scheduler::Complete(std::span<const RequestId> ended,
                                 const Fence& fence) {
  for (const RequestId id : ended) {
    if (!GetsToken(id))
      return absl::InvalidArgumentError(
          absl::StrCat("scheduler: request ", id.value(),
                       " had no logits in the step and cannot end with it"));
  }
  for (const RequestId id : ended) {
    const auto fork = forks_.find(id);
    (fork != forks_.end() ? fork->second.ends
                          : running_.find(id)->second.ends) = true;
  }

  absl::Status status = ReleaseEnded();  // where PrepareNext was not called
  last_fence_ = fence;
  cache_->EndBatch(fence);
  ++statistics_.steps;
  for (const ScheduledTokens& scheduled : plan_) {
    const auto it = running_.find(scheduled.request);
    Request& request = it->second;
    request.computed += scheduled.count;
    request.scheduled = 0;
    request.last_step = statistics_.steps;
    const bool ends =
        scheduled.needs_logits &&
        (request.ends || request.tokens + 1 == request.max_tokens);
    if (scheduled.count > 1 || ends)
      status.Update(Publish(scheduled.request, request));
    if (ends) ExpectAgain(scheduled.request, request.computed);
    if (!scheduled.needs_logits) continue;
    if (request.forks > 0) BeginForks(scheduled.request, &request);
    ++request.tokens;
    if (!ends) continue;
    ended_.push_back(request.sequence);
    running_.erase(it);
    ++statistics_.ended;
  }
  plan_.clear();
  // With nobody left to wait for it, it need not be put off.
  if (!options_.prepare_next || running_.empty()) status.Update(ReleaseEnded());
  return status;
}

absl::Status Scheduler::Publish(RequestId id, const Request& request) const {
  if (!token_source_) return absl::OkStatus();
  return cache_->Publish(request.sequence,
                         token_source_(id).first(request.computed));
}

// ---- Prompts to come --------------------------------------------------------

void Scheduler::ExpectMore() {
  if (expected_ == nullptr) return;
  auto next = waiting_.upper_bound(last_expected_);
  for (int i = 0; i < kExpectedPerStep && next != waiting_.end() &&
                  expected_->prompts() < options_.expected_prompts;
       ++i, ++next) {
    auto& [id, request] = *next;
    const std::span<const int32_t> prompt =
        token_source_(id).first(request.tokens);
    expected_->Add(id.value(), prompt);
    request.expected = true;
    last_expected_ = id;
    cache_->ExpectPrompt(prompt, id.value());
  }
}

void Scheduler::StopExpecting(RequestId id, Request* request) {
  if (!request->expected) return;
  request->expected = false;
  expected_->Remove(id.value(), token_source_(id).first(request->tokens));
}

void Scheduler::ExpectAgain(RequestId id, uint64_t tokens) {
  if (expected_ == nullptr || expected_->prompts() == 0) return;
  const std::span<const int32_t> text = token_source_(id).first(tokens);
  const AwaitedPrompts::Found found = expected_->Find(text);
  if (found.tokens > 0)
    cache_->ExpectPrompt(text.first(found.tokens), found.turn);
}

SchedulerStatistics Scheduler::GetStatistics() const {
  SchedulerStatistics statistics = statistics_;
  statistics.waiting = static_cast<uint32_t>(waiting_.size() + forks_.size());
  statistics.running = static_cast<uint32_t>(running_.size());
  statistics.batch_limit = batch_limit_.value();
  statistics.halvings = batch_limit_.halvings();
  statistics.doublings = batch_limit_.doublings();
  return statistics;
}

absl::Status Scheduler::CheckInvariants() const {
  const auto wrong = [](RequestId id, const char* what) {
    return absl::InternalError(
        absl::StrCat("scheduler: request ", id.value(), " ", what));
  };
  if (running_.size() > options_.max_num_seqs)
    return absl::InternalError(absl::StrCat("scheduler: ", running_.size(),
                                            " requests run, beyond ",
                                            options_.max_num_seqs));
  for (const auto& [id, request] : running_) {
    if (request.swapped || request.sequence == SequenceId())
      return wrong(id, "runs without a sequence");
    if (request.remaining() == 0 || request.computed > request.tokens ||
        request.tokens >= request.max_tokens)
      return wrong(id, "runs with nothing to compute");
    const auto length = cache_->Length(request.sequence);
    if (!length.ok()) return length.status();
    if (*length < request.computed + request.scheduled)
      return wrong(id, "is not backed");
  }
  for (const auto& [id, request] : waiting_) {
    if (request.swapped != (request.sequence != SequenceId()))
      return wrong(id, "waits with a sequence");
    if (!request.swapped && request.computed != 0)
      return wrong(id, "waits with tokens in the cache");
  }
  QUIRE_RETURN_IF_ERROR(CheckForks());
  uint64_t tokens = 0;
  uint64_t scheduled = 0;
  for (const ScheduledTokens& item : plan_) tokens += item.count;
  for (const auto& [id, request] : running_) scheduled += request.scheduled;
  if (tokens != scheduled || tokens > options_.max_num_batched_tokens)
    return absl::InternalError(absl::StrCat(
        "scheduler: a step of ", tokens, " tokens, of which requests know ",
        scheduled, ", with at most ", options_.max_num_batched_tokens));
  return absl::OkStatus();
}

}  // namespace quire
