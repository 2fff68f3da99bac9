// Which tokens of which requests are computed in the next step, and which
// requests have memory for it: continuous batching over any SequenceCache.
//
//   while (scheduler->has_work()) {
//     QUIRE_ASSIGN_OR_RETURN(const auto step, scheduler->Schedule());
//     ... queue the kernels of step ...
//     QUIRE_RETURN_IF_ERROR(scheduler->PrepareNext());  // meanwhile
//     ... sample where needs_logits ...
//     QUIRE_RETURN_IF_ERROR(scheduler->Complete(ended, fence));
//   }
//
// It knows numbers of tokens and nothing of the model. A step has one token of
// each request that decodes, and with what is left of max_num_batched_tokens
// chunks of prompts, oldest first. A request is admitted, in the order of
// arrival, when the step has tokens left for it, the batch limit
// (batch_limit.h) lets it in, and the cache has room for its prompt: for all of
// it, or, behind windows, for what is held at most while it is computed.
// Where running requests grow beyond the memory that there is, one of them is
// preempted, by a policy (victim_policy.h): it waits, in the order of arrival,
// and is then swapped in, or computed again. Its tokens are kept by the caller,
// so its output does not change. A hard limit of the cache's owner
// (DeviceMemory::SetOwnerLimits) counts like lack of memory.
//
// A prompt may have several continuations, which are as many requests. It is
// computed once; then the logits of its last token give the first token of all,
// and each but the first forks the sequence (SequenceCache::Fork). Until then
// their seats, and the memory of their forks, are kept free for them, and they
// are requests that wait. Where there is no seat or no memory when it comes to
// that, where an older request waits, or the cache refuses, they go on waiting,
// in the order of arrival, and find the prompt in the cache, where it keeps
// prefixes, or compute it again: no token depends on it.
//
// No request starves. The oldest that has not ended is never preempted, is
// admitted before all others, where necessary by preempting them, and each step
// computes at least
//   g = max(1, max_num_batched_tokens - (max_num_seqs - 1))
// of its tokens, or all that remain: forks have seats among max_num_seqs, take
// none from a request that waits and is older, and are preempted like others.
// (A continuation that has not begun is not the oldest: who computes its prompt
// is older, until the prompt is computed.) So a request of p tokens and n new
// ones, each continuation counted as one,
// ends at most ceil((p + n) / g) + n steps after it became the oldest, and
// after it arrived at most the sum of that over itself and the requests then
// before it. (Where others than the requests hold the memory, Schedule returns
// kResourceExhausted instead of a step.)
//
// Complexity: a step is O(running requests), an admission O(log waiting) and
// what SequenceCache asks. Not thread-safe.

#ifndef QUIRE_PAGING_SCHEDULER_H_
#define QUIRE_PAGING_SCHEDULER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/units.h"
#include "quire/paging/batch_limit.h"
#include "quire/paging/sequence_cache.h"
#include "quire/paging/sequence_swap.h"
#include "quire/paging/victim_policy.h"

