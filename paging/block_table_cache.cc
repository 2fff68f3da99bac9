#include "quire/paging/block_table_cache.h"

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
namespace {

// kNotFound where there is no such sequence `to` do something with.
template <typename Sequences>
auto Find(Sequences& sequences, SequenceId id, const char* to)
    -> absl::StatusOr<decltype(&sequences.begin()->second)> {
  const auto found = sequences.find(id);
  if (found == sequences.end())
    return absl::NotFoundError(absl::StrCat(
        "block-table KV cache: no sequence ", id.value(), " to ", to));
  return &found->second;
}

}  // namespace

// ---- Admission --------------------------------------------------------------

absl::StatusOr<std::optional<Fence>> BlockTableCacheImpl::TryTake(
    uint64_t count, uint64_t headroom, std::vector<BlockId>* taken) {
  if (SaturatingAdd(count, headroom) > pool_.free())
    return absl::ResourceExhaustedError(absl::StrCat(
        "block-table KV cache: ", count, " blocks of ",
        geometry_.block_tokens(), " tokens are needed beside a headroom of ",
        headroom, ", ", pool_.free(), " of ", pool_.size(),
        " are free: release or preempt a sequence, or try again later"));
  if (count > 0) pool_.Harvest();
  while (taken->size() < count) {
    const std::optional<BlockId> block = pool_.Take();
    if (!block) {
      GiveBack(*taken, Fence());
      taken->clear();
      return pool_.NextFence();
    }
    taken->push_back(*block);
  }
  return std::nullopt;
}

absl::Status BlockTableCacheImpl::CheckFreeSlot() const {
  if (sequences_.size() < options_.max_sequences) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("block-table KV cache: all ",
                                                   options_.max_sequences,
                                                   " sequences are in use"));
}

std::vector<BlockId> BlockTableCacheImpl::MakeTable() const {
  std::vector<BlockId> table;
  table.reserve(std::min<uint64_t>(
      geometry_.BlocksFor(options_.max_sequence_length), pool_.size()));
  return table;
}

SequenceId BlockTableCacheImpl::Insert(Sequence sequence) {
  const SequenceId id(++last_id_);
  sequences_.emplace(id, std::move(sequence));
  return id;
}

std::vector<BlockId> BlockTableCacheImpl::FindPrefix(
    std::span<const int32_t> prompt) const {
  std::vector<BlockId> blocks;
  if (!options_.prefix_caching || prompt.empty()) return blocks;
  const size_t whole = (prompt.size() - 1) >> geometry_.block_shift();
  BlockId parent = kNoBlock;
  while (blocks.size() < whole) {
    const auto found =
        pool_.index().Find(parent, TokensOf(blocks.size(), prompt));
    if (!found) break;
    parent = *found;
    blocks.push_back(parent);
  }
  return blocks;
}

absl::StatusOr<std::optional<Fence>> BlockTableCacheImpl::TryAdmit(
    uint64_t tokens, std::span<const int32_t> prompt,
    PromptAdmission* admission) {
  MutexLock lock(&mutex_);
  QUIRE_RETURN_IF_ERROR(CheckFreeSlot());
  Sequence sequence = {.table = MakeTable()};
  for (const BlockId block : FindPrefix(prompt)) {
    // Taken now, so that it is not used for what the prompt lacks.
    pool_.Reference(block);
    sequence.table.push_back(block);
  }
  std::vector<BlockId> taken;
  const auto wait = TryTake(geometry_.BlocksFor(tokens) - sequence.table.size(),
                            options_.headroom_blocks, &taken);
  if (!wait.ok() || *wait) {
    GiveBack(sequence.table, Fence());
    return wait;
  }
  sequence.published = sequence.table.size();
  sequence.length = tokens;
  sequence.table.insert(sequence.table.end(), taken.begin(), taken.end());
  admission->cached_tokens = sequence.published << geometry_.block_shift();
  admission->sequence = Insert(std::move(sequence));
  prompt_tokens_ += prompt.size();
  cached_prompt_tokens_ += admission->cached_tokens;
  return std::nullopt;
}

