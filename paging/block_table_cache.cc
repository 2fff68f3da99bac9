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

// Part by part: a driver that takes no more mappings says so before all pages
// of a large pool were created.
absl::Status CommitPool(DeviceMemory* memory, AddressRange* range) {
  constexpr uint64_t kPart = 4096;
  const uint64_t pages = range->pages().value();
  for (uint64_t first = 0; first < pages; first += kPart)
    QUIRE_RETURN_IF_ERROR(memory->Commit(
        range, PageCount(first), PageCount(std::min(kPart, pages - first))));
  return absl::OkStatus();
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

BlockTableCacheImpl::Tables BlockTableCacheImpl::MakeTables(
    const KvTokenLimit& limit) const {
  const uint64_t longest = geometry_.BlocksFor(options_.max_sequence_length);
  Tables tables(geometry_.tables());
  for (uint32_t table = 0; table < tables.size(); ++table) {
    tables[table].blocks.reserve(std::min<uint64_t>(longest, pool_.size()));
    tables[table].gone = GoneBehind(table, 0, limit);
  }
  return tables;
}

SequenceId BlockTableCacheImpl::Insert(Sequence sequence) {
  const SequenceId id(++last_id_);
  sequences_.emplace(id, std::move(sequence));
  return id;
}

// Of a table with a window, those of one window are enough, wherever they are
// left: the longest beginning behind which all tables have what they need.
std::vector<BlockTableCacheImpl::PlaceId> BlockTableCacheImpl::FindPrefix(
    std::span<const int32_t> prompt) const {
  std::vector<PlaceId> places;
  if (!options_.prefix_caching || prompt.empty()) return places;
  const size_t whole = (prompt.size() - 1) >> geometry_.block_shift();
  PlaceId last = BlockPrefixIndex::kStart;
  while (places.size() < whole) {
    const auto found =
        pool_.index().Find(last, TokensOf(places.size(), prompt));
    if (!found) break;
    last = *found;
    places.push_back(last);
  }
  size_t most = places.size();
  // Blocks side by side that end before a place, by table and place.
  std::vector<std::vector<size_t>> runs(geometry_.tables());
  for (uint32_t table = 0; table < geometry_.tables(); ++table) {
    runs[table].push_back(0);
    size_t first_run = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      const bool there = pool_.index().BlockAt(places[i], table) != kNoBlock;
      runs[table].push_back(there ? runs[table].back() + 1 : 0);
      if (there && first_run == i) ++first_run;
    }
    // Its sinks; without a window, all.
    const size_t sinks = geometry_.Kept(table).window == 0
                             ? places.size()
                             : GoneBehind(table, 0);
    if (first_run < sinks) most = std::min(most, first_run);
  }
  const auto has_windows = [&](size_t count) {
    const uint64_t next = (uint64_t{count} << geometry_.block_shift()) + 1;
    for (uint32_t table = 0; table < geometry_.tables(); ++table) {
      const size_t gone = GoneBehind(table, next);
      if (gone < count && runs[table][count] < count - gone) return false;
    }
    return true;
  };
  while (!has_windows(most)) --most;  // of no block all have all
  places.resize(most);
  return places;
}

void BlockTableCacheImpl::TakePrefix(std::span<const PlaceId> places,
                                     Sequence* sequence) {
  const uint64_t next =
      (uint64_t{places.size()} << geometry_.block_shift()) + 1;
  for (uint32_t number = 0; number < geometry_.tables(); ++number) {
    Table& table = sequence->tables[number];
    const size_t sinks = table.gone;
    if (!places.empty()) table.gone = GoneBehind(number, next);
    for (size_t i = 0; i < places.size(); ++i) {
      const bool gone = i >= sinks && i < table.gone;
      table.blocks.push_back(gone ? kNoBlock
                                  : pool_.index().BlockAt(places[i], number));
      if (!gone) pool_.Reference(table.blocks.back());
    }
  }
  sequence->published = places.size();
  if (places.empty()) return;
  sequence->place = places.back();
  pool_.index().Hold(sequence->place);
}

void BlockTableCacheImpl::Unpublish(Sequence* sequence, size_t places) {
  for (; sequence->published > places; --sequence->published) {
    const PlaceId place = sequence->place;
    sequence->place = pool_.index().Before(place);
    pool_.index().Hold(sequence->place);
    pool_.index().LetGo(place);
  }
}