namespace quire {

class AwaitedPrompts;

struct SchedulerOptions {
  uint32_t max_num_seqs = 256;             // that run at once
  uint32_t max_num_batched_tokens = 2048;  // of a step
  // Prompt and new tokens of a request; 0: what the cache takes.
  uint64_t max_model_len = 0;
  // Requests of a step that need logits; 0: as many as run.
  uint32_t max_logit_rows = 0;
  BatchLimitOptions batch_limit;
  // PrepareNext releases what ended and admits what is to run, while the device
  // computes, so that no step waits for the driver calls of either. Requests
  // are then admitted one step ahead, with memory for all of their prompts, or,
  // where the cache drops tokens and lacks it, for the next step; where taking
  // that memory from what is kept for others would outlast the step, some steps
  // later (SequenceCache::PrepareRoom). A prompt of one token, or with one left
  // behind what the cache has of it, is then computed with those that decode,
  // before longer prompts that were admitted earlier.
  // Else Complete releases, Schedule admits, and PrepareNext does nothing.
  bool prepare_next = false;
  // Of the requests that wait, the first so many are told to the cache, where
  // there is a TokenSource: it keeps the beginnings of their prompts longest.
  uint32_t expected_prompts = 1024;
};

// The tokens of a request, prompt and decoded ones, at least up to the last
// that was scheduled: for caches that keep prefixes. The view need not outlive
// the call.
using TokenSource = std::function<std::span<const int32_t>(RequestId)>;

// Tokens [first, first + count) of a request, to be computed in one step. All
// before them are in the cache, all up to their end are backed.
struct ScheduledTokens {
  RequestId request;
  // More than that, where several are continuations of the prompt that the
  // tokens are of: requests from `request` to `last`, those of them that were
  // not cancelled. All get their next token from the same logits.
  RequestId last;
  SequenceId sequence;
  uint64_t first = 0;
  uint32_t count = 0;
  // Whether they reach the end: the step gives the requests their next token.
  bool needs_logits = false;
};

struct SchedulerStatistics {
  uint64_t steps = 0;  // completed
  uint32_t waiting = 0;
  uint32_t running = 0;
  uint32_t batch_limit = 0;
  uint64_t halvings = 0;  // of the batch limit
  uint64_t doublings = 0;
  uint64_t admissions = 0;  // of new requests, and again after a preemption
  uint64_t ended = 0;       // and not cancelled
  uint64_t preemptions = 0;
  uint64_t swaps = 0;              // of these, swapped out
  uint64_t recomputed_tokens = 0;  // that preemptions lost
  uint64_t cached_tokens = 0;      // that admissions found in the cache
  uint64_t forks = 0;              // continuations that forked their prompt
  uint64_t waiting_forks = 0;      // and those that waited to begin instead
};

struct RequestOptions {
  // Of the prompt: so many requests, with ids that follow each other.
  uint32_t continuations = 1;
  // Of the sequence of each.
  SequenceOptions sequence;
};

class Scheduler {
 public:
  // `cache` and `swap` must outlive the scheduler. `policy` null: the youngest;
  // `swap` null: preempted requests are computed again. With a `token_source`,
  // requests start behind the prefix that the cache has of them, and what they
  // compute is published as they go; a prompt is then backed as a whole when it
  // is admitted, else chunk by chunk, as it is where the cache drops tokens.
  // Errors: kInvalidArgument for limits of 0, and BatchLimit's.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(
      SequenceCache* cache, const SchedulerOptions& options,
      std::unique_ptr<VictimPolicy> policy = nullptr,
      SequenceSwap* swap = nullptr, TokenSource token_source = nullptr);
  // Releases the sequences that are left, under the fence of the last Complete.
  ~Scheduler();

