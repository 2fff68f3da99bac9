// What an engine, a scheduler and a benchmark need of a KV cache, whatever it
// keeps its rows in: contiguous regions (KvCache), tables of blocks, or slots
// of the longest length.
//
// Life of a sequence: Admit takes its first tokens, Step makes room for the
// next ones before the kernels run, View says where they are, Shrink drops the
// last ones, Release ends it. An id that names no sequence is kNotFound.
//
// Thread-safe. Kernels that use a sequence must be ordered by the caller: after
// Step, and before the fence given to Shrink or Release, which must
// cover *every* kernel queued so far that uses the sequence. A fence must be
// able to complete without a further call of the cache: where memory is short,
// Admit and Step wait for it.

#ifndef QUIRE_PAGING_SEQUENCE_CACHE_H_
#define QUIRE_PAGING_SEQUENCE_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/units.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/kv_view.h"
#include "quire/paging/sequence_id.h"
#include "quire/paging/sequence_swap.h"

namespace quire {

struct SequenceStep {
  SequenceId sequence;
  uint64_t length;  // tokens that must be backed after the step
};

// How full a cache is, for whoever decides what runs.
struct CacheUse {
  // Under the lengths of admitted sequences: nothing but Shrink and Release
  // makes it free.
  Bytes needed;
  // Physical memory that the cache keeps for itself: what is needed, partly
  // used pages, what is mapped ahead and what is parked.
  Bytes held;
  // What is needed, and what sequences could still get: with all that others
  // could give, and below the limits of the owner.
  Bytes capacity;

  // 1 where nothing can be had.
  double fraction() const {
    return capacity.zero() ? 1
                           : static_cast<double>(needed.value()) /
                                 static_cast<double>(capacity.value());
  }
};

// A sequence that is to have `tokens` tokens, by steps of at most
// `step_tokens`.
struct SequenceGrowth {
  uint64_t computed = 0;  // of its tokens, so far
  uint64_t backed = 0;
  uint64_t tokens = 0;
  uint64_t step_tokens = UINT64_MAX;
  // It is to be forked from a sequence of `backed` tokens: whole pages, or
  // blocks, of these are shared.
  bool forks = false;
  std::optional<KvTokenLimit> limit;  // of its own
};

// How a sequence is kept, and for how long what it leaves behind.
struct SequenceOptions {
  // Of what the sequence publishes, once it is released, in caches that keep
  // prefixes by more than their last use: the larger, the later it is given up.
  // From the time `retain_until` of AdvanceClock on it is 0.
  int32_t priority = 0;
  uint64_t retain_until = UINT64_MAX;
  // In place of the cache's: max_cache_len. Where it is another one, the
  // sequence neither finds nor publishes a prefix: others would drop other
  // tokens.
  std::optional<KvTokenLimit> limit;
};

struct PromptAdmission {
  SequenceId sequence;
  // Of the prompt's tokens, the first so many have their rows already.
  uint64_t cached_tokens = 0;
};

class SequenceCache {
 public:
  virtual ~SequenceCache() = default;

  virtual const KvLayout& layout() const = 0;
  virtual uint64_t max_sequence_length() const = 0;
  // False where layers have windows, or all sequences a limit, behind which
  // memory is given back: a prompt that is computed in steps then holds less at
  // its peak than one that is backed as a whole. So does one with a limit of
  // its own, whatever this says.
  virtual bool KeepsAllTokens() const { return true; }