absl::StatusOr<PromptAdmission> BlockTableCacheImpl::AdmitWaiting(
    uint64_t tokens, std::span<const int32_t> prompt) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  if (tokens > options_.max_sequence_length)
    return absl::InvalidArgumentError(absl::StrCat(
        "block-table KV cache: a sequence of ", tokens,
        " tokens exceeds the maximum of ", options_.max_sequence_length));
  PromptAdmission admission;
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<Fence> wait,
                           TryAdmit(tokens, prompt, &admission));
    if (!wait) break;
    QUIRE_RETURN_IF_ERROR(wait->Wait());
  }
  CheckAfterMutation();
  return admission;
}

absl::StatusOr<SequenceId> BlockTableCacheImpl::Admit(uint64_t tokens) {
  QUIRE_ASSIGN_OR_RETURN(const PromptAdmission admission,
                         AdmitWaiting(tokens, {}));
  return admission.sequence;
}

absl::StatusOr<PromptAdmission> BlockTableCacheImpl::AdmitPrompt(
    std::span<const int32_t> tokens) {
  return AdmitWaiting(tokens.size(), tokens);
}

absl::StatusOr<SequenceId> BlockTableCacheImpl::Fork(SequenceId parent) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  SequenceId id;
  {
    MutexLock lock(&mutex_);
    QUIRE_ASSIGN_OR_RETURN(const Sequence* const found,
                           Find(sequences_, parent, "fork"));
    QUIRE_RETURN_IF_ERROR(CheckFreeSlot());
    const Sequence& from = *found;
    Sequence sequence = {.length = from.length, .table = MakeTable()};
    sequence.table.assign(
        from.table.begin(),
        from.table.begin() +
            static_cast<ptrdiff_t>(geometry_.BlocksFor(from.length)));
    sequence.published = std::min<size_t>(
        from.published, from.length >> geometry_.block_shift());
    for (const BlockId block : sequence.table) pool_.Reference(block);
    id = Insert(std::move(sequence));
  }
  CheckAfterMutation();
  return id;
}

// Where somebody was faster with the same tokens, his block takes the place of
// ours: later blocks are found behind it, and must not be lost with it.
absl::Status BlockTableCacheImpl::Publish(SequenceId id,
                                          std::span<const int32_t> tokens) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  {
    MutexLock lock(&mutex_);
    QUIRE_ASSIGN_OR_RETURN(Sequence* const found,
                           Find(sequences_, id, "publish"));
    Sequence& sequence = *found;
    if (tokens.size() > sequence.length)
      return absl::InvalidArgumentError(absl::StrCat(
          "block-table KV cache: sequence ", id.value(), " has ",
          sequence.length, " tokens, not ", tokens.size(), " to publish"));
    if (!options_.prefix_caching) return absl::OkStatus();
    const size_t whole = tokens.size() >> geometry_.block_shift();
    for (size_t& i = sequence.published; i < whole; ++i) {
      const BlockId parent = i == 0 ? kNoBlock : sequence.table[i - 1];
      BlockId& block = sequence.table[i];
      const auto known = pool_.index().Find(parent, TokensOf(i, tokens));
      if (known == block) continue;
      if (known) {
        pool_.Reference(*known);
        pool_.Unreference(std::exchange(block, *known), Fence());
      } else if (pool_.index().Contains(block)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "block-table KV cache: sequence ", id.value(), " publishes tokens ",
            i << geometry_.block_shift(),
            " and on, which a fork of it has published as others"));
      } else {
        pool_.index().Insert(parent, TokensOf(i, tokens), block);
      }
    }
  }
  CheckAfterMutation();
  return absl::OkStatus();
}

