#include "alloc/owner_heap.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// The first slab of a class: so many bytes, and so many slots, at least.
constexpr uint64_t kSmallSlabBytes = 64 << 10;
constexpr uint64_t kSmallSlabSlots = 4;
// The next ones have more, since they stay. Where slabs are small, two threads
// get slots of the same one sooner, and write to the same cache lines; so they
// are made for one thread only.
constexpr uint64_t kNextSlabSlots = 32;
constexpr uint64_t kMostSmallSlabs = 8;
constexpr uint64_t kSmallSlabsInPage = 4;

// Comebacks in a row that make a class keep its slab, and how many slabs may be
// made, of any class, before one is no comeback any more, or has not been used
// for too long to be kept: some times the number of classes.
constexpr uint32_t kComebacksToKeep = 2;
// Of slabs with free slots, for a group that is all free.
constexpr size_t kSlabsTried = 8;

constexpr uint64_t kSoon = 1000;

}  // namespace

OwnerHeap::OwnerHeap(OwnerId owner, DeviceMemory* memory,
                     const SizeClasses* classes, SpanTable* spans,
                     MappedTotal* total, uint64_t seed)
    : owner_(owner),
      memory_(memory),
      page_bytes_(memory->page_size().value()),
      classes_(*classes),
      spans_(spans),
      total_(total),
      order_(seed),
      arena_(owner, memory, spans, total, spans->AddMarker(this, owner)),
      planner_(page_bytes_),
      states_(classes->count()) {}

OwnerHeap::~OwnerHeap() { spans_->RemoveMarker(arena_.marker()); }

HeapAccounts OwnerHeap::accounts() const {
  HeapAccounts accounts;
  accounts.mapped_bytes = arena_.backed_pages() * page_bytes_;
  accounts.free_bytes = free_bytes_ + arena_.free_runs().bytes();
  accounts.cooling_bytes = cooling_bytes_ + run_bytes_ + arena_.ending_bytes();
  accounts.slack_bytes = slab_slack_bytes_;
  accounts.held_bytes = span_bytes_ - free_bytes_ - cooling_bytes_;
  accounts.slabs = slabs_;
  return accounts;
}

uint64_t OwnerHeap::pinned_bytes() const {
  if (asleep_ || kept_for_graphs_) return 0;
  const HeapAccounts now = accounts();
  return now.mapped_bytes - now.held_bytes - reclaimable_pages() * page_bytes_;
}

Bytes OwnerHeap::LargestRoom() const {
  if (asleep_) return Bytes(0);
  Bytes slot;
  for (int i = classes_.count() - 1; i >= 0 && slot.zero(); --i) {
    if (states_[i].idle_slots > 0) slot = classes_.slot_size(i);
  }
  return std::max(slot, Bytes(LargestDetour()));
}

// ---- Streams ----------------------------------------------------------------

OwnerHeap::FreeLists::const_iterator OwnerHeap::FreeListPosition(
    StreamId stream) const {
  return std::lower_bound(
      free_lists_.begin(), free_lists_.end(), stream,
      [](const auto& list, StreamId id) { return list->stream() < id; });
}

StreamFreeList* OwnerHeap::FindFreeList(StreamId stream) const {
  if (recent_list_ != nullptr && recent_list_->stream() == stream) {
    return recent_list_;
  }
  const auto position = FreeListPosition(stream);
  if (position == free_lists_.end() || (*position)->stream() != stream) {
    return nullptr;
  }
  recent_list_ = position->get();
  return recent_list_;
}

StreamFreeList* OwnerHeap::MakeFreeList(StreamId stream) {
  if (StreamFreeList* const list = FindFreeList(stream)) return list;
  const auto position = FreeListPosition(stream);
  recent_list_ = free_lists_
                     .insert(position, std::make_unique<StreamFreeList>(
                                           memory_->driver(), memory_->device(),
                                           stream, classes_.count()))
                     ->get();
  return recent_list_;
}

void OwnerHeap::DropEmptyFreeLists() {
  const auto is_empty = [](const auto& list) { return list->empty(); };
  if (std::erase_if(free_lists_, is_empty) == 0) return;
  recent_list_ = nullptr;
  joined_.Forget();
}

void OwnerHeap::AppendStreams(std::vector<StreamId>* streams) const {
  for (const auto& list : free_lists_) streams->push_back(list->stream());
  arena_.AppendStreams(streams);
}

