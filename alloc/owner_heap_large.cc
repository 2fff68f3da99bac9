// Large requests: bytes side by side, and where there are none, detours.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "alloc/owner_heap.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// A detour that is left serves requests that are so much shorter: a part of
// their length.
constexpr uint64_t kDetourFitDivisor = 256;

// Pages of addresses that idle detours may keep mapped: so many for each page
// that there is, and so many besides. A program that loads one model after
// another, day by day, comes back to each place where one lay; what it costs is
// addresses, and their entries in tables of pages.
constexpr uint64_t kDetourPagesPerPage = 4;
constexpr uint64_t kDetourPagesAlways = 64;

// To go through so many runs takes as long as to look one up twice.
constexpr size_t kRunsPerLookUp = 32;

// What a stream without a list has of its own.
const RunSet& RunsOf(const StreamFreeList* list) {
  static const RunSet kNone;
  return list == nullptr ? kNone : list->runs();
}

uint64_t AlignUp(uint64_t address, Bytes alignment) {
  const uint64_t mask = alignment.value() - 1;
  return (address + mask) & ~mask;
}

// Where more than this part of what is held lies unused in pages of which
// another part is in use, new allocations are to fill such pages.
constexpr uint64_t kTidyPart = 128;

}  // namespace

// ---- Without the driver -----------------------------------------------------

bool OwnerHeap::IsUsable(const Piece& piece, const StreamFreeList* list) const {
  for (uint64_t at = piece.begin; at < piece.end();) {
    std::optional<ByteRun> run = arena_.free_runs().FindAround(at, 1);
    if (!run && list != nullptr) run = list->runs().FindAround(at, 1);
    if (!run) return false;
    at = run->end();
  }
  return true;
}

bool OwnerHeap::TakeBytes(const Piece& piece, StreamFreeList* list) {
  bool from_list = false;
  for (uint64_t at = piece.begin; at < piece.end();) {
    std::optional<ByteRun> run = arena_.free_runs().FindAround(at, 1);
    const bool free = run.has_value();
    if (!free) run = list->runs().FindAround(at, 1);
    const Piece part = {at, std::min(run->end(), piece.end()) - at};
    if (free) {
      arena_.TakeFree(part);
    } else {
      list->TakeRun(part);
      run_bytes_ -= part.length;
      from_list = true;
    }
    at = part.end();
  }
  arena_.BecomeBusy(piece);
  return from_list;
}

Block OwnerHeap::MakeLarge(uint64_t base, uint64_t bytes, Pieces pieces,
                           Detour* detour, bool inherits) {
  Span* const span = AddSpan(base, std::move(pieces), detour);
  span->SetSlots(bytes, 1);
  span_bytes_ += bytes;
  large_bytes_ += bytes;
  large_[base] = span;
  const Block block = {span, 0};
  block.SetInherits(inherits);
  return block;
}

Pieces OwnerHeap::Unmake(Span* span, StreamId last_stream) {
  large_.erase(span->base);
  span_bytes_ -= span->slot_size;
  large_bytes_ -= span->slot_size;
  if (span->detour != nullptr) arena_.LeaveDetour(span->detour, last_stream);
  Pieces pieces = std::move(span->pieces);
  spans_->Remove(span);
  return pieces;
}

Span* OwnerHeap::FindLarge(DeviceAddress address) const {
  const auto behind = large_.upper_bound(address.value());
  if (behind == large_.begin()) return nullptr;
  Span* const span = std::prev(behind)->second;
  return address.value() - span->base < span->slot_size ? span : nullptr;
}

// Best fit, as for runs of one kind. Only runs of both kinds that touch can be
// longer than those that were looked at.
std::optional<uint64_t> OwnerHeap::FindJoined(
    uint64_t bytes, Bytes alignment, const StreamFreeList& list) const {
  const RunSet& free = arena_.free_runs();
  const RunSet& own = list.runs();
  const bool fewer_free = free.size() < own.size();
  const RunSet& few = fewer_free ? free : own;
  const RunSet& many = fewer_free ? own : free;
  std::optional<uint64_t> found;
  uint64_t least = UINT64_MAX;
  const auto consider = [&](const Piece& joined) {
    const uint64_t begin = AlignUp(joined.begin, alignment);
    if (begin + bytes > joined.end() || joined.length >= least) return;
    least = joined.length;
    found = begin;
  };
  if (few.size() * kRunsPerLookUp > many.size()) {
    for (const Piece& run : joined_.Of(free, own)) consider(run);
    return found;
  }
  uint64_t end = 0;  // of the last that was looked at
  for (const auto& [few_begin, few_run] : few.runs()) {
    if (few_begin < end) continue;
    uint64_t begin = few_begin;
    // What touches it in front is of the other kind, and what would touch that
    // was looked at before.
    if (const auto before = many.FindAround(begin - 1, 1))
      begin = before->begin;
    end = few_run.end();
    const RunSet* next = &many;
    while (const auto behind = next->FindAround(end, 1)) {
      end = behind->end();
      next = next == &many ? &few : &many;
    }
    consider({begin, end - begin});
  }
  return found;
}