  // Whether sequences can have such a limit of their own. kInvalidArgument for
  // one of no more than its sinks, and for what the cache cannot hold beside
  // its own limit.
  virtual absl::Status CheckLimit(const KvTokenLimit& limit) const {
    return CheckTokenLimit(limit);
  }
  // Takes a sequence of `tokens` tokens and backs them, where the headroom is
  // left. Errors, all of which change nothing: kInvalidArgument for more than
  // max_sequence_length tokens; kResourceExhausted where memory, addresses or
  // sequence slots do not suffice (the message says which): the caller may
  // queue it and try again; with a limit of its own, those of CheckLimit.
  virtual absl::StatusOr<SequenceId> Admit(
      uint64_t tokens, std::optional<KvTokenLimit> limit = std::nullopt) = 0;
  // Admit for a prompt whose tokens are known: a cache that keeps prefixes
  // backs its first tokens with rows that others have published. The last token
  // is never among them: its logits are wanted.
  virtual absl::StatusOr<PromptAdmission> AdmitPrompt(
      std::span<const int32_t> tokens) {
    absl::StatusOr<SequenceId> sequence = Admit(tokens.size());
    if (!sequence.ok()) return sequence.status();
    return PromptAdmission{*sequence};
  }
  // AdmitPrompt for a prompt that is computed in steps of at most `step_tokens`
  // tokens. Where tokens are dropped, the first step is backed, behind what is
  // cached, and the rest is refused unless there is room for its peak.
  virtual absl::StatusOr<PromptAdmission> AdmitPromptInSteps(
      std::span<const int32_t> tokens, uint64_t /*step_tokens*/,
      const SequenceOptions& options = {}) {
    if (!options.limit) return AdmitPrompt(tokens);
    const auto sequence = Admit(tokens.size(), options.limit);
    if (!sequence.ok()) return sequence.status();
    return PromptAdmission{*sequence};
  }
  // `tokens` are the first tokens of the sequence, and their rows are written,
  // or will be before anything reads them that the caller queues from now on: a
  // cache that keeps prefixes may back others with these rows. To be called
  // with ever more tokens as the sequence grows; what was published must not be
  // written again before Shrink or Release. Error: kInvalidArgument for more
  // tokens than the sequence has.
  virtual absl::Status Publish(SequenceId /*sequence*/,
                               std::span<const int32_t> /*tokens*/) {
    return absl::OkStatus();
  }
  // A prompt that begins with `tokens` waits for its turn: a cache that keeps
  // prefixes may keep these rows longer than what nobody waits for, the longer
  // the sooner the turn is. Turns are numbers in the order of admission.
  virtual void ExpectPrompt(std::span<const int32_t> /*tokens*/,
                            uint64_t /*turn*/) {}
  // The time that SequenceOptions::retain_until is compared with; never less
  // than the last one.
  virtual void AdvanceClock(uint64_t /*now*/) {}
  // Turns before `turn` are over.
  virtual void AdvanceTurn(uint64_t /*turn*/) {}
  // A new sequence with the tokens of `parent`, which both may continue, each
  // with rows of its own. What neither writes again is shared where the cache
  // can do that; rows beside which the next ones come are copied, at once or
  // when one of the two comes to write there, so that the Step of either may
  // need memory for it; slots have no memory in common, and all is copied. What
  // was published of the parent counts for both, and so do its priority, its
  // retention and its limit.
  //
  // Rows are copied on the stream of the cache's options. The kernels that
  // wrote the parent's must be queued there before, or be complete, and those
  // of the new sequence come after; of the two sequences either may end first,
  // under a fence that knows nothing of the copies.
  //
  // No headroom is left. Errors, all of which change nothing: kNotFound;
  // kResourceExhausted as of Admit; kFailedPrecondition where the parent is
  // swapped out, or the cache has no stream to copy on; the driver's.
  virtual absl::StatusOr<SequenceId> Fork(SequenceId parent) = 0;
  // Backs every sequence up to its length: all, or none and an error, which is
  // kResourceExhausted where memory is short and the hooks of the device memory
  // gave up nothing; they may release sequences of this cache. A length below
  // the last one keeps the memory (Shrink gives it back).
  virtual absl::Status Step(std::span<const SequenceStep> steps) = 0;
  // Gives back what lies behind `length` tokens, when `fence` completes. What
  // lay there is lost, also where a Step brings the memory back. Pages that the
  // driver refuses to unmap are an error, and lost to this sequence: release
  // it.
  virtual absl::Status Shrink(SequenceId sequence, uint64_t length,
                              const Fence& fence) = 0;
  // `fence` covers every kernel queued so far that uses a sequence of the
  // cache. A cache that gives back what no later kernel sees, behind windows or
  // a limit, may do so from the next Step of each sequence on, whose kernels
  // are taken to compute the tokens behind the length of its last Step: a
  // prompt that is computed in chunks is stepped to the end of each. The first
  // Step after an admission, if to no more tokens than that has backed, says
  // where the first chunk ends, and drops nothing. Without EndBatch all tokens
  // stay.
  virtual void EndBatch(const Fence& /*fence*/) {}
  // The id is dead at once. Nothing of it serves another sequence before
  // `fence` completes.
  virtual absl::Status Release(SequenceId sequence, const Fence& fence) = 0;

  virtual absl::StatusOr<uint64_t> Length(SequenceId sequence) const = 0;
  // The longest sequence that Admit would take now, as far as memory and slots
  // go; 0 where it would take none.
  virtual uint64_t AdmissibleTokens() const = 0;
  // Whether there is memory for all of these, each at its peak. A cache that
  // would take the longest sequence says no more than that, unless it counts
  // better.
  virtual bool HasRoomFor(std::span<const SequenceGrowth> growths) const {
    uint64_t tokens = 0;
    for (const SequenceGrowth& growth : growths)
      tokens = SaturatingAdd(tokens, growth.tokens - growth.backed);
    return AdmissibleTokens() >= std::min(tokens, max_sequence_length());
  }
  // Before an admission of `tokens` tokens while the device computes, of which
  // `prompt` says the first ones as far as they are known: makes free what it
  // would have to take from what is kept for others. False where that would
  // outlast the step that the device computes: the rest is for the next one.
  // A cache that keeps nothing for others has nothing to do.
  virtual bool PrepareRoom(std::span<const int32_t> /*prompt*/,
                           const SequenceGrowth& /*growth*/) {
    return true;
  }
  // While the device computes the last Step: maps what the next ones will need,
  // and gives back what no later kernel sees, as far as there is time for it.
  // No page that a length of a sequence needs is touched, so kernels may run.
  // Errors: the driver's; the next Step does itself what was not done. A cache
  // that has all of its memory from the start has nothing to do.
  virtual absl::Status PrepareNextSteps() { return absl::OkStatus(); }
  virtual CacheUse Use() const = 0;
  // What Release would make free for others: nothing of what the sequence
  // shares, or does not need.
  virtual absl::StatusOr<Bytes> FreedByRelease(SequenceId sequence) const = 0;
  // Error: kInvalidArgument for a layer that the layout does not have.
  virtual absl::StatusOr<KvLayerView> View(SequenceId sequence,
                                           uint32_t layer) const = 0;
  // What moves sequences of the cache to host memory and back; null where it
  // does not do that, or has no swap space.
  virtual SequenceSwap* swap() { return nullptr; }
  // Walks everything; an error names what does not hold.
  virtual absl::Status CheckInvariants() const = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_SEQUENCE_CACHE_H_
