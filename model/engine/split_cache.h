// The KV cache of a model whose layers run on several devices: one cache per
// device, with the rows of the layers that run there, taken for one.
//
// A sequence is one in every cache. What fails in one of them is undone in the
// others. Prompts are not shared: the caches would not agree on how much of a
// prompt they have. A sequence is swapped out where every cache can do that.

#ifndef QUIRE_MODEL_ENGINE_SPLIT_CACHE_H_
#define QUIRE_MODEL_ENGINE_SPLIT_CACHE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/mutex.h"
#include "quire/paging/sequence_cache.h"
#include "quire/paging/sequence_swap.h"

namespace quire {

// Where the rows of a layer are.
struct SplitLayer {
  size_t part = 0;     // the cache
  uint32_t layer = 0;  // in it
};

class SplitCache final : public SequenceCache, public SequenceSwap {
 public:
  // `layout` is of all layers; `layers` says where each one is. REQUIRES: at
  // least one part, and every SplitLayer is in its part.
  SplitCache(const KvLayout& layout, std::vector<SplitLayer> layers,
             std::vector<std::unique_ptr<SequenceCache>> parts);

  const KvLayout& layout() const override { return layout_; }
  uint64_t max_sequence_length() const override;
  bool KeepsAllTokens() const override;
  absl::StatusOr<SequenceId> Admit(
      uint64_t tokens,
      std::optional<KvTokenLimit> limit = std::nullopt) override;
  absl::StatusOr<PromptAdmission> AdmitPromptInSteps(
      std::span<const int32_t> tokens, uint64_t step_tokens,
      const SequenceOptions& options = {}) override;
  absl::StatusOr<SequenceId> Fork(SequenceId parent) override;
  absl::Status Step(std::span<const SequenceStep> steps) override;
  absl::Status Shrink(SequenceId sequence, uint64_t length,
                      const Fence& fence) override;
  void EndBatch(const Fence& fence) override;
  absl::Status Release(SequenceId sequence, const Fence& fence) override;
  absl::StatusOr<uint64_t> Length(SequenceId sequence) const override;
  absl::Status CheckLimit(const KvTokenLimit& limit) const override;
  uint64_t AdmissibleTokens() const override;
  bool HasRoomFor(std::span<const SequenceGrowth> growths) const override;
  void AdvanceClock(uint64_t now) override;
  bool PrepareRoom(std::span<const int32_t> prompt,
                   const SequenceGrowth& growth) override;
  absl::Status PrepareNextSteps() override;
  CacheUse Use() const override;
  absl::StatusOr<Bytes> FreedByRelease(SequenceId sequence) const override;
  absl::StatusOr<KvLayerView> View(SequenceId sequence,
                                   uint32_t layer) const override;
  absl::Status CheckInvariants() const override;

  // ---- SequenceSwap ----
  // Null where a cache has no swap space.
  SequenceSwap* swap() override;
  // Another error of both: kDataLoss where a cache fails and another one cannot
  // undo what it did; the sequence can then be released and nothing else.
  absl::Status SwapOut(SequenceId sequence, const Fence& fence) override;
  absl::Status SwapIn(SequenceId sequence) override;

 private:
  // The sequence's id in each part.
  absl::StatusOr<std::vector<SequenceId>> Find(SequenceId sequence) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A sequence that `begin(part index)` begins in every part, or in none.
  absl::StatusOr<SequenceId> BeginInAll(
      absl::FunctionRef<absl::StatusOr<SequenceId>(size_t)> begin);
  // Shrinks the sequences of the first `parts` parts to what they had.
  void UndoStep(size_t parts,
                std::span<const std::vector<SequenceStep>> before) const;

  const KvLayout layout_;
  const std::vector<SplitLayer> layers_;
  const std::vector<std::unique_ptr<SequenceCache>> parts_;

  // Held for look-ups only, never over a call of a part.
  mutable Mutex mutex_;
  std::map<SequenceId, std::vector<SequenceId>> sequences_
      ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_SPLIT_CACHE_H_
