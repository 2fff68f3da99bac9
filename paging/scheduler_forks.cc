// Continuations of one prompt: requests that wait until the first of them has
// computed it, and then fork its sequence.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/paging/scheduler.h"

namespace quire {

// As many as can have seats.
void Scheduler::AddForks(const Request& request) {
  if (request.tokens + 1 == request.max_tokens) return;  // no rows of their own
  const uint32_t forks = std::min(request.forks, batch_limit_.value() - 1);
  growths_.insert(growths_.end(), forks,
                  {.computed = request.tokens,
                   .backed = request.tokens,
                   .tokens = request.tokens + 1,
                   .step_tokens = options_.max_num_batched_tokens,
                   .forks = true,
                   .limit = request.options.limit});
}

uint32_t Scheduler::SeatsTaken() const {
  uint64_t seats = running_.size();
  for (const auto& [id, request] : running_) seats += request.forks;
  return static_cast<uint32_t>(std::min<uint64_t>(seats, UINT32_MAX));
}

bool Scheduler::GetsToken(RequestId id) const {
  const auto fork = forks_.find(id);
  const auto it =
      running_.find(fork == forks_.end() ? id : fork->second.leader);
  return it != running_.end() && it->second.scheduled > 0 &&
         it->second.scheduled == it->second.remaining();
}

void Scheduler::BeginForks(RequestId leader_id, Request* leader) {
  leader->forks = 0;
  CountGrowths();
  for (auto fork = forks_.upper_bound(leader_id);
       fork != forks_.end() && fork->second.leader == leader_id;
       fork = forks_.erase(fork)) {
    Request request = {.tokens = leader->tokens + 1,
                       .max_tokens = leader->max_tokens,
                       .options = leader->options};
    if (fork->second.ends || request.tokens == request.max_tokens) {
      ++statistics_.ended;
    } else if (BeginFork(fork->first, *leader, &request)) {
      running_.emplace(fork->first, request);
      ++statistics_.forks;
    } else {
      waiting_.emplace(fork->first, request);
      ++statistics_.waiting_forks;
    }
  }
}

// Its kernels are queued behind the copies. Whatever the cache refuses, the
// request can compute by itself.
bool Scheduler::BeginFork(RequestId id, const Request& leader,
                          Request* request) {
  if (running_.size() >= batch_limit_.value()) return false;
  if (!waiting_.empty() && waiting_.begin()->first < id) return false;
  growths_.push_back({.computed = leader.computed,
                      .backed = leader.computed,
                      .tokens = request->tokens,
                      .step_tokens = options_.max_num_batched_tokens,
                      .forks = true,
                      .limit = request->options.limit});
  if (!cache_->HasRoomFor(growths_)) return false;
  const auto sequence = cache_->Fork(leader.sequence);
  if (!sequence.ok()) return false;
  request->sequence = *sequence;
  request->computed = leader.computed;
  request->backed = leader.computed;
  request->last_step = statistics_.steps;
  return true;
}

bool Scheduler::CancelFork(RequestId id) {
  const auto fork = forks_.find(id);
  if (fork == forks_.end()) return false;
  const RequestId leader = fork->second.leader;
  Requests& requests = running_.contains(leader) ? running_ : waiting_;
  --requests.find(leader)->second.forks;
  forks_.erase(fork);
  return true;
}

void Scheduler::HandOver(Requests* requests, Requests::iterator cancelled) {
  const RequestId id = cancelled->first;
  auto fork = forks_.upper_bound(id);
  const RequestId heir = fork->first;
  for (fork = forks_.erase(fork);
       fork != forks_.end() && fork->second.leader == id; ++fork)
    fork->second.leader = heir;
  auto node = requests->extract(cancelled);
  node.key() = heir;
  --node.mapped().forks;
  requests->insert(std::move(node));
  for (ScheduledTokens& scheduled : plan_) {
    if (scheduled.request == id) scheduled.request = heir;
  }
}

absl::Status Scheduler::CheckForks() const {
  uint64_t forks = 0;
  for (const Requests* requests : {&running_, &waiting_}) {
    for (const auto& [id, request] : *requests) forks += request.forks;
  }
  if (forks != forks_.size())
    return absl::InternalError(
        absl::StrCat("scheduler: ", forks_.size(),
                     " continuations wait, and requests know of ", forks));
  for (const auto& [id, fork] : forks_) {
    const Requests& requests =
        running_.contains(fork.leader) ? running_ : waiting_;
    const auto leader = requests.find(fork.leader);
    if (leader == requests.end() || leader->second.forks == 0 ||
        leader->second.last < id || id < fork.leader)
      return absl::InternalError(
          absl::StrCat("scheduler: request ", id.value(),
                       " waits for a prompt that nobody computes"));
  }
  return absl::OkStatus();
}

}  // namespace quire