bool OwnerHeap::IsUntidy() const {
  const uint64_t idle = arena_.free_runs().bytes() + run_bytes_;
  const uint64_t whole = arena_.idle_pages() * page_bytes_;
  const uint64_t held = arena_.backed_pages() * page_bytes_ - idle;
  return idle > whole && idle - whole > held / kTidyPart;
}

// Whether the bytes, from `begin` on, leave no more pages in part use than
// there were: they end on a page border, or where the run does.
bool OwnerHeap::IsTidy(uint64_t begin, uint64_t bytes,
                       const StreamFreeList* list) const {
  const uint64_t end = begin + bytes;
  return end % page_bytes_ == 0 || !IsUsable({end, 1}, list);
}

// An allocation at an end of a run fills the page that the run has in part
// there, and leaves a part of one at its own other end.
std::optional<uint64_t> OwnerHeap::FindTidier(
    uint64_t bytes, Bytes alignment, const StreamFreeList* list) const {
  const auto bytes_in_parts = [this](uint64_t begin, uint64_t end) {
    const Piece piece = {begin, end - begin};
    return static_cast<int64_t>(piece.length -
                                WholePages(piece, page_bytes_).length);
  };
  std::optional<uint64_t> found;
  // More bytes in parts than before, and the length of the run.
  std::pair<int64_t, uint64_t> least;
  for (const Piece& run : joined_.Of(arena_.free_runs(), RunsOf(list))) {
    if (run.length < bytes) continue;
    const int64_t before = bytes_in_parts(run.begin, run.end());
    for (const uint64_t begin :
         {AlignUp(run.begin, alignment),
          (run.end() - bytes) & ~(alignment.value() - 1)}) {
      if (begin < run.begin || begin + bytes > run.end()) continue;
      const std::pair now = {bytes_in_parts(run.begin, begin) +
                                 bytes_in_parts(begin + bytes, run.end()) -
                                 before,
                             run.length};
      if (now >= least) continue;
      found = begin;
      least = now;
    }
  }
  return found;
}

std::optional<Block> OwnerHeap::TakeLarge(uint64_t bytes, Bytes alignment,
                                          StreamId stream, bool tidily) {
  StreamFreeList* const list = FindFreeList(stream);
  std::optional<uint64_t> begin;
  if (list != nullptr) begin = list->runs().FindFit(bytes, alignment);
  if (!begin) begin = arena_.free_runs().FindFit(bytes, alignment);
  if (!begin && list != nullptr) begin = FindJoined(bytes, alignment, *list);
  if (begin && (!tidily || IsTidy(*begin, bytes, list))) {
    return TakeAtHome(*begin, bytes, list);
  }
  Detour* const detour = arena_.FindDetour(
      bytes, bytes / kDetourFitDivisor, alignment,
      [&](const Piece& piece) { return IsUsable(piece, list); });
  if (detour == nullptr) {
    // Only a run that is long enough has a tidier place.
    if (begin) begin = FindTidier(bytes, alignment, list);
    if (!begin) return std::nullopt;
    return TakeAtHome(*begin, bytes, list);
  }
  arena_.TakeDetour(detour);
  bool inherits = false;
  for (const Piece& piece : detour->pieces) {
    inherits |= TakeBytes(piece, list);
  }
  return MakeLarge(detour->base, detour->bytes, detour->pieces, detour,
                   inherits);
}

Block OwnerHeap::TakeAtHome(uint64_t begin, uint64_t bytes,
                            StreamFreeList* list) {
  const Piece piece = {begin, bytes};
  const bool inherits = TakeBytes(piece, list);
  return MakeLarge(begin, bytes, {piece}, nullptr, inherits);
}

// ---- With the driver --------------------------------------------------------

