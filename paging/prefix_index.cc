#include "paging/prefix_index.h"

#include <algorithm>
#include <cstring>

#include "absl/container/fixed_array.h"
#include "absl/strings/str_cat.h"

namespace quire {

PrefixIndex::PrefixIndex(const PrefixIndexOptions& options)
    : options_(options),
      key_(options.key ? *options.key : SipHashKey::Random()) {}

template <typename Change>
void PrefixIndex::Reorder(PrefixEntryId id, Change change) {
  Entry& entry = At(id);
  if (entry.pins == 0) order_.erase(PlaceOf(id, entry));
  change(&entry);
  if (entry.pins == 0) order_.insert(PlaceOf(id, entry));
}

// ---- Entries ----------------------------------------------------------------

PrefixEntryId PrefixIndex::Add() {
  const PrefixEntryId id(next_entry_++);
  Entry& entry = entries_[id];
  entry.end = &root_;
  entry.whole_end = &root_;
  entry.stamp = next_stamp_++;
  root_.ends.push_back(id);
  root_.whole_ends.push_back(id);
  return id;
}

PrefixEntryId PrefixIndex::AddLike(PrefixEntryId like) {
  const PrefixEntryId id = Add();
  const Entry model = At(like);
  At(id).limit = model.limit;
  MoveEnd(id, model.end);
  SetPriority(id, model.priority, model.until);
  return id;
}

void PrefixIndex::Remove(PrefixEntryId id) {
  MoveEnd(id, &root_);
  std::erase(root_.ends, id);
  std::erase(root_.whole_ends, id);
  const Entry& entry = At(id);
  if (entry.pins == 0) order_.erase(PlaceOf(id, entry));
  expiring_.erase({entry.until, id});
  turns_.erase({entry.turn, id});
  entries_.erase(id);
}

uint64_t PrefixIndex::TokensOf(PrefixEntryId id) const {
  return At(id).end->depth * options_.block_tokens;
}

uint64_t PrefixIndex::FoundTokensOf(PrefixEntryId id) const {
  const Entry& entry = At(id);
  return (entry.end_kept ? entry.end : entry.whole_end)->depth *
         options_.block_tokens;
}

void PrefixIndex::Limit(PrefixEntryId id, uint64_t tokens) {
  At(id).limit = tokens / options_.block_tokens;
  PlaceWholeEnd(id);
}

void PrefixIndex::KeepEnd(PrefixEntryId id) { At(id).end_kept = true; }

void PrefixIndex::Extend(PrefixEntryId id, std::span<const int32_t> tokens) {
  const size_t block_tokens = options_.block_tokens;
  Block* end = At(id).end;
  const size_t known = static_cast<size_t>(TokensOf(id));
  if (tokens.size() < known) return;
  tokens = tokens.subspan(known);
  for (; tokens.size() >= block_tokens; tokens = tokens.subspan(block_tokens)) {
    const auto block = tokens.first(block_tokens);
    const Hash128 hash = HashOf(*end, block);
    bool free = false;
    Block* below = FindBelow(*end, hash, block, &free);
    if (below == nullptr) {
      if (!free) break;
      below = AddBelow(end, hash, block);
    }
    end = below;
  }
  MoveEnd(id, end);
}

void PrefixIndex::Truncate(PrefixEntryId id, uint64_t tokens) {
  const uint64_t depth = tokens / options_.block_tokens;
  Block* end = At(id).end;
  while (end->depth > depth) end = end->above;
  MoveEnd(id, end);
}

PrefixIndex::Found PrefixIndex::Match(std::span<const int32_t> tokens) const {
  const size_t block_tokens = options_.block_tokens;
  const Block* end = &root_;
  for (; tokens.size() >= block_tokens; tokens = tokens.subspan(block_tokens)) {
    const auto block = tokens.first(block_tokens);
    bool free = false;
    const Block* const below =
        FindBelow(*end, HashOf(*end, block), block, &free);
    if (below == nullptr) break;
    end = below;
  }
  Found found{.known = end->depth * block_tokens};
  for (; end != &root_; end = end->above) {
    found.tokens = end->depth * block_tokens;
    if (end->holders > 0) {
      for (const PrefixEntryId id : end->whole_ends)
        if (At(id).end == end) found.exact.push_back(id);
      const Block* holder = end;
      while (holder->whole_ends.empty()) {
        holder = holder->first_below;
        while (holder->holders == 0) holder = holder->next;
      }
      found.holder = holder->whole_ends.back();
      return found;
    }
    for (const PrefixEntryId id : end->ends) {
      if (!At(id).end_kept) continue;
      found.holder = id;
      found.at_end = true;
      return found;
    }
  }
  found.tokens = 0;
  return found;
}

// ---- The order of giving up -------------------------------------------------

void PrefixIndex::Pin(PrefixEntryId id) {
  Reorder(id, [](Entry* entry) { ++entry->pins; });
}

void PrefixIndex::Unpin(PrefixEntryId id) {
  Reorder(id, [](Entry* entry) { --entry->pins; });
}

void PrefixIndex::Touch(PrefixEntryId id) {
  Reorder(id, [&](Entry* entry) { entry->stamp = next_stamp_++; });
}

void PrefixIndex::SetPriority(PrefixEntryId id, int32_t priority,
                              uint64_t until) {
  Reorder(id, [&](Entry* entry) {
    expiring_.erase({entry->until, id});
    const bool ended = until <= now_ || priority == 0;
    entry->priority = ended ? 0 : priority;
    entry->until = ended ? UINT64_MAX : until;
    if (entry->until != UINT64_MAX) expiring_.insert({until, id});
  });
}

void PrefixIndex::AdvanceClock(uint64_t now) {
  now_ = std::max(now_, now);
  while (!expiring_.empty() && expiring_.begin()->first <= now_)
    SetPriority(expiring_.begin()->second, 0);
}

void PrefixIndex::Expect(PrefixEntryId id, uint64_t tokens, uint64_t turn) {
  tokens = std::min(tokens, TokensOf(id));
  const Entry& known = At(id);
  if (tokens < known.expected_tokens || tokens == 0 ||
      (tokens == known.expected_tokens && turn >= known.turn))
    return;
  Reorder(id, [&](Entry* entry) {
    turns_.erase({entry->turn, id});
    entry->expected_tokens = tokens;
    entry->turn = turn;
    turns_.insert({turn, id});
  });
}

void PrefixIndex::AdvanceTurn(uint64_t turn) {
  while (!turns_.empty() && turns_.begin()->first < turn) {
    const PrefixEntryId id = turns_.begin()->second;
    turns_.erase(turns_.begin());
    Reorder(id, [](Entry* entry) { entry->expected_tokens = 0; });
  }
}

// ---- Blocks -----------------------------------------------------------------

Hash128 PrefixIndex::HashOf(const Block& above,
                            std::span<const int32_t> tokens) const {
  absl::FixedArray<std::byte, 1024> data(sizeof(Hash128) + tokens.size_bytes());
  std::memcpy(data.data(), &above.hash, sizeof(Hash128));
  std::memcpy(data.data() + sizeof(Hash128), tokens.data(),
              tokens.size_bytes());
  Hash128 hash = SipHash128(key_, data);
  if (options_.hash_bits < 128) {
    hash.high = 0;
    if (options_.hash_bits < 64)
      hash.low &= (uint64_t{1} << options_.hash_bits) - 1;
  }
  return hash;
}

PrefixIndex::Block* PrefixIndex::FindBelow(const Block& above,
                                           const Hash128& hash,
                                           std::span<const int32_t> tokens,
                                           bool* free) const {
  const auto found = blocks_.find(hash);
  *free = found == blocks_.end();
  if (*free) return nullptr;
  Block* const block = found->second.get();
  const bool same = block->above == &above &&
                    std::equal(tokens.begin(), tokens.end(),
                               block->tokens.begin(), block->tokens.end());
  return same ? block : nullptr;
}

PrefixIndex::Block* PrefixIndex::AddBelow(Block* above, const Hash128& hash,
                                          std::span<const int32_t> tokens) {
  auto owned = std::make_unique<Block>();
  Block* const block = owned.get();
  block->above = above;
  block->hash = hash;
  block->depth = above->depth + 1;
  block->tokens.assign(tokens.begin(), tokens.end());
  block->next = above->first_below;
  if (block->next != nullptr) block->next->previous = block;
  above->first_below = block;
  blocks_.emplace(hash, std::move(owned));
  return block;
}

void PrefixIndex::MoveEnd(PrefixEntryId id, Block* to) {
  Block* const from = At(id).end;
  if (from == to) return;
  std::erase(from->ends, id);
  to->ends.push_back(id);
  // The place of an entry follows from how much it holds.
  Reorder(id, [&](Entry* entry) {
    entry->end = to;
    entry->end_kept = false;
  });
  PlaceWholeEnd(id);
  Prune(from);
}

void PrefixIndex::PlaceWholeEnd(PrefixEntryId id) {
  Entry& entry = At(id);
  Block* const from = entry.whole_end;
  Block* to = entry.end;
  while (to->depth > entry.limit) to = to->above;
  if (from == to) return;
  // Both lie on one way to the root.
  for (Block* block = to; block->depth > from->depth; block = block->above)
    ++block->holders;
  for (Block* block = from; block->depth > to->depth; block = block->above)
    --block->holders;
  std::erase(from->whole_ends, id);
  to->whole_ends.push_back(id);
  entry.whole_end = to;
}

void PrefixIndex::Prune(Block* block) {
  while (block != &root_ && block->ends.empty() &&
         block->first_below == nullptr) {
    Block* const above = block->above;
    (block->previous ? block->previous->next : above->first_below) =
        block->next;
    if (block->next != nullptr) block->next->previous = block->previous;
    blocks_.erase(block->hash);
    block = above;
  }
}

// ---- Checks -----------------------------------------------------------------

absl::Status PrefixIndex::CheckInvariants() const {
  size_t ends = root_.ends.size();
  size_t whole_ends = root_.whole_ends.size();
  absl::flat_hash_map<const Block*, uint64_t> holders;
  for (const auto& [id, entry] : entries_) {
    for (const Block* block = entry.whole_end; block != &root_;
         block = block->above)
      ++holders[block];
    const Block* whole = entry.end;
    while (whole->depth > entry.limit) whole = whole->above;
    if (entry.whole_end != whole ||
        std::count(whole->whole_ends.begin(), whole->whole_ends.end(), id) != 1)
      return absl::InternalError(
          absl::StrCat("prefix index: entry ", id.value(),
                       " is not whole up to depth ", whole->depth));
  }
  for (const auto& [hash, block] : blocks_) {
    ends += block->ends.size();
    whole_ends += block->whole_ends.size();
    const auto counted = holders.find(block.get());
    if (block->holders != (counted == holders.end() ? 0 : counted->second))
      return absl::InternalError(absl::StrCat("prefix index: a block at depth ",
                                              block->depth, " counts ",
                                              block->holders, " holders"));
    if (block->hash != hash || block->tokens.size() != options_.block_tokens ||
        block->depth != block->above->depth + 1)
      return absl::InternalError(absl::StrCat("prefix index: a block at depth ",
                                              block->depth, " is misplaced"));
    if (block->ends.empty() && block->first_below == nullptr)
      return absl::InternalError(absl::StrCat("prefix index: a block at depth ",
                                              block->depth, " has no holder"));
    const Block* const listed = block->previous != nullptr
                                    ? block->previous->next
                                    : block->above->first_below;
    if (listed != block.get())
      return absl::InternalError(absl::StrCat("prefix index: a block at depth ",
                                              block->depth, " is not listed"));
  }
  size_t unpinned = 0;
  size_t expiring = 0;
  size_t expected = 0;
  for (const auto& [id, entry] : entries_) {
    if (std::count(entry.end->ends.begin(), entry.end->ends.end(), id) != 1)
      return absl::InternalError(
          absl::StrCat("prefix index: entry ", id.value(), " has no one end"));
    if (entry.pins == 0) {
      ++unpinned;
      if (!order_.contains(PlaceOf(id, entry)))
        return absl::InternalError(absl::StrCat(
            "prefix index: entry ", id.value(), " is not in the order"));
    }
    if (entry.until != UINT64_MAX) {
      ++expiring;
      if (!expiring_.contains({entry.until, id}) || entry.until <= now_)
        return absl::InternalError(
            absl::StrCat("prefix index: the priority of entry ", id.value(),
                         " does not end at ", entry.until));
    }
    if (entry.expected_tokens > 0) {
      ++expected;
      if (!turns_.contains({entry.turn, id}))
        return absl::InternalError(
            absl::StrCat("prefix index: entry ", id.value(),
                         " is not expected at ", entry.turn));
    }
  }
  if (expected != turns_.size())
    return absl::InternalError(absl::StrCat("prefix index: ", expected,
                                            " entries are expected, kept ",
                                            turns_.size()));
  if (ends != entries_.size() || whole_ends != entries_.size() ||
      unpinned != order_.size() || expiring != expiring_.size())
    return absl::InternalError(absl::StrCat(
        "prefix index: counted ", ends, " ends, ", unpinned,
        " entries to give up and ", expiring, " ending priorities; kept ",
        entries_.size(), ", ", order_.size(), ", ", expiring_.size()));
  return absl::OkStatus();
}

}  // namespace quire