// ---- Spans ------------------------------------------------------------------

Span* OwnerHeap::AddSpan(uint64_t base, Pieces pieces, Detour* detour) {
  Span* const span = spans_->Add();
  span->heap = this;
  span->owner = owner_;
  span->base = base;
  span->pieces = std::move(pieces);
  span->detour = detour;
  return span;
}

uint64_t OwnerHeap::RoomOf(const Span& span) {
  uint64_t room = 0;
  for (const Piece& piece : span.pieces) room += piece.length;
  return room;
}

Span* OwnerHeap::MakeSlab(int size_class, const Piece& pages) {
  arena_.TakeFree(pages);
  Span* const slab = AddSpan(pages.begin, {pages}, nullptr);
  SetSlab(slab, size_class);
  arena_.Publish(pages, slab);
  return slab;
}

void OwnerHeap::SetSlab(Span* span, int size_class) {
  const uint64_t slot_size = classes_.slot_size(size_class).value();
  const uint64_t room = RoomOf(*span);
  const auto slots =
      static_cast<uint32_t>(std::min(room / slot_size, kMostSlots));
  spans_->SetRecords(span, slots, slot_size);
  span->size_class = size_class;
  span->SetSlots(slot_size, slots);
  span->free_slots.Reset(slots);
  span_bytes_ += span->capacity();
  free_bytes_ += span->capacity();
  slab_slack_bytes_ += room - span->capacity();
  BecomeEmpty(*span);
  ++slabs_;
  ++slabs_made_;
  ClassState& state = states_[size_class];
  if (state.slabs == 0) {
    const bool comeback =
        state.released_at > 0 && slabs_made_ - state.released_at <= kSoon;
    state.comebacks = comeback ? state.comebacks + 1 : 0;
  }
  ++state.slabs;
  ++state.empty_slabs;
  state.idle_slots += slots;
  AddPartial(span);
}

void OwnerHeap::DropSlab(Span* span) {
  span_bytes_ -= span->capacity();
  free_bytes_ -= span->free_slots.free_count() * span->slot_size;
  cooling_bytes_ -= span->cooling * span->slot_size;
  slab_slack_bytes_ -= RoomOf(*span) - span->capacity();
  ClassState& state = states_[span->size_class];
  --slabs_;
  --state.slabs;
  if (span->out() == 0) {
    BecomeUsed(*span);
    --state.empty_slabs;
  }
  state.idle_slots -= span->slot_count;
  if (span->list_position != SIZE_MAX) RemovePartial(span);
  span->cooling = 0;
}

void OwnerHeap::RemoveSpan(Span* span) {
  if (span->detour != nullptr) {
    arena_.LeaveDetour(span->detour, StreamId());
  } else {
    arena_.Publish(span->pieces.front(), arena_.marker());
  }
  spans_->Remove(span);
}

void OwnerHeap::Dissolve(Span* slab) {
  DropSlab(slab);
  for (const Piece& piece : slab->pieces) arena_.InsertFree(piece);
  RemoveSpan(slab);
}

void OwnerHeap::BecomeIdle(const Span& span) {
  for (const Piece& piece : span.pieces) arena_.BecomeIdle(piece);
}
void OwnerHeap::BecomeBusy(const Span& span) {
  for (const Piece& piece : span.pieces) arena_.BecomeBusy(piece);
}
void OwnerHeap::BecomeEmpty(const Span& span) {
  for (const Piece& piece : span.pieces) arena_.BecomeFree(piece);
}
void OwnerHeap::BecomeUsed(const Span& span) {
  for (const Piece& piece : span.pieces) arena_.BecomeUsed(piece);
}

void OwnerHeap::AddPartial(Span* slab) {
  std::vector<Span*>& partial = states_[slab->size_class].partial;
  slab->list_position = partial.size();
  partial.push_back(slab);
}

void OwnerHeap::RemovePartial(Span* slab) {
  std::vector<Span*>& partial = states_[slab->size_class].partial;
  partial[slab->list_position] = partial.back();
  partial[slab->list_position]->list_position = slab->list_position;
  partial.pop_back();
  slab->list_position = SIZE_MAX;
}

// Slots are taken from the slab at the back, so the one at the front is the
// last to be used.
void OwnerHeap::MoveToFront(Span* slab) {
  std::vector<Span*>& partial = states_[slab->size_class].partial;
  Span* const first = partial.front();
  std::swap(partial[0], partial[slab->list_position]);
  std::swap(first->list_position, slab->list_position);
}

