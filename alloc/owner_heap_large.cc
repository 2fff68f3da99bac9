// Large requests: bytes side by side, and where there are none, detours.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
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
constexpr uint64_t kDetourPagesPerPage = 2;
constexpr uint64_t kDetourPagesAlways = 64;

// Most heaps have few runs at a time.
using RunList = absl::InlinedVector<Piece, 32>;

// The runs of both sets by address, those that touch as one. `list` may be
// null.
RunList JoinRuns(const RunSet& free, const StreamFreeList* list) {
  RunList joined;
  static const RunSet kNone;
  const RunSet& own = list == nullptr ? kNone : list->runs();
  joined.reserve(free.size() + own.size());
  auto a = free.runs().begin();
  auto b = own.runs().begin();
  while (a != free.runs().end() || b != own.runs().end()) {
    const bool takes_a = b == own.runs().end() ||
                         (a != free.runs().end() && a->first < b->first);
    const ByteRun& run = takes_a ? (a++)->second : (b++)->second;
    if (!joined.empty() && joined.back().end() == run.begin) {
      joined.back().length += run.length;
    } else {
      joined.push_back({run.begin, run.length});
    }
  }
  return joined;
}

uint64_t AlignUp(uint64_t address, Bytes alignment) {
  const uint64_t mask = alignment.value() - 1;
  return (address + mask) & ~mask;
}

// The beginnings that a plan looks at.
constexpr size_t kHeadsTried = 128;

// Where more than this part of what is held lies unused in pages of which
// another part is in use, new allocations are to fill such pages.
constexpr uint64_t kTidyPart = 128;

// But not by calls of the driver as long as more than this part of all pages is
// free: they are to be had without one.
constexpr uint64_t kAmplePart = 8;

// What a run has to offer a detour: bytes up to its first page border, whole
// pages, bytes behind its last border.
struct Offer {
  Piece before;
  Piece whole;
  Piece behind;
};

std::optional<Offer> OfferOf(const Piece& run, uint64_t page_bytes) {
  const Piece whole = WholePages(run, page_bytes);
  // Within a page, without a border.
  if (whole.begin > run.end()) return std::nullopt;
  return Offer{{run.begin, whole.begin - run.begin},
               whole,
               {whole.end(), run.end() - whole.end()}};
}

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
  large_[base] = span;
  const Block block = {span, 0};
  block.SetInherits(inherits);
  return block;
}

Pieces OwnerHeap::Unmake(Span* span, StreamId last_stream) {
  large_.erase(span->base);
  span_bytes_ -= span->slot_size;
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
// longer than those that were looked at, so the set with fewer is gone through.
std::optional<uint64_t> OwnerHeap::FindJoined(
    uint64_t bytes, Bytes alignment, const StreamFreeList& list) const {
  const RunSet& free = arena_.free_runs();
  const RunSet& own = list.runs();
  const bool fewer_free = free.size() < own.size();
  const RunSet& few = fewer_free ? free : own;
  const RunSet& many = fewer_free ? own : free;
  std::optional<uint64_t> found;
  uint64_t least = UINT64_MAX;
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
    const uint64_t aligned = AlignUp(begin, alignment);
    if (aligned + bytes > end || end - begin >= least) continue;
    least = end - begin;
    found = aligned;
  }
  return found;
}

