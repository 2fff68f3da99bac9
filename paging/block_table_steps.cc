// The steps of a BlockTableCache: blocks for tokens that come, copies where
// they are shared, and what is given back behind windows and by Shrink.

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "paging/block_table_cache_impl.h"
#include "paging/process_check.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<std::vector<BlockTableCacheImpl::Change>>
BlockTableCacheImpl::Plan(std::span<const SequenceStep> steps) {
  std::vector<Change> changes;
  changes.reserve(steps.size());
  // References that this step gives up: the last of several forks keeps the
  // block.
  absl::flat_hash_map<BlockId, uint32_t> given_up;
  ++attempted_steps_;
  for (const SequenceStep& step : steps) {
    QUIRE_ASSIGN_OR_RETURN(Sequence* const found,
                           Find(sequences_, step.sequence, "step"));
    if (step.length > options_.max_sequence_length)
      return absl::InvalidArgumentError(absl::StrCat(
          "block-table KV cache: a step of sequence ", step.sequence.value(),
          " to ", step.length, " tokens exceeds the maximum of ",
          options_.max_sequence_length));
    Sequence& sequence = *found;
    if (std::exchange(sequence.step, attempted_steps_) == attempted_steps_)
      return absl::InvalidArgumentError(
          absl::StrCat("block-table KV cache: sequence ", step.sequence.value(),
                       " is in one step twice"));
    QUIRE_RETURN_IF_ERROR(DropBehindWindows(&sequence, step.length));
    Change change = {.sequence = &sequence, .length = step.length};
    if (step.length > sequence.length) {
      for (uint32_t table = 0; table < geometry_.tables(); ++table)
        PlanTable(table, step.length, &given_up, &change);
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

// Rows from the old length on are written: where they lie in blocks that others
// read, or may find, they need blocks of their own.
void BlockTableCacheImpl::PlanTable(
    uint32_t table, uint64_t length,
    absl::flat_hash_map<BlockId, uint32_t>* given_up, Change* change) {
  const std::vector<BlockId>& blocks = change->sequence->tables[table].blocks;
  const uint64_t from = change->sequence->length;
  const uint64_t needed = geometry_.BlocksFor(length);
  const size_t first = from >> geometry_.block_shift();
  for (size_t i = first; i < std::min<uint64_t>(needed, blocks.size()); ++i) {
    const BlockId block = blocks[i];
    const bool shared = pool_.references(block) > 1 &&
                        pool_.references(block) - (*given_up)[block] > 1;
    if (!shared && !pool_.index().Contains(block)) continue;
    ++(*given_up)[block];
    const uint64_t rows =
        i == first ? from & (geometry_.block_tokens() - 1) : 0;
    change->blocks.push_back({table, i, rows, 1});
  }
  if (needed > blocks.size())
    change->blocks.push_back({table, blocks.size(), 0, needed - blocks.size()});
}

absl::Status BlockTableCacheImpl::CopyBlock(uint32_t table, BlockId from,
                                            BlockId to, uint64_t rows) {
  const uint64_t base = range_->address().value();
  for (uint32_t group = 0; group < layout().groups(); ++group) {
    if (geometry_.TableOf(group) != table) continue;
    const auto at = [&](BlockId block) {
      return DeviceAddress(base + geometry_.Offset(group).value() +
                           block * geometry_.BlockStride(group).value());
    };
    QUIRE_RETURN_IF_ERROR(memory_->driver()->CopyOnDevice(
        at(to), at(from), Bytes(rows * layout().RowBytes(group).value()),
        options_.stream));
  }
  return absl::OkStatus();
}

absl::Status BlockTableCacheImpl::CopyRows(std::span<const Change> changes,
                                           std::span<const BlockId> taken) {
  auto next = taken.begin();
  for (const Change& change : changes) {
    for (const NewBlocks& fresh : change.blocks) {
      const BlockId to = *next;
      next += static_cast<std::ptrdiff_t>(fresh.count);
      if (fresh.rows == 0) continue;
      QUIRE_RETURN_IF_ERROR(CopyBlock(
          fresh.table, change.sequence->tables[fresh.table].blocks[fresh.place],
          to, fresh.rows));
      ++block_copies_;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Fence>> BlockTableCacheImpl::TryStep(
    std::span<const SequenceStep> steps) {
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Change> changes, Plan(steps));
  uint64_t count = 0;
  for (const Change& change : changes) {
    for (const NewBlocks& fresh : change.blocks)
      count = SaturatingAdd(count, fresh.count);
  }
  std::vector<BlockId> taken;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<Fence> wait,
                         TryTake(count, 0, &taken));
  if (wait) return wait;
  const absl::Status copied = CopyRows(changes, taken);
  if (!copied.ok()) {
    GiveBack(taken, Fence());
    return copied;
  }

  auto next = taken.begin();
  for (const Change& change : changes) {
    Sequence& sequence = *change.sequence;
    for (const NewBlocks& fresh : change.blocks) {
      std::vector<BlockId>& table = sequence.tables[fresh.table].blocks;
      if (fresh.place == table.size()) {
        const auto end = next + static_cast<std::ptrdiff_t>(fresh.count);
        table.insert(table.end(), next, end);
        next = end;
        continue;
      }
      pool_.Unreference(std::exchange(table[fresh.place], *next++), Fence());
      Unpublish(&sequence, fresh.place);
    }
    sequence.batch = batch_;
    sequence.stepped = true;
    sequence.length = change.length;
  }
  return std::nullopt;
}

absl::Status BlockTableCacheImpl::Step(std::span<const SequenceStep> steps) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<Fence> wait, TryStep(steps));
    if (!wait) break;
    QUIRE_RETURN_IF_ERROR(wait->Wait());
  }
  CheckAfterMutation();
  return absl::OkStatus();
}

absl::Status BlockTableCacheImpl::Shrink(SequenceId id, uint64_t length,
                                         const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  {
    MutexLock lock(&mutex_);
    QUIRE_ASSIGN_OR_RETURN(Sequence* const found,
                           Find(sequences_, id, "shrink"));
    Sequence& sequence = *found;
    if (length > sequence.length)
      return absl::InvalidArgumentError(absl::StrCat(
          "block-table KV cache: sequence ", id.value(), " has ",
          sequence.length, " tokens and cannot shrink to ", length));
    QUIRE_RETURN_IF_ERROR(CheckGoingBack(sequence, length));
    const size_t kept = geometry_.BlocksFor(length);
    for (Table& table : sequence.tables) {
      GiveBack(std::span(table.blocks).subspan(kept), fence);
      table.blocks.resize(kept);
    }
    Unpublish(&sequence, length >> geometry_.block_shift());
    sequence.length = length;
  }
  CheckAfterMutation();
  return absl::OkStatus();
}

// ---- Windows ----------------------------------------------------------------

void BlockTableCacheImpl::EndBatch(const Fence& fence) {
  if (memory_->in_forked_child()) return;
  MutexLock lock(&mutex_);
  ++batch_;
  batch_fence_ = fence;
}

size_t BlockTableCacheImpl::GoneBehind(uint32_t table, uint64_t length,
                                       const KvTokenLimit& limit) const {
  const KvLayerKind kept = Kept(table, limit);
  if (kept.window == 0) return 0;
  return std::max<uint64_t>(
      geometry_.BlocksFor(kept.sinks),
      KeptTokens(kept, length).first >> geometry_.block_shift());
}

uint64_t BlockTableCacheImpl::BlocksToGrow(const SequenceGrowth& growth) const {
  uint64_t blocks = 0;
  const KvTokenLimit limit = options_.limit.max_tokens == 0
                                 ? growth.limit.value_or(KvTokenLimit())
                                 : KvTokenLimit();
  for (uint32_t table = 0; table < geometry_.tables(); ++table) {
    uint64_t peak = geometry_.BlocksFor(growth.tokens);
    // A block that is partly used is copied by the first who writes there.
    uint64_t now = growth.forks ? growth.backed >> geometry_.block_shift()
                                : geometry_.BlocksFor(growth.backed);
    const KvLayerKind kept = Kept(table, limit);
    if (kept.window > 0) {
      const uint64_t sinks = GoneBehind(table, 0, limit);
      // A step, and the window of its first token, wherever in its block.
      const uint64_t seen = std::min(
          SaturatingAdd(kept.window, growth.step_tokens), growth.tokens);
      peak = std::min(peak, sinks + geometry_.BlocksFor(seen) + 1);
      now = SaturatingSubtract(
          now, GoneBehind(table, SaturatingAdd(growth.computed, uint64_t{1}),
                          limit) -
                   sinks);
    }
    blocks = SaturatingAdd(blocks, SaturatingSubtract(peak, now));
  }
  return blocks;
}

absl::Status BlockTableCacheImpl::CheckGoingBack(const Sequence& sequence,
                                                 uint64_t length) const {
  for (uint32_t table = 0; table < geometry_.tables(); ++table) {
    // The next kernel sees the window of the token that comes next.
    if (sequence.tables[table].gone >
        GoneBehind(table, SaturatingAdd(length, 1), sequence.limit))
      return absl::FailedPreconditionError(
          absl::StrCat("block-table KV cache: a sequence of ", sequence.length,
                       " tokens cannot go back to ", length,
                       ": tokens in its window were dropped"));
  }
  return absl::OkStatus();
}

// A kernel sees the windows of the tokens that it computes. So once a step
// begins, what ends before the window of its first new token is only of use to
// kernels of earlier batches, whose end EndBatch has told.
absl::Status BlockTableCacheImpl::DropBehindWindows(Sequence* sequence,
                                                    uint64_t length) {
  if (geometry_.KeepsAllTokens() && sequence->limit.max_tokens == 0)
    return absl::OkStatus();
  // A step that goes back computes its last token anew, or none.
  if (length < sequence->length)
    return CheckGoingBack(*sequence, SaturatingSubtract(length, 1));
  if (sequence->batch == batch_) return absl::OkStatus();
  // What was admitted is yet to be computed.
  if (!sequence->stepped && length == sequence->length) return absl::OkStatus();
  const uint64_t next = std::min(sequence->length + 1, length);
  for (uint32_t number = 0; number < geometry_.tables(); ++number) {
    Table& table = sequence->tables[number];
    const size_t end = GoneBehind(number, next, sequence->limit);
    for (; table.gone < end; ++table.gone) {
      pool_.Unreference(std::exchange(table.blocks[table.gone], kNoBlock),
                        batch_fence_);
      ++dropped_blocks_;
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