// ---- Taking -----------------------------------------------------------------

void OwnerHeap::NoteThread(std::thread::id thread) {
  if (thread_ == std::thread::id()) thread_ = thread;
  has_threads_ |= thread_ != thread;
}

Block OwnerHeap::Take(Span* span, uint32_t slot) {
  ClassState& state = states_[span->size_class];
  if (span->out() == 1) {
    BecomeUsed(*span);
    --state.empty_slabs;
  }
  // Whether it was before.
  if (span->out() - 1 == span->cooling) BecomeBusy(*span);
  --state.idle_slots;
  const Block block = {span, slot};
  if (span->free_slots.free_count() == 0) RemovePartial(span);
  free_bytes_ -= span->slot_size;
  block.SetInherits(false);
  return block;
}

Span* OwnerHeap::FindSlab(int size_class, Bytes alignment) const {
  const std::vector<Span*>& partial = states_[size_class].partial;
  // A slab of whole pages has the alignment of its slots.
  for (size_t i = partial.size(); i-- > 0;) {
    if (alignment.value() <= kPieceGrain || partial[i]->detour == nullptr) {
      return partial[i];
    }
  }
  return nullptr;
}

std::optional<Block> OwnerHeap::TakeSlot(int size_class, Bytes alignment) {
  Span* const slab = FindSlab(size_class, alignment);
  if (slab == nullptr) return std::nullopt;
  return Take(slab);
}

std::optional<Block> OwnerHeap::TakeSlotForCache(int size_class) {
  const std::vector<Span*>& partial = states_[size_class].partial;
  if (partial.empty()) return std::nullopt;
  const size_t tried = std::min(partial.size(), kSlabsTried);
  for (size_t i = partial.size(); i-- > partial.size() - tried;) {
    Span* const span = partial[i];
    const std::optional<uint32_t> slot =
        span->free_slots.TakeOfFreeGroup(span->group(), &order_);
    if (slot) return Take(span, *slot);
  }
  return Take(partial.back());
}

std::optional<Block> OwnerHeap::TakeSlotBeside(Block held) {
  Span* const span = held.span;
  if (span->list_position == SIZE_MAX) return std::nullopt;
  const std::optional<uint32_t> slot =
      span->free_slots.TakeBeside(held.slot, span->group(), &order_);
  if (!slot) return std::nullopt;
  return Take(span, *slot);
}

std::optional<Block> OwnerHeap::TakeSlotOfNewSlab(int size_class,
                                                  Bytes alignment) {
  if (SmallSlabBytes(size_class, alignment) > 0) return std::nullopt;
  const uint64_t bytes = classes_.slab_pages(size_class).value() * page_bytes_;
  const std::optional<uint64_t> pages =
      arena_.free_runs().FindFit(bytes, Bytes(page_bytes_));
  if (!pages) return std::nullopt;
  return Take(MakeSlab(size_class, {*pages, bytes}));
}

void OwnerHeap::Revive(Block block) {
  Span* const slab = HostOf(block.span);
  if (slab->reclaimable()) BecomeBusy(*slab);
  --slab->cooling;
  cooling_bytes_ -= slab->slot_size;
  if (!slab->large()) --states_[slab->size_class].idle_slots;
  block.SetInherits(true);
}

absl::Status OwnerHeap::AddSlab(int size_class, uint64_t pages) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t begin, arena_.Grow(pages, Bytes(0)));
  total_->UpdatePeak();
  MakeSlab(size_class, {begin, pages * page_bytes_});
  return absl::OkStatus();
}

uint64_t OwnerHeap::SmallSlabBytes(int size_class, Bytes alignment) const {
  if (alignment.value() > kPieceGrain) return 0;
  const uint64_t slot_size = classes_.slot_size(size_class).value();
  const uint64_t slabs = states_[size_class].slabs;
  const uint64_t most = page_bytes_ / kSmallSlabsInPage;
  if (slabs == 0) {
    const uint64_t bytes =
        std::max(kSmallSlabBytes, kSmallSlabSlots * slot_size);
    return bytes > most ? 0 : bytes;
  }
  if (has_threads_ || slabs > kMostSmallSlabs) return 0;
  const uint64_t bytes = std::max(kSmallSlabBytes, kNextSlabSlots * slot_size)
                         << (slabs - 1);
  return bytes > most ? 0 : bytes;
}