absl::StatusOr<std::optional<Fence>> BlockTableCacheImpl::TryAdmit(
    const Admission& wanted, PromptAdmission* admission) {
  MutexLock lock(&mutex_);
  QUIRE_RETURN_IF_ERROR(CheckFreeSlot());
  Sequence sequence = {.tables = MakeTables(wanted.limit),
                       .batch = batch_,
                       .limit = wanted.limit};
  const bool limited = wanted.limit.max_tokens > 0;
  // Taken now, so that it is not used for what the prompt lacks.
  if (!limited) TakePrefix(FindPrefix(wanted.prompt), &sequence);
  const uint64_t cached = uint64_t{sequence.published}
                          << geometry_.block_shift();
  const SequenceGrowth growth = {
      .computed = cached,
      .backed = KeepsAllTokens() && !limited
                    ? wanted.tokens
                    : std::min(wanted.tokens,
                               SaturatingAdd(cached, wanted.step_tokens)),
      .tokens = wanted.tokens,
      .step_tokens = wanted.step_tokens,
      .limit = wanted.limit};
  const uint64_t blocks = geometry_.BlocksFor(growth.backed);
  std::vector<BlockId> taken;
  const auto wait = TryTake(
      CheckedMultiply(blocks - sequence.published, uint64_t{geometry_.tables()})
          .value_or(UINT64_MAX),
      SaturatingAdd(options_.headroom_blocks, BlocksToGrow(growth)), &taken);
  if (!wait.ok() || *wait) {
    Unpublish(&sequence, 0);
    GiveBack(sequence.tables, Fence());
    return wait;
  }
  sequence.length = growth.backed;
  auto next = taken.begin();
  for (Table& table : sequence.tables) {
    while (table.blocks.size() < blocks) table.blocks.push_back(*next++);
  }
  admission->cached_tokens = cached;
  admission->sequence = Insert(std::move(sequence));
  prompt_tokens_ += wanted.prompt.size();
  cached_prompt_tokens_ += cached;
  return std::nullopt;
}

absl::StatusOr<PromptAdmission> BlockTableCacheImpl::AdmitWaiting(
    const Admission& wanted) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  if (wanted.tokens > options_.max_sequence_length)
    return absl::InvalidArgumentError(absl::StrCat(
        "block-table KV cache: a sequence of ", wanted.tokens,
        " tokens exceeds the maximum of ", options_.max_sequence_length));
  PromptAdmission admission;
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<Fence> wait,
                           TryAdmit(wanted, &admission));
    if (!wait) break;
    QUIRE_RETURN_IF_ERROR(wait->Wait());
  }
  CheckAfterMutation();
  return admission;
}

// Layers that keep the same under one limit may keep different tokens under
// another one, and have one table.
absl::StatusOr<KvTokenLimit> BlockTableCacheImpl::OwnLimit(
    const std::optional<KvTokenLimit>& limit) const {
  if (!limit || *limit == options_.limit) return KvTokenLimit();
  QUIRE_RETURN_IF_ERROR(CheckTokenLimit(*limit));
  if (options_.limit.max_tokens == 0) return *limit;
  return absl::InvalidArgumentError(absl::StrCat(
      "block-table KV cache: a sequence with a limit of ", limit->max_tokens,
      " tokens of its own, where the cache has one of ",
      options_.limit.max_tokens));
}

absl::StatusOr<SequenceId> BlockTableCacheImpl::Admit(
    uint64_t tokens, std::optional<KvTokenLimit> limit) {
  QUIRE_ASSIGN_OR_RETURN(const KvTokenLimit own, OwnLimit(limit));
  QUIRE_ASSIGN_OR_RETURN(const PromptAdmission admission,
                         AdmitWaiting({.tokens = tokens, .limit = own}));
  return admission.sequence;
}

absl::StatusOr<PromptAdmission> BlockTableCacheImpl::AdmitPrompt(
    std::span<const int32_t> tokens) {
  return AdmitPromptInSteps(tokens, UINT64_MAX, {});
}

absl::StatusOr<PromptAdmission> BlockTableCacheImpl::AdmitPromptInSteps(
    std::span<const int32_t> tokens, uint64_t step_tokens,
    const SequenceOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const KvTokenLimit own, OwnLimit(options.limit));
  return AdmitWaiting({.tokens = tokens.size(),
                       .step_tokens = step_tokens,
                       .prompt = tokens,
                       .limit = own});
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
                         .tables = MakeTables(from.limit),
                         .batch = from.batch,
                         .stepped = from.stepped,
                         .limit = from.limit};
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
    sequence.published = from.published;
    sequence.place = from.place;
    pool_.index().Hold(sequence.place);
    Unpublish(&sequence, from.length >> geometry_.block_shift());
    id = Insert(std::move(sequence));
  }
  CheckAfterMutation();
  return id;
}