bool OwnerHeap::IsUntidy() const {
  if (arena_.free_pages() > arena_.backed_pages() / kAmplePart) return false;
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

std::optional<Block> OwnerHeap::TakeLarge(uint64_t bytes, Bytes alignment,
                                          StreamId stream, bool tidily) {
  StreamFreeList* const list = FindFreeList(stream);
  std::optional<uint64_t> begin;
  if (list != nullptr) begin = list->runs().FindFit(bytes, alignment);
  if (!begin) begin = arena_.free_runs().FindFit(bytes, alignment);
  if (!begin && list != nullptr) begin = FindJoined(bytes, alignment, *list);
  if (begin && (!tidily || IsTidy(*begin, bytes, list))) {
    const Piece piece = {*begin, bytes};
    const bool inherits = TakeBytes(piece, list);
    return MakeLarge(*begin, bytes, {piece}, nullptr, inherits);
  }
  Detour* const detour = arena_.FindDetour(
      bytes, bytes / kDetourFitDivisor, alignment,
      [&](const Piece& piece) { return IsUsable(piece, list); });
  if (detour == nullptr) return std::nullopt;
  arena_.TakeDetour(detour);
  bool inherits = false;
  for (const Piece& piece : detour->pieces) {
    inherits |= TakeBytes(piece, list);
  }
  return MakeLarge(detour->base, detour->bytes, detour->pieces, detour,
                   inherits);
}

// ---- With the driver --------------------------------------------------------

LargePlan OwnerHeap::PlanDetour(uint64_t bytes, Bytes alignment,
                                const StreamFreeList* list) const {
  uint64_t whole = 0;
  RunList before;
  RunList behind;
  RunList pages_of_runs;
  for (const Piece& run : JoinRuns(arena_.free_runs(), list)) {
    const std::optional<Offer> offer = OfferOf(run, page_bytes_);
    if (!offer) continue;
    if (offer->whole.length > 0) pages_of_runs.push_back(offer->whole);
    whole += offer->whole.length;
    if (offer->before.length > 0) before.push_back(offer->before);
    if (offer->behind.length > 0) behind.push_back(offer->behind);
  }
  const auto shorter = [](const Piece& a, const Piece& b) {
    return a.length < b.length;
  };
  std::sort(behind.begin(), behind.end(), shorter);
  // Whole pages, bytes that nothing can use before their neighbours go, and by
  // how many there are more pages of which a part is in use.
  using Cost = std::tuple<uint64_t, uint64_t, int>;
  std::optional<Cost> least;
  uint64_t pages = 0;
  Piece head;
  Piece tail;
  const auto consider = [&](const Piece& first) {
    const uint64_t rest = bytes - first.length;
    const uint64_t end = rest % page_bytes_;
    Cost cost = {rest / page_bytes_, 0, first.length > 0 ? -1 : 0};
    if (least && *least <= cost) return;
    Piece last;
    if (end > 0) {
      const auto room = std::lower_bound(behind.begin(), behind.end(),
                                         Piece{0, end}, shorter);
      if (room != behind.end()) {
        last = {room->begin, end};
        std::get<1>(cost) = room->length - end;
      } else {
        ++std::get<0>(cost);
        ++std::get<2>(cost);
      }
    }
    if (least && *least <= cost) return;
    least = cost;
    pages = std::get<0>(cost);
    head = first;
    tail = last;
  };
  consider({});
  if (alignment.value() <= kPieceGrain) {
    for (size_t i = 0; i < std::min(before.size(), kHeadsTried); ++i) {
      if (before[i].length < bytes) consider(before[i]);
    }
  }

  LargePlan plan;
  plan.bytes = bytes;
  plan.alignment = alignment;
  const uint64_t there = whole / page_bytes_;
  plan.new_pages = pages - std::min(pages, there);
  plan.addresses =
      pages + (head.length > 0 ? 1 : 0) + (tail.length > 0 ? 1 : 0);
  if (plan.new_pages > 0) return plan;
  uint64_t left = bytes - tail.length;
  const auto add = [&](Piece piece) {
    piece.length = std::min(piece.length, left);
    if (piece.length == 0) return;
    left -= piece.length;
    if (!plan.pieces.empty() && plan.pieces.back().end() == piece.begin) {
      plan.pieces.back().length += piece.length;
    } else {
      plan.pieces.push_back(piece);
    }
  };
  add(head);
  // As few as possible, the lowest first among equals; but first of all the
  // ones behind the head, which they continue.
  const auto later = [&head](const Piece& a, const Piece& b) {
    const bool continues = b.begin == head.end();
    if (continues != (a.begin == head.end())) return continues;
    return a.length != b.length ? a.length < b.length : a.begin > b.begin;
  };
  std::make_heap(pages_of_runs.begin(), pages_of_runs.end(), later);
  auto end = pages_of_runs.end();
  while (left > 0) {
    std::pop_heap(pages_of_runs.begin(), end, later);
    add(*--end);
  }
  left = tail.length;
  add(tail);
  return plan;
}

uint64_t OwnerHeap::LargestDetour() const {
  uint64_t before = 0;
  uint64_t whole = 0;
  uint64_t behind = 0;
  for (const auto& [begin, run] : arena_.free_runs().runs()) {
    const std::optional<Offer> offer =
        OfferOf({run.begin, run.length}, page_bytes_);
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
  for (const Piece& run : JoinRuns(arena_.free_runs(), list)) {
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
  LargePlan plan = PlanDetour(bytes, alignment, list);
  plan.stream = stream;
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