absl::Status OwnerHeap::AddSmallSlab(int size_class, uint64_t bytes) {
  return AddDetourSlab(size_class, bytes).status();
}

absl::StatusOr<Span*> OwnerHeap::AddDetourSlab(int size_class, uint64_t bytes) {
  const RunSet& free = arena_.free_runs();
  // Bytes that serve any stream.
  Detour* detour =
      arena_.FindDetour(bytes, 0, kDefaultAlignment, [&](const Piece& piece) {
        return free.FindAround(piece.begin, piece.length).has_value();
      });
  if (detour != nullptr) {
    arena_.TakeDetour(detour);
    for (const Piece& piece : detour->pieces) arena_.TakeFree(piece);
  } else {
    std::optional<uint64_t> begin = free.FindFit(bytes, kDefaultAlignment);
    if (!begin) {
      QUIRE_ASSIGN_OR_RETURN(
          begin, arena_.Grow((bytes + page_bytes_ - 1) / page_bytes_,
                             kDefaultAlignment));
      total_->UpdatePeak();
    }
    const Piece piece = {*begin, bytes};
    arena_.TakeFree(piece);
    absl::StatusOr<Detour*> made =
        arena_.MakeDetour({piece}, kDefaultAlignment);
    if (!made.ok()) {
      arena_.InsertFree(piece);
      return made.status();
    }
    detour = *made;
  }
  Span* const slab = AddSpan(detour->base, detour->pieces, detour);
  SetSlab(slab, size_class);
  spans_->Publish(detour->range->address(), detour->range->pages(), slab);
  return slab;
}

// ---- Giving back ------------------------------------------------------------

void OwnerHeap::CoolIn(StreamFreeList* list, Block block, bool noted) {
  Span* const span = block.span;
  if (!span->large()) {
    Cool(block);
    list->Push(block);
    return;
  }
  const DeviceAddress address = block.address();
  const Bytes requested = span->requested;
  const Pieces pieces = Unmake(span, list->stream());
  for (const Piece& piece : pieces) {
    arena_.BecomeIdle(piece);
    list->PushRun(piece);
    run_bytes_ += piece.length;
  }
  if (noted) list->Note({pieces.front(), address, requested});
}

void OwnerHeap::Cool(Block block) {
  Span* const slab = HostOf(block.span);
  ++slab->cooling;
  cooling_bytes_ += slab->slot_size;
  if (!slab->large()) ++states_[slab->size_class].idle_slots;
  if (slab->reclaimable()) BecomeIdle(*slab);
}

void OwnerHeap::Free(Block block) {
  if (block.span->large()) {
    for (const Piece& piece : Unmake(block.span, StreamId())) {
      arena_.BecomeIdle(piece);
      arena_.InsertFree(piece);
    }
    return;
  }
  Span* const slab = HostOf(block.span);
  ClassState& state = states_[slab->size_class];
  free_bytes_ += slab->slot_size;
  slab->free_slots.Put(block.slot);
  ++state.idle_slots;
  if (slab->list_position == SIZE_MAX) AddPartial(slab);
  if (slab->reclaimable()) BecomeIdle(*slab);
  if (slab != block.span) {
    block.span->free_slots.Put(block.slot);
    if (block.span->out() == 0) DropGuest(block.span, Fence());
  }
  if (slab->out() > 0) return;
  BecomeEmpty(*slab);
  ++state.empty_slabs;
  KeepOrDissolve(slab);
}

void OwnerHeap::KeepOrDissolve(Span* slab) {
  ClassState& state = states_[slab->size_class];
  if (state.empty_slabs > 1) {
    Dissolve(slab);
  } else {
    state.emptied_at = slabs_made_;
    MoveToFront(slab);
  }
}

bool OwnerHeap::ComesBack(const ClassState& state) const {
  return state.comebacks >= kComebacksToKeep &&
         slabs_made_ - state.emptied_at <= kSoon;
}

void OwnerHeap::FinishCooling(Block block) {
  Revive(block);
  Free(block);
}

void OwnerHeap::FinishCooling(const ByteRun& run) {
  run_bytes_ -= run.length;
  arena_.InsertFree({run.begin, run.length});
}