  // A request that ends after `max_new_tokens`, or earlier when Complete says
  // so. With several continuations, the first of them; each ends by itself.
  // Errors: kInvalidArgument for no tokens, for more than max_model_len in all,
  // for no continuations, and SequenceCache::CheckLimit's.
  absl::StatusOr<RequestId> Add(uint64_t prompt_tokens, uint64_t max_new_tokens,
                                const RequestOptions& options = {});
  // Ends a request at any time; `fence` covers the kernels that use it. Where
  // it computes the prompt of others too, the next of them goes on with that,
  // also in a step under way.
  absl::Status Cancel(RequestId request, const Fence& fence);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }

  // The next step, valid until the next call; empty without work. A step that
  // was not completed is forgotten: this one takes its place. Errors, after
  // which the next call tries again: kResourceExhausted where the oldest
  // request lacks memory that no other request holds, and the cache's.
  absl::StatusOr<std::span<const ScheduledTokens>> Schedule();

  // Between Schedule, once the step is queued, and Complete; need not be
  // called, but then nobody is admitted while others run. Changes nothing of
  // the step, and preempts nobody. Errors: the cache's; what was not done is
  // done by the next call.
  absl::Status PrepareNext();

  // The step was computed, or is queued and done when `fence` is. Each request
  // that needed logits has one token more, and ends where that is its last one,
  // or where it is among `ended`. Error: kInvalidArgument for one in `ended`
  // that did not need logits in the step; nothing has changed then.
  absl::Status Complete(std::span<const RequestId> ended, const Fence& fence);

  SchedulerStatistics GetStatistics() const;
  absl::Status CheckInvariants() const;

 private:
  struct Request {
    uint64_t tokens = 0;      // prompt, and those decoded
    uint64_t max_tokens = 0;  // at which it ends
    uint64_t computed = 0;    // in the cache
    SequenceId sequence;      // while it runs or is swapped out
    bool swapped = false;
    uint64_t last_step = 0;
    uint32_t scheduled = 0;  // in the step under way
    bool ends = false;       // with the step under way
    uint64_t backed = 0;     // by its admission
    bool expected = false;   // its prompt is in expected_
    // Continuations that wait until its prompt is computed, in forks_, and the
    // last that there was.
    uint32_t forks = 0;
    RequestId last;
    SequenceOptions options;

    uint64_t remaining() const { return tokens - computed; }
  };
  using Requests = std::map<RequestId, Request>;  // oldest first
  // A continuation that has not begun.
  struct Fork {
    RequestId leader;  // computes the prompt
    bool ends = false;
  };
  // What the step under way has left to give.
  struct Room {
    uint32_t tokens;
    uint32_t logit_rows;
  };

  Scheduler(SequenceCache* cache, const SchedulerOptions& options,
            uint64_t max_model_len, BatchLimit batch_limit,
            std::unique_ptr<VictimPolicy> policy, SequenceSwap* swap,
            TokenSource token_source);

  // Sees to it that the oldest request runs.
  absl::Status SeatOldest();
  // Moves the first waiting request to those that run, with at least `tokens`
  // tokens backed.
  absl::Status Seat(uint64_t tokens);
  // The same for the oldest, which a step is about to compute.
  absl::Status SeatForStep(Request* oldest);
  // Plans for those that run and backs the plan, preempting where it must.
  absl::StatusOr<Room> BackRunning();
  Room Plan();
  // For the step under way, or for the next one.
  enum class For { kThisStep, kNextStep };
  absl::Status AdmitWaiting(Room room, For step);
  // What the next step will have to give beyond those that run.
  Room NextRoom() const;
  // Leaves in growths_ what running requests will have of their prompts:
  // memory that admissions must leave to them.
  void CountGrowths();
  void AddGrowth(const Request& request);
  // Of its continuations that wait for it.
  void AddForks(const Request& request);
  // Requests that run, and continuations of these that have not begun.
  uint32_t SeatsTaken() const;
  bool MayAdmit(const Request& request);
  // What an admission of `tokens` tokens has to take from others; false where
  // the rest of it has to wait for the next step.
  bool PrepareRoom(RequestId id, const Request& request, uint64_t tokens);
  // The tokens that an admission for the next step backs, behind what is
  // cached.
  uint64_t FirstTokens(const Request& request) const;

  // The tokens of the request that the room has place for.
  static uint32_t Chunk(const Request& request, const Room& room);
  // Adds them to the plan.
  void Take(RequestId id, Request* request, Room* room);
  void ForgetPlan();
  // Whether the step under way gives it a token.
  bool GetsToken(RequestId id) const;
  // The prompt of the request was computed, and has given all of them a token.
  void BeginForks(RequestId leader_id, Request* leader);
  // Whether the sequence could be forked, and was.
  bool BeginFork(RequestId id, const Request& leader, Request* request);
  // Whether it was one that has not begun; then there is none now.
  bool CancelFork(RequestId id);
  // Its next continuation takes the place of a request that is cancelled.
  void HandOver(Requests* requests, Requests::iterator cancelled);
  absl::Status CheckForks() const;
  absl::Status Publish(RequestId id, const Request& request) const;

  // Tells the cache of some more of the prompts that wait.
  void ExpectMore();
  // Does not expect the prompt any more.
  void StopExpecting(RequestId id, Request* request);
  // The first `tokens` tokens of the request lie in the cache: tells it who of
  // those that wait begins alike.
  void ExpectAgain(RequestId id, uint64_t tokens);

  // What a cache refuses to release is kept, to be tried again.
  absl::Status ReleaseEnded();
  // Makes memory free: of what ended, else of a victim. False where there is
  // neither.
  bool MakeRoom(const absl::Status& shortage);
  bool Preempt(const absl::Status& shortage);
  // Gives up the sequence and what it has computed.
  void Forget(Request* request);

  SequenceCache* const cache_;
  const SchedulerOptions options_;
  const uint64_t max_model_len_;
  const std::unique_ptr<VictimPolicy> policy_;
  SequenceSwap* const swap_;
  const TokenSource token_source_;
  BatchLimit batch_limit_;
  Requests running_;
  Requests waiting_;
  std::map<RequestId, Fork> forks_;
  uint64_t last_request_ = 0;
  // Prompts of requests that wait; null: they are not looked at.
  std::unique_ptr<AwaitedPrompts> expected_;
  RequestId last_expected_;  // in it, or once in it
  Fence last_fence_;  // of the last step: covers what the running ones use
  std::vector<ScheduledTokens> plan_;
  bool preempted_ = false;         // by the step under way
  std::vector<SequenceId> ended_;  // and not yet released, under last_fence_
  SchedulerStatistics statistics_;
  // Kept for their capacity.
  std::vector<SequenceStep> lengths_;
  std::vector<VictimCandidate> candidates_;
  std::vector<SequenceGrowth> growths_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_SCHEDULER_H_