uint64_t OwnerHeap::LargestDetour() const {
  uint64_t before = 0;
  uint64_t whole = 0;
  uint64_t behind = 0;
  for (const auto& [begin, run] : arena_.free_runs().runs()) {
    const std::optional<RunOffer> offer =
        RunOffer::Of({run.begin, run.length}, page_bytes_);
    if (!offer) continue;
    before = std::max(before, offer->before.length);
    whole += offer->whole.length;
    behind = std::max(behind, offer->behind.length);
  }
  return std::max(before + whole + behind, arena_.free_runs().largest());
}

std::optional<uint64_t> OwnerHeap::FindExtension(
    uint64_t bytes, uint64_t pages, Bytes alignment,
    const StreamFreeList* list) const {
  for (const Piece& run : joined_.Of(arena_.free_runs(), RunsOf(list))) {
    const uint64_t begin = AlignUp(run.begin, alignment);
    if (run.end() % page_bytes_ == 0 && begin < run.end() &&
        run.end() - begin + pages * page_bytes_ >= bytes &&
        arena_.CanGrowAt(run.end(), pages)) {
      return run.end();
    }
  }
  return std::nullopt;
}

LargePlan OwnerHeap::PlanLarge(uint64_t bytes, Bytes alignment,
                               StreamId stream) const {
  const StreamFreeList* const list = FindFreeList(stream);
  DetourPlanner::Choice choice = planner_.Plan(
      joined_.Of(arena_.free_runs(), RunsOf(list)), bytes, alignment);
  LargePlan plan;
  plan.bytes = bytes;
  plan.alignment = alignment;
  plan.stream = stream;
  plan.pieces = std::move(choice.pieces);
  plan.new_pages = choice.new_pages;
  plan.addresses = choice.addresses;
  if (plan.new_pages > 0) {
    plan.grow_at =
        FindExtension(bytes, plan.new_pages, alignment, list).value_or(0);
    // For pages at home, a chunk has one that is never used; and a detour.
    plan.addresses = std::max(plan.addresses, plan.new_pages + 1);
  }
  return plan;
}

absl::StatusOr<Block> OwnerHeap::AddLarge(const LargePlan& plan,
                                          uint64_t spare_pages) {
  const uint64_t pages = plan.new_pages + spare_pages;
  if (pages == 0) return UsePlan(plan);
  const uint64_t grow_at =
      arena_.CanGrowAt(plan.grow_at, pages) ? plan.grow_at : 0;
  QUIRE_RETURN_IF_ERROR(arena_.Grow(pages, plan.alignment, grow_at).status());
  total_->UpdatePeak();
  detours_since_growth_ = 0;
  has_spares_ = plan.new_pages == 0;
  if (const auto block = TakeLarge(plan.bytes, plan.alignment, plan.stream,
                                   /*tidily=*/false)) {
    return *block;
  }
  const LargePlan now = PlanLarge(plan.bytes, plan.alignment, plan.stream);
  // Where the pages did not come to lie as planned: there are more now.
  if (now.new_pages > 0) {
    return absl::AbortedError("new pages lie apart from the old ones");
  }
  return UsePlan(now);
}

absl::StatusOr<Block> OwnerHeap::UsePlan(const LargePlan& plan) {
  StreamFreeList* const list = FindFreeList(plan.stream);
  // The detour first: where the driver refuses it, nothing was taken.
  Detour* detour = nullptr;
  uint64_t base = plan.pieces.front().begin;
  if (plan.pieces.size() > 1 || base % plan.alignment.value() != 0) {
    QUIRE_ASSIGN_OR_RETURN(detour,
                           arena_.MakeDetour(plan.pieces, plan.alignment));
    base = detour->base;
    ++detours_since_growth_;
  }
  bool inherits = false;
  for (const Piece& piece : plan.pieces) inherits |= TakeBytes(piece, list);
  return MakeLarge(base, plan.bytes, plan.pieces, detour, inherits);
}

uint64_t OwnerHeap::TrimDetours(bool all,
                                absl::FunctionRef<bool(StreamId)> may_record) {
  // A graph uses its addresses whatever becomes of them here.
  if (kept_for_graphs_) return 0;
  const uint64_t keep =
      all ? 0
          : arena_.backed_pages() * kDetourPagesPerPage + kDetourPagesAlways;
  return arena_.TrimDetours(keep, may_record);
}

}  // namespace quire
