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

BlockTableCacheImpl::Tables BlockTableCacheImpl::MakeTables() const {
  const uint64_t longest = geometry_.BlocksFor(options_.max_sequence_length);
  Tables tables(geometry_.tables());
  for (uint32_t table = 0; table < tables.size(); ++table) {
    tables[table].blocks.reserve(std::min<uint64_t>(longest, pool_.size()));
    tables[table].gone = GoneBehind(table, 0);
  }
  return tables;
}

SequenceId BlockTableCacheImpl::Insert(Sequence sequence) {
  const SequenceId id(++last_id_);
  sequences_.emplace(id, std::move(sequence));
  return id;
}

std::vector<BlockId> BlockTableCacheImpl::FindPrefix(
    std::span<const int32_t> prompt) const {
  std::vector<BlockId> blocks;
  if (!KeepsPrefixes() || prompt.empty()) return blocks;
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
    const SequenceGrowth& growth, std::span<const int32_t> prompt,
    PromptAdmission* admission) {
  MutexLock lock(&mutex_);
  QUIRE_RETURN_IF_ERROR(CheckFreeSlot());
  Sequence sequence = {.tables = MakeTables(), .batch = batch_};
  for (const BlockId block : FindPrefix(prompt)) {
    // Taken now, so that it is not used for what the prompt lacks.
    pool_.Reference(block);
    sequence.tables[0].blocks.push_back(block);
  }
  sequence.published = sequence.tables[0].blocks.size();
  const uint64_t blocks = geometry_.BlocksFor(growth.backed);
  std::vector<BlockId> taken;
  const auto wait = TryTake(
      CheckedMultiply(blocks, uint64_t{geometry_.tables()})
              .value_or(UINT64_MAX) -
          sequence.published,
      SaturatingAdd(options_.headroom_blocks, BlocksToGrow(growth)), &taken);
  if (!wait.ok() || *wait) {
    GiveBack(sequence.tables, Fence());
    return wait;
  }
  sequence.length = growth.backed;
  auto next = taken.begin();
  for (Table& table : sequence.tables) {
    while (table.blocks.size() < blocks) table.blocks.push_back(*next++);
  }
  admission->cached_tokens = sequence.published << geometry_.block_shift();
  admission->sequence = Insert(std::move(sequence));
  prompt_tokens_ += prompt.size();
  cached_prompt_tokens_ += admission->cached_tokens;
  return std::nullopt;
}

absl::StatusOr<PromptAdmission> BlockTableCacheImpl::AdmitWaiting(
    const SequenceGrowth& growth, std::span<const int32_t> prompt) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  if (growth.tokens > options_.max_sequence_length)
    return absl::InvalidArgumentError(absl::StrCat(
        "block-table KV cache: a sequence of ", growth.tokens,
        " tokens exceeds the maximum of ", options_.max_sequence_length));
  PromptAdmission admission;
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<Fence> wait,
                           TryAdmit(growth, prompt, &admission));
    if (!wait) break;
    QUIRE_RETURN_IF_ERROR(wait->Wait());
  }
  CheckAfterMutation();
  return admission;
}

absl::StatusOr<SequenceId> BlockTableCacheImpl::Admit(uint64_t tokens) {
  QUIRE_ASSIGN_OR_RETURN(
      const PromptAdmission admission,
      AdmitWaiting({.backed = tokens, .tokens = tokens}, {}));
  return admission.sequence;
}

absl::StatusOr<PromptAdmission> BlockTableCacheImpl::AdmitPrompt(
    std::span<const int32_t> tokens) {
  return AdmitPromptInSteps(tokens, UINT64_MAX);
}

