// The state of a BlockTableCache. Internal: block_table_cache.cc admits,
// reports and ends sequences, block_table_steps.cc makes them longer and
// shorter.
//
// Kernels and copies follow each other on one stream. So a block that leaves a
// table may be written for another one at once, by what is queued from then on;
// fences matter only where the caller gives them.

#ifndef QUIRE_PAGING_BLOCK_TABLE_CACHE_IMPL_H_
#define QUIRE_PAGING_BLOCK_TABLE_CACHE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "paging/block_geometry.h"
#include "paging/block_pool.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/internal_checks.h"
#include "quire/alloc/mutex.h"
#include "quire/paging/block_table_cache.h"

namespace quire {

// Of a cache's sequences; kNotFound where there is none `to` do something with.
template <typename Sequences>
auto Find(Sequences& sequences, SequenceId id, const char* to)
    -> absl::StatusOr<decltype(&sequences.begin()->second)> {
  const auto found = sequences.find(id);
  if (found == sequences.end())
    return absl::NotFoundError(absl::StrCat(
        "block-table KV cache: no sequence ", id.value(), " to ", to));
  return &found->second;
}

class BlockTableCacheImpl final : public BlockTableCache {
 public:
  BlockTableCacheImpl(DeviceMemory* memory, AddressRange* range,
                      const BlockGeometry& geometry,
                      const BlockTableCacheOptions& options)
      : memory_(memory),
        range_(range),
        geometry_(geometry),
        options_(options),
        pool_(geometry.blocks(), geometry.TablesThatKeepAllTokens()) {}
  // Nothing uses a sequence any more. Harmless in a forked child.
  ~BlockTableCacheImpl() override { memory_->ReleaseRange(range_, Fence()); }

  const KvLayout& layout() const override { return geometry_.layout(); }
  uint64_t max_sequence_length() const override {
    return options_.max_sequence_length;
  }
  absl::StatusOr<SequenceId> Admit(uint64_t tokens,
                                   std::optional<KvTokenLimit> limit) override;
  bool KeepsAllTokens() const override { return geometry_.KeepsAllTokens(); }
  absl::StatusOr<PromptAdmission> AdmitPrompt(
      std::span<const int32_t> tokens) override;
  absl::StatusOr<PromptAdmission> AdmitPromptInSteps(
      std::span<const int32_t> tokens, uint64_t step_tokens,
      const SequenceOptions& options) override;
  absl::StatusOr<SequenceId> Fork(SequenceId parent) override;
  absl::Status Publish(SequenceId sequence,
                       std::span<const int32_t> tokens) override;
  absl::Status Step(std::span<const SequenceStep> steps) override;
  absl::Status Shrink(SequenceId sequence, uint64_t length,
                      const Fence& fence) override;
  void EndBatch(const Fence& fence) override;
  absl::Status Release(SequenceId sequence, const Fence& fence) override;

  absl::StatusOr<uint64_t> Length(SequenceId sequence) const override;
  absl::Status CheckLimit(const KvTokenLimit& limit) const override {
    return OwnLimit(limit).status();
  }
  uint64_t AdmissibleTokens() const override;
  bool HasRoomFor(std::span<const SequenceGrowth> growths) const override;
  absl::StatusOr<KvLayerView> View(SequenceId sequence,
                                   uint32_t layer) const override;
  CacheUse Use() const override;
  absl::StatusOr<Bytes> FreedByRelease(SequenceId sequence) const override;
  BlockTableCacheStatistics GetStatistics() const override;
  absl::Status CheckInvariants() const override;

 private:
  struct Table {
    std::vector<BlockId> blocks;  // kNoBlock: behind the window
    // Places from the sinks' on and before this one have no block.
    size_t gone = 0;
  };
  // Nearly all models have one table, as long as no layer has a window.
  using Tables = absl::InlinedVector<Table, 1>;
  using PlaceId = BlockPrefixIndex::PlaceId;
  struct Sequence {
    uint64_t length = 0;
    Tables tables;
    // Of the index, in which the first so many blocks of the tables are as far
    // as they are here, and the last of them, which is held.
    size_t published = 0;
    PlaceId place = BlockPrefixIndex::kStart;
    uint64_t step = 0;     // the last Step that named it
    uint64_t batch = 0;    // in which its last kernels may be
    bool stepped = false;  // since it was admitted
    KvTokenLimit limit;    // of its own; the cache then has none
  };
  using Sequences = absl::flat_hash_map<SequenceId, Sequence>;

  // Places of a table where blocks come that may be written: behind its end, or
  // one in the place of another block.
  struct NewBlocks {
    uint32_t table;
    size_t place;
    uint64_t rows;  // of the block that was there, to be copied
    uint64_t count;
  };
  // What a step does to a sequence.
  struct Change {
    Sequence* sequence;
    uint64_t length;
    std::vector<NewBlocks> blocks;
  };