void OwnerHeap::DissolveEmptySlabs(uint64_t wanted, Keep keep) {
  const uint64_t before = arena_.free_runs().bytes();
  for (ClassState& state : states_) {
    if ((arena_.free_runs().bytes() - before) / page_bytes_ >= wanted) break;
    if (state.empty_slabs == 0) continue;
    Span* const slab = state.partial.front();
    if (ComesBack(state) &&
        (keep == Keep::kComebacks ||
         (keep == Keep::kSmallComebacks && slab->detour != nullptr))) {
      continue;
    }
    state.released_at = slabs_made_;
    Dissolve(slab);
  }
}

uint64_t OwnerHeap::ReleaseFree(uint64_t wanted, Keep keep,
                                const Fence& fence) {
  if (kept_for_graphs_) return 0;
  uint64_t given = GiveFreePages(wanted, fence);
  // Slabs one by one: an empty one saves making it again.
  while (given < wanted) {
    const uint64_t slabs = slabs_;
    DissolveEmptySlabs(1, keep);
    if (slabs_ == slabs) break;
    given += GiveFreePages(wanted - given, fence);
  }
  return given;
}

uint64_t OwnerHeap::GiveFreePages(uint64_t wanted, const Fence& fence) {
  uint64_t given = 0;
  while (given < wanted) {
    const std::optional<Piece> pages = FindFreePages(wanted - given);
    if (!pages) break;
    arena_.TakeFree(*pages);
    arena_.Give(*pages, fence);
    given += pages->length / page_bytes_;
  }
  return given;
}

// The last whole pages of the smallest run that has all, else of the largest
// that has any.
std::optional<Piece> OwnerHeap::FindFreePages(uint64_t wanted) const {
  const RunSet& free = arena_.free_runs();
  if (arena_.free_pages() == 0) return std::nullopt;
  const auto pages_of = [&](const std::pair<uint64_t, uint64_t>& run) {
    return WholePages({run.second, run.first}, page_bytes_);
  };
  std::optional<Piece> pages;
  if (wanted <= free.largest() / page_bytes_) {
    for (auto run = free.by_length().lower_bound({wanted * page_bytes_, 0});
         run != free.by_length().end() && !pages; ++run) {
      if (pages_of(*run).length / page_bytes_ >= wanted) pages = pages_of(*run);
    }
  }
  for (auto run = free.by_length().rbegin();
       run != free.by_length().rend() && !pages; ++run) {
    if (run->first < page_bytes_) return std::nullopt;
    if (pages_of(*run).length > 0) pages = pages_of(*run);
  }
  if (!pages) return std::nullopt;
  const uint64_t length =
      std::min(pages->length / page_bytes_, wanted) * page_bytes_;
  return Piece{pages->end() - length, length};
}

uint64_t OwnerHeap::ReleaseCooling(StreamFreeList* list, uint64_t wanted) {
  if (kept_for_graphs_) return 0;
  std::vector<ByteRun> oldest_first;
  for (const auto& [begin, run] : list->runs().runs()) {
    oldest_first.push_back(run);
  }
  std::sort(
      oldest_first.begin(), oldest_first.end(),
      [](const ByteRun& a, const ByteRun& b) { return a.batch < b.batch; });
  uint64_t given = 0;
  for (const ByteRun& run : oldest_first) {
    if (given >= wanted) break;
    Piece pages = WholePages({run.begin, run.length}, page_bytes_);
    pages.length =
        std::min(pages.length / page_bytes_, wanted - given) * page_bytes_;
    if (pages.length == 0) continue;
    const std::optional<Fence> fence = list->FenceOf(run);
    if (!fence) continue;
    list->TakeRun(pages);
    run_bytes_ -= pages.length;
    arena_.Give(pages, *fence);
    given += pages.length / page_bytes_;
  }
  return given;
}

void OwnerHeap::Release(Span* span, const Fence& fence) {
  const Pieces pieces = span->pieces;
  Detour* const detour = span->detour;
  if (span->large()) {
    span->cooling = 0;
    cooling_bytes_ -= span->slot_size;
    (void)Unmake(span, StreamId());
  } else {
    DropSlab(span);
    RemoveSpan(span);
  }
  // What is left of its work may use these addresses.
  if (detour != nullptr) arena_.DropDetour(detour, fence);
  for (const Piece& piece : pieces) arena_.GiveUp(piece, fence);
}

}  // namespace quire