// Where tokens are dropped nothing is cached, so that the first step begins
// with the prompt.
absl::StatusOr<PromptAdmission> BlockTableCacheImpl::AdmitPromptInSteps(
    std::span<const int32_t> tokens, uint64_t step_tokens) {
  const uint64_t backed = KeepsAllTokens()
                              ? tokens.size()
                              : std::min<uint64_t>(tokens.size(), step_tokens);
  return AdmitWaiting(
      {.backed = backed, .tokens = tokens.size(), .step_tokens = step_tokens},
      tokens);
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
    Sequence sequence = {.length = from.length,
                         .tables = MakeTables(),
                         .batch = from.batch,
                         .stepped = from.stepped};
    for (uint32_t table = 0; table < geometry_.tables(); ++table) {
      const std::span<const BlockId> blocks =
          std::span(from.tables[table].blocks)
              .first(geometry_.BlocksFor(from.length));
      sequence.tables[table].gone = from.tables[table].gone;
      sequence.tables[table].blocks.assign(blocks.begin(), blocks.end());
      for (const BlockId block : blocks) {
        if (block != kNoBlock) pool_.Reference(block);
      }
    }
    sequence.published = std::min<size_t>(
        from.published, from.length >> geometry_.block_shift());
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
    if (!KeepsPrefixes()) return absl::OkStatus();
    std::vector<BlockId>& table = sequence.tables[0].blocks;
    const size_t whole = tokens.size() >> geometry_.block_shift();
    for (size_t& i = sequence.published; i < whole; ++i) {
      const BlockId parent = i == 0 ? kNoBlock : table[i - 1];
      BlockId& block = table[i];
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

// ---- Reading and ending ----------------------------------------------------

absl::Status BlockTableCacheImpl::Release(SequenceId id, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  {
    MutexLock lock(&mutex_);
    QUIRE_ASSIGN_OR_RETURN(const Sequence* const sequence,
                           Find(sequences_, id, "release"));
    GiveBack(sequence->tables, fence);
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
      SaturatingSubtract(pool_.free(), options_.headroom_blocks) /
      geometry_.tables();
  return std::min(blocks << geometry_.block_shift(),
                  options_.max_sequence_length);
}

bool BlockTableCacheImpl::HasRoomFor(
    std::span<const SequenceGrowth> growths) const {
  if (memory_->in_forked_child()) return false;
  uint64_t blocks = options_.headroom_blocks;
  for (const SequenceGrowth& growth : growths)
    blocks = SaturatingAdd(blocks, BlocksToGrow(growth));
  MutexLock lock(&mutex_);
  return blocks <= pool_.free();
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
  const uint32_t table = geometry_.TableOf(place.keys.group);
  view.window = geometry_.Kept(table).window;
  view.sinks = geometry_.Kept(table).sinks;
  view.block_shift = geometry_.block_shift();
  view.block_stride = geometry_.BlockStride(place.keys.group);
  view.value_block_stride = geometry_.BlockStride(place.values.group);
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Sequence* const sequence,
                         Find(sequences_, id, "view"));
  view.block_table = sequence->tables[table].blocks.data();
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
  for (const Table& table : sequence->tables) {
    for (const BlockId block : table.blocks)
      freed += block != kNoBlock && pool_.references(block) == 1;
  }
  return BytesOf(freed);
}

BlockTableCacheStatistics BlockTableCacheImpl::GetStatistics() const {
  if (memory_->in_forked_child()) return {};
  MutexLock lock(&mutex_);
  return {.blocks = pool_.size(),
          .free_blocks = pool_.free(),
          .dropped_blocks = dropped_blocks_,
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
    for (uint32_t number = 0; number < geometry_.tables(); ++number) {
      const Table& table = sequence.tables[number];
      if (table.blocks.size() < geometry_.BlocksFor(sequence.length))
        return absl::InternalError(
            absl::StrCat("sequence ", id.value(), " of ", sequence.length,
                         " tokens has ", table.blocks.size(), " blocks"));
      for (size_t place = 0; place < table.blocks.size(); ++place) {
        const bool gone = place >= GoneBehind(number, 0) && place < table.gone;
        const BlockId block = table.blocks[place];
        if (gone != (block == kNoBlock))
          return absl::InternalError(absl::StrCat(
              "sequence ", id.value(), " has block ", block, " at place ",
              place, " of table ", number, ", gone before ", table.gone));
        if (!gone) ++references[block];
      }
    }
    BlockId parent = kNoBlock;
    for (size_t i = 0; i < sequence.published; ++i) {
      const BlockId block = sequence.tables[0].blocks[i];
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
  if (options.limit.max_tokens > 0 &&
      options.limit.max_tokens <= options.limit.sinks)
    return absl::InvalidArgumentError(absl::StrCat(
        "block-table KV cache: a limit of ", options.limit.max_tokens,
        " tokens is not more than its ", options.limit.sinks, " sinks"));
  uint64_t blocks = options.blocks;
  if (blocks == 0) {
    const DeviceMemoryStatistics statistics = memory->GetStatistics();
    const Bytes left =
        std::min(SaturatingAdd(statistics.growable, statistics.cached),
                 memory->GetOwnerStatistics(options.owner).allowance);
    QUIRE_ASSIGN_OR_RETURN(
        blocks, BlockGeometry::BlocksIn(
                    layout, options.limit, options.block_tokens,
                    PageCount(left.value() / memory->page_size().value()),
                    memory->page_size()));
    if (blocks == 0)
      return absl::ResourceExhaustedError(absl::StrCat(
          "block-table KV cache: ", FormatBytes(left),
          " are left, not enough for a block of ", options.block_tokens,
          " tokens in each of ", layout.groups(), " groups of layers"));
  }
  QUIRE_ASSIGN_OR_RETURN(
      const BlockGeometry geometry,
      BlockGeometry::Create(layout, options.limit, options.block_tokens, blocks,
                            memory->page_size()));
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