  // A sequence that is to have `tokens` tokens, those of `prompt` where they
  // are known, in steps of at most `step_tokens`.
  struct Admission {
    uint64_t tokens;
    uint64_t step_tokens = UINT64_MAX;
    std::span<const int32_t> prompt;
    KvTokenLimit limit = {};  // of its own
  };
  // The attempts return a fence where it must be waited for before the next
  // one; nothing has changed then, nor after an error.
  absl::StatusOr<std::optional<Fence>> TryAdmit(const Admission& wanted,
                                                PromptAdmission* admission)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::optional<Fence>> TryStep(
      std::span<const SequenceStep> steps) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::optional<Fence>> TryTake(uint64_t count,
                                               uint64_t headroom,
                                               std::vector<BlockId>* taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Backs the first step behind what is cached of the prompt, or, where no
  // token is dropped, all, and leaves room for the rest.
  absl::StatusOr<PromptAdmission> AdmitWaiting(const Admission& wanted)
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<std::vector<Change>> Plan(std::span<const SequenceStep> steps)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the step to `length` writes in the table, and where that needs blocks.
  // `given_up`: references that the steps planned so far give up.
  void PlanTable(uint32_t table, uint64_t length,
                 absl::flat_hash_map<BlockId, uint32_t>* given_up,
                 Change* change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Before a step of the sequence to `length`: gives back what its kernels do
  // not see, and those before it have seen.
  absl::Status DropBehindWindows(Sequence* sequence, uint64_t length)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the windows of the token behind `length` tokens are there.
  absl::Status CheckGoingBack(const Sequence& sequence, uint64_t length) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the layers of a table keep under a limit of the sequence's own.
  KvLayerKind Kept(uint32_t table, const KvTokenLimit& limit) const {
    return WithLimit(geometry_.Kept(table), limit);
  }
  // The places of a table that its window has left, for a sequence of `length`
  // tokens: up to here, from the sinks' on.
  size_t GoneBehind(uint32_t table, uint64_t length,
                    const KvTokenLimit& limit = {}) const;
  // Blocks that the growth takes at its peak beyond those that it needs now.
  uint64_t BlocksToGrow(const SequenceGrowth& growth) const;
  // Queues the copies of all changes, whose blocks are `taken` in their order.
  absl::Status CopyRows(std::span<const Change> changes,
                        std::span<const BlockId> taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CopyBlock(uint32_t table, BlockId from, BlockId to,
                         uint64_t rows);

  // The places of the first tokens of a prompt that a sequence can continue:
  // whole blocks and not the last token. Each table has the blocks that the
  // next token sees.
  std::vector<PlaceId> FindPrefix(std::span<const int32_t> prompt) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the sequence what is in these places.
  void TakePrefix(std::span<const PlaceId> places, Sequence* sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Publishes the next block of the sequence, which holds `tokens`.
  absl::Status PublishNext(SequenceId id, std::span<const int32_t> tokens,
                           Sequence* sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // No more than its first `places` blocks are published of the sequence.
  void Unpublish(Sequence* sequence, size_t places)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::span<const int32_t> TokensOf(size_t block,
                                    std::span<const int32_t> tokens) const {
    return tokens.subspan(block * geometry_.block_tokens(),
                          geometry_.block_tokens());
  }
  // Last block first: a chain is used again from its end.
  void GiveBack(std::span<const BlockId> blocks, const Fence& fence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (size_t i = blocks.size(); i > 0; --i) {
      if (blocks[i - 1] != kNoBlock) pool_.Unreference(blocks[i - 1], fence);
    }
  }
  void GiveBack(const Tables& tables, const Fence& fence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Table& table : tables) GiveBack(table.blocks, fence);
  }
  // One that is not the cache's; else none. kInvalidArgument for what is no
  // limit, and for another one where the cache has one.
  absl::StatusOr<KvTokenLimit> OwnLimit(
      const std::optional<KvTokenLimit>& limit) const;
  absl::Status CheckFreeSlot() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // With room for as long as the sequence may get.
  Tables MakeTables(const KvTokenLimit& limit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SequenceId Insert(Sequence sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes BytesOf(uint64_t blocks) const {
    return Bytes(blocks * geometry_.BlockBytes().value());
  }
  // In checking builds, after every operation.
  void CheckAfterMutation() const ABSL_LOCKS_EXCLUDED(mutex_) {
    if constexpr (kInternalChecks) RequireInvariant(CheckInvariants());
  }

  DeviceMemory* const memory_;
  AddressRange* const range_;
  const BlockGeometry geometry_;
  const BlockTableCacheOptions options_;

  mutable Mutex mutex_;
  BlockPool pool_ ABSL_GUARDED_BY(mutex_);
  Sequences sequences_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t attempted_steps_ ABSL_GUARDED_BY(mutex_) = 0;
  // Batches that were ended, and what the last one waits for.
  uint64_t batch_ ABSL_GUARDED_BY(mutex_) = 1;
  Fence batch_fence_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t block_copies_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t cached_prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_BLOCK_TABLE_CACHE_IMPL_H_