// ---- Steps ------------------------------------------------------------------

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
    Change change = {.sequence = &sequence, .length = step.length};
    if (step.length > sequence.length) {
      // Rows from the old length on are written: where they lie in blocks that
      // others read, or may find, they need blocks of their own.
      const uint64_t needed = geometry_.BlocksFor(step.length);
      const uint64_t present = sequence.table.size();
      const size_t first = sequence.length >> geometry_.block_shift();
      for (size_t i = first; i < std::min(needed, present); ++i) {
        const BlockId block = sequence.table[i];
        const bool shared = pool_.references(block) > 1 &&
                            pool_.references(block) - given_up[block] > 1;
        if (!shared && !pool_.index().Contains(block)) continue;
        ++given_up[block];
        const uint64_t rows =
            i == first ? sequence.length & (geometry_.block_tokens() - 1) : 0;
        change.replacements.push_back({i, rows});
      }
      change.additions = SaturatingSubtract(needed, present);
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

absl::Status BlockTableCacheImpl::CopyBlock(BlockId from, BlockId to,
                                            uint64_t rows) {
  const uint64_t base = range_->address().value();
  for (uint32_t group = 0; group < layout().groups(); ++group) {
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
  for (const Change& change : changes) {
    const std::span<const BlockId> own = taken.first(change.blocks());
    taken = taken.subspan(change.blocks());
    for (size_t i = 0; i < change.replacements.size(); ++i) {
      const Replacement& replacement = change.replacements[i];
      if (replacement.rows == 0) continue;
      QUIRE_RETURN_IF_ERROR(CopyBlock(change.sequence->table[replacement.place],
                                      own[i], replacement.rows));
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
  for (const Change& change : changes) count += change.blocks();
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
    for (const Replacement& replacement : change.replacements) {
      pool_.Unreference(
          std::exchange(sequence.table[replacement.place], *next++), Fence());
      sequence.published = std::min(sequence.published, replacement.place);
    }
    for (uint64_t i = 0; i < change.additions; ++i)
      sequence.table.push_back(*next++);
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
    const size_t kept = geometry_.BlocksFor(length);

    GiveBack(std::span(sequence.table).subspan(kept), fence);
    sequence.table.resize(kept);
    sequence.published =
        std::min<size_t>(sequence.published, length >> geometry_.block_shift());
    sequence.length = length;
  }
  CheckAfterMutation();
  return absl::OkStatus();
}

absl::Status BlockTableCacheImpl::Release(SequenceId id, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  {
    MutexLock lock(&mutex_);
    QUIRE_ASSIGN_OR_RETURN(const Sequence* const sequence,
                           Find(sequences_, id, "release"));
    GiveBack(sequence->table, fence);
    sequences_.erase(id);
  }
  CheckAfterMutation();
  return absl::OkStatus();
}

// ---- Reading ----------------------------------------------------------------

absl::StatusOr<uint64_t> BlockTableCacheImpl::Length(SequenceId id) const {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Sequence* const sequence,
                         Find(sequences_, id, "measure"));
  return sequence->length;
}

uint64_t BlockTableCacheImpl::AdmissibleTokens() const {
  if (memory_->in_forked_child()) return 0;
  MutexLock lock(&mutex_);
  if (!CheckFreeSlot().ok()) return 0;
  const uint64_t blocks =
      SaturatingSubtract(pool_.free(), options_.headroom_blocks);
  return std::min(blocks << geometry_.block_shift(),
                  options_.max_sequence_length);
}

absl::StatusOr<KvLayerView> BlockTableCacheImpl::View(SequenceId id,
                                                      uint32_t layer) const {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  if (layer >= layout().layers())
    return absl::InvalidArgumentError(absl::StrCat(
        "block-table KV cache: no layer ", layer, " of ", layout().layers()));
  const KvLayout::LayerPlace& place = layout().PlaceOf(layer);
  const auto at = [&](const KvLayout::SidePlace& side, Bytes offset) {
    return DeviceAddress(range_->address().value() +
                         geometry_.Offset(side.group).value() + offset.value());
  };
  KvLayerView view;
  view.keys = at(place.keys, place.keys.offset);
  view.values = at(place.values, place.values.offset);
  view.row_stride = place.keys.row_stride;
  view.value_stride = place.values.row_stride;
  view.key_scales = at(place.keys, place.keys.scales);
  view.value_scales = at(place.values, place.values.scales);
  view.block_shift = geometry_.block_shift();
  view.block_stride = geometry_.BlockStride(place.keys.group);
  view.value_block_stride = geometry_.BlockStride(place.values.group);
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Sequence* const sequence,
                         Find(sequences_, id, "view"));
  view.block_table = sequence->table.data();
  return view;
}

CacheUse BlockTableCacheImpl::Use() const {
  if (memory_->in_forked_child()) return {};
  MutexLock lock(&mutex_);
  CacheUse use;
  use.needed = BytesOf(pool_.size() - pool_.free());
  use.held = Bytes(geometry_.pages().value() * memory_->page_size().value());
  use.capacity = BytesOf(pool_.size());
  return use;
}

absl::StatusOr<Bytes> BlockTableCacheImpl::FreedByRelease(SequenceId id) const {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Sequence* const sequence,
                         Find(sequences_, id, "weigh"));
  uint64_t freed = 0;
  for (const BlockId block : sequence->table)
    freed += pool_.references(block) == 1;
  return BytesOf(freed);
}