// Where somebody was faster with the same tokens, his block takes the place of
// ours: later blocks are found behind it, and must not be lost with it.
absl::Status BlockTableCacheImpl::PublishNext(SequenceId id,
                                              std::span<const int32_t> tokens,
                                              Sequence* sequence) {
  BlockPrefixIndex& index = pool_.index();
  const size_t number = sequence->published;
  const auto known = index.Find(sequence->place, tokens);
  for (uint32_t table = 0; table < geometry_.tables(); ++table) {
    const BlockId block = sequence->tables[table].blocks[number];
    if (block != kNoBlock && index.Contains(block) &&
        (!known || index.BlockAt(*known, table) != block))
      return absl::InvalidArgumentError(
          absl::StrCat("block-table KV cache: sequence ", id.value(),
                       " publishes tokens ", number << geometry_.block_shift(),
                       " and on, which a fork of it has published as others"));
  }
  const PlaceId place = index.Hold(sequence->place, tokens);
  index.LetGo(std::exchange(sequence->place, place));
  ++sequence->published;
  for (uint32_t table = 0; table < geometry_.tables(); ++table) {
    BlockId& block = sequence->tables[table].blocks[number];
    if (block == kNoBlock) continue;
    const BlockId there = index.BlockAt(place, table);
    if (there == block) continue;
    if (there == kNoBlock) {
      index.Insert(place, table, block);
    } else {
      pool_.Reference(there);
      pool_.Unreference(std::exchange(block, there), Fence());
    }
  }
  return absl::OkStatus();
}

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
    if (!options_.prefix_caching || sequence.limit.max_tokens > 0)
      return absl::OkStatus();
    const size_t whole = tokens.size() >> geometry_.block_shift();
    while (sequence.published < whole)
      QUIRE_RETURN_IF_ERROR(
          PublishNext(id, TokensOf(sequence.published, tokens), &sequence));
  }
  CheckAfterMutation();
  return absl::OkStatus();
}

// ---- Reading and ending ----------------------------------------------------

absl::Status BlockTableCacheImpl::Release(SequenceId id, const Fence& fence) {
  QUIRE_RETURN_IF_ERROR(CheckProcess(*memory_));
  {
    MutexLock lock(&mutex_);
    QUIRE_ASSIGN_OR_RETURN(Sequence* const sequence,
                           Find(sequences_, id, "release"));
    Unpublish(sequence, 0);
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
  view.block_shift = geometry_.block_shift();
  view.block_stride = geometry_.BlockStride(place.keys.group);
  view.value_block_stride = geometry_.BlockStride(place.values.group);
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Sequence* const sequence,
                         Find(sequences_, id, "view"));
  const KvLayerKind kept = Kept(table, sequence->limit);
  view.window = kept.window;
  view.sinks = kept.sinks;
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
        const bool gone = place >= GoneBehind(number, 0, sequence.limit) &&
                          place < table.gone;
        const BlockId block = table.blocks[place];
        if (gone != (block == kNoBlock))
          return absl::InternalError(absl::StrCat(
              "sequence ", id.value(), " has block ", block, " at place ",
              place, " of table ", number, ", gone before ", table.gone));
        if (!gone) ++references[block];
      }
    }
    PlaceId place = sequence.place;
    for (size_t i = sequence.published; i > 0; --i) {
      if (place == BlockPrefixIndex::kStart)
        return absl::InternalError(absl::StrCat(
            "sequence ", id.value(), " has published ", sequence.published,
            " blocks, and ", i, " of them stand nowhere"));
      for (uint32_t number = 0; number < geometry_.tables(); ++number) {
        const BlockId block = sequence.tables[number].blocks[i - 1];
        if (block != kNoBlock && pool_.index().BlockAt(place, number) != block)
          return absl::InternalError(
              absl::StrCat("sequence ", id.value(), " has published block ",
                           block, ", which is not indexed in place ", place));
      }
      place = pool_.index().Before(place);
    }
    if (place != BlockPrefixIndex::kStart)
      return absl::InternalError(absl::StrCat("sequence ", id.value(),
                                              " has published more than ",
                                              sequence.published, " blocks"));
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
  QUIRE_RETURN_IF_ERROR(CheckTokenLimit(options.limit));
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
  const absl::Status status = CommitPool(memory, range);
  if (!status.ok()) {
    memory->ReleaseRange(range, Fence());
    return status;
  }
  return std::unique_ptr<BlockTableCache>(
      new BlockTableCacheImpl(memory, range, geometry, options));
}

}  // namespace quire
