#include "alloc/detour_planner.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace quire {
namespace {

// The beginnings that a plan looks at: the first ones, and the longest of the
// others, since the largest detour there is, which is promised, begins with the
// longest.
constexpr size_t kHeadsTried = 128;

constexpr uint32_t kNoMore = UINT32_MAX;

bool IsShorter(const Piece& a, const Piece& b) { return a.length < b.length; }

}  // namespace

DetourPlanner::DetourPlanner(uint64_t page_bytes)
    : page_bytes_(page_bytes), page_shift_(std::countr_zero(page_bytes)) {}

DetourPlanner::Choice DetourPlanner::Plan(std::span<const Piece> runs,
                                          uint64_t bytes, Bytes alignment) {
  Gather(runs);
  const Ends ends = ChooseEnds(bytes, alignment);
  Choice choice;
  const uint64_t there = whole_bytes_ >> page_shift_;
  choice.new_pages = ends.pages - std::min(ends.pages, there);
  choice.addresses = ends.pages + (ends.head.length > 0 ? 1 : 0) +
                     (ends.tail.length > 0 ? 1 : 0);
  if (choice.new_pages > 0) return choice;
  pieces_.clear();
  if (ends.head.length > 0) pieces_.push_back(ends.head);
  AppendWhole(ends.head, bytes - ends.head.length - ends.tail.length);
  if (ends.tail.length > 0) Append(ends.tail);
  choice.pieces.assign(pieces_.begin(), pieces_.end());
  return choice;
}

void DetourPlanner::Gather(std::span<const Piece> runs) {
  heads_.clear();
  tails_.clear();
  whole_.clear();
  whole_bytes_ = 0;
  for (const Piece& run : runs) {
    const std::optional<RunOffer> offer = RunOffer::Of(run, page_bytes_);
    if (!offer) continue;
    if (offer->whole.length > 0) {
      whole_.push_back(offer->whole);
      whole_bytes_ += offer->whole.length;
    }
    if (offer->before.length > 0) {
      if (heads_.size() < kHeadsTried) {
        heads_.push_back(offer->before);
      } else if (IsShorter(heads_.back(), offer->before)) {
        heads_.back() = offer->before;
      }
    }
    if (offer->behind.length > 0) tails_.push_back(offer->behind);
  }
  std::sort(tails_.begin(), tails_.end(), IsShorter);
}

DetourPlanner::Ends DetourPlanner::ChooseEnds(uint64_t bytes, Bytes alignment) {
  // Whole pages, bytes that nothing can use before their neighbours go, and by
  // how many there are more pages of which a part is in use.
  using Cost = std::tuple<uint64_t, uint64_t, int>;
  std::optional<Cost> least;
  Ends ends;
  const auto consider = [&](const Piece& head) {
    const uint64_t rest = bytes - head.length;
    const uint64_t end = rest & (page_bytes_ - 1);
    Cost cost = {rest >> page_shift_, 0, head.length > 0 ? -1 : 0};
    if (least && *least <= cost) return;
    Piece tail;
    if (end > 0) {
      const auto room = std::lower_bound(tails_.begin(), tails_.end(),
                                         Piece{0, end}, IsShorter);
      if (room != tails_.end()) {
        tail = {room->begin, end};
        std::get<1>(cost) = room->length - end;
      } else {
        ++std::get<0>(cost);
        ++std::get<2>(cost);
      }
    }
    if (least && *least <= cost) return;
    least = cost;
    ends = {head, tail, std::get<0>(cost)};
  };
  consider({});
  if (alignment.value() <= kPieceGrain) {
    for (const Piece& head : heads_) {
      if (head.length < bytes) consider(head);
    }
  }
  return ends;
}

void DetourPlanner::Append(const Piece& piece) {
  if (!pieces_.empty() && pieces_.back().end() == piece.begin) {
    pieces_.back().length += piece.length;
  } else {
    pieces_.push_back(piece);
  }
}

// As few as possible, the lowest first among equals; but first of all the ones
// behind the head, which they continue.
void DetourPlanner::AppendWhole(const Piece& head, uint64_t bytes) {
  const auto add = [&](Piece piece) {
    piece.length = std::min(piece.length, bytes);
    bytes -= piece.length;
    Append(piece);
  };
  uint64_t has_few = 0;
  many_.clear();
  next_whole_.resize(whole_.size());
  for (uint32_t i = 0; i < whole_.size() && bytes > 0; ++i) {
    const uint64_t pages = whole_[i].length >> page_shift_;
    if (head.length > 0 && whole_[i].begin == head.end()) {
      add(whole_[i]);
    } else if (pages >= kFew) {
      many_.push_back(whole_[i]);
    } else {
      next_whole_[i] = kNoMore;
      Chain& chain = few_[pages];
      if ((has_few >> pages & 1) == 0) {
        has_few |= uint64_t{1} << pages;
        chain.first = i;
      } else {
        next_whole_[chain.last] = i;
      }
      chain.last = i;
    }
  }
  std::sort(many_.begin(), many_.end(), [](const Piece& a, const Piece& b) {
    return a.length != b.length ? a.length > b.length : a.begin < b.begin;
  });
  for (size_t i = 0; i < many_.size() && bytes > 0; ++i) add(many_[i]);
  while (bytes > 0) {
    const int pages = std::bit_width(has_few) - 1;
    has_few ^= uint64_t{1} << pages;
    uint32_t i = few_[pages].first;
    for (; i != kNoMore && bytes > 0; i = next_whole_[i]) add(whole_[i]);
  }
}

}  // namespace quire