BlockTableCacheStatistics BlockTableCacheImpl::GetStatistics() const {
  if (memory_->in_forked_child()) return {};
  MutexLock lock(&mutex_);
  return {.blocks = pool_.size(),
          .free_blocks = pool_.free(),
          .kept_blocks = pool_.kept(),
          .block_copies = block_copies_,
          .evictions = pool_.evictions(),
          .prompt_tokens = prompt_tokens_,
          .cached_prompt_tokens = cached_prompt_tokens_};
}

absl::Status BlockTableCacheImpl::CheckInvariants() const {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  MutexLock lock(&mutex_);
  std::vector<uint32_t> references(pool_.size());
  for (const auto& [id, sequence] : sequences_) {
    for (const BlockId block : sequence.table) ++references[block];

    if (sequence.table.size() < geometry_.BlocksFor(sequence.length))
      return absl::InternalError(
          absl::StrCat("sequence ", id.value(), " of ", sequence.length,
                       " tokens has ", sequence.table.size(), " blocks"));
    BlockId parent = kNoBlock;
    for (size_t i = 0; i < sequence.published; ++i) {
      const BlockId block = sequence.table[i];
      if (!pool_.index().Contains(block) ||
          pool_.index().Parent(block) != parent)
        return absl::InternalError(
            absl::StrCat("sequence ", id.value(), " has published block ",
                         block, ", which is not indexed behind ", parent));
      parent = block;
    }
  }
  for (BlockId block = 0; block < pool_.size(); ++block) {
    if (references[block] != pool_.references(block))
      return absl::InternalError(
          absl::StrCat("block ", block, " has ", references[block],
                       " references, kept ", pool_.references(block)));
  }
  return pool_.CheckInvariants();
}

absl::StatusOr<std::unique_ptr<BlockTableCache>> BlockTableCache::Create(
    DeviceMemory* memory, const KvLayout& layout,
    const BlockTableCacheOptions& options) {
  if (options.max_sequence_length == 0 || options.max_sequences == 0)
    return absl::InvalidArgumentError(absl::StrCat(
        "block-table KV cache: ", options.max_sequences, " sequences of ",
        options.max_sequence_length, " tokens at most: neither may be 0"));
  if (options.stream == StreamId())
    return absl::InvalidArgumentError(
        "block-table KV cache: no stream to copy blocks on");
  uint64_t blocks = options.blocks;
  if (blocks == 0) {
    const DeviceMemoryStatistics statistics = memory->GetStatistics();
    const Bytes left =
        std::min(SaturatingAdd(statistics.growable, statistics.cached),
                 memory->GetOwnerStatistics(options.owner).allowance);
    QUIRE_ASSIGN_OR_RETURN(
        blocks, BlockGeometry::BlocksIn(
                    layout, options.block_tokens,
                    PageCount(left.value() / memory->page_size().value()),
                    memory->page_size()));
    if (blocks == 0)
      return absl::ResourceExhaustedError(absl::StrCat(
          "block-table KV cache: ", FormatBytes(left),
          " are left, not enough for a block of ", options.block_tokens,
          " tokens in each of ", layout.groups(), " groups of layers"));
  }
  QUIRE_ASSIGN_OR_RETURN(const BlockGeometry geometry,
                         BlockGeometry::Create(layout, options.block_tokens,
                                               blocks, memory->page_size()));
  QUIRE_ASSIGN_OR_RETURN(AddressRange* const range,
                         memory->ReserveRange(geometry.pages(), options.owner));
  const absl::Status status =
      memory->Commit(range, PageCount(0), geometry.pages());
  if (!status.ok()) {
    memory->ReleaseRange(range, Fence());
    return status;
  }
  return std::unique_ptr<BlockTableCache>(
      new BlockTableCacheImpl(memory, range, geometry, options));
}

}  // namespace quire
