#include "alloc/seam_packer.h"

#include <iterator>
#include <tuple>

#include "absl/strings/str_format.h"

namespace quire {
namespace {

// Ways to begin that a plan looks at. Rooms of the same length are one way, so
// programs whose tensors have few shapes stay far below it.
constexpr int kBeginningsTried = 128;

}  // namespace

uint64_t SeamPacker::RoomBefore(const SeamPage& page) const {
  return page.pieces.begin()->first;
}

uint64_t SeamPacker::RoomBehind(const SeamPage& page) const {
  const auto& [offset, piece] = *page.pieces.rbegin();
  return page_bytes_ - offset - piece.length;
}

void SeamPacker::Index(uint64_t id, const SeamPage& page) {
  if (const uint64_t room = RoomBefore(page); room > 0) {
    before_.emplace(room, id);
  }
  if (const uint64_t room = RoomBehind(page); room > 0) {
    behind_.emplace(room, id);
  }
}

void SeamPacker::Unindex(uint64_t id, const SeamPage& page) {
  before_.erase({RoomBefore(page), id});
  behind_.erase({RoomBehind(page), id});
}

// ---- Planning ---------------------------------------------------------------

SeamPlan SeamPacker::Plan(uint64_t bytes, bool may_begin_within_page) const {
  // New pages, bytes that nothing can use, change in open pages, and the room
  // that is left behind a new tail, the larger the better.
  using Cost = std::tuple<uint64_t, uint64_t, int, uint64_t>;
  std::optional<Cost> best_cost;
  SeamPlan best;
  const auto consider = [&](const SeamPlan& plan, uint64_t gap, int opened) {
    const Cost cost = {plan.new_pages(), gap, opened, plan.tail.length};
    if (best_cost && *best_cost <= cost) return;
    best_cost = cost;
    best = plan;
  };
  // A beginning, and the best end for it.
  const auto begin_with = [&](const SeamPiece& head, int opened) {
    SeamPlan plan;
    plan.head = head;
    plan.whole_pages = (bytes - head.length) / page_bytes_;
    const uint64_t rest = (bytes - head.length) % page_bytes_;
    if (rest == 0) {
      consider(plan, 0, opened);
      return;
    }
    auto room = before_.lower_bound({rest, 0});
    if (room != before_.end() && room->second == head.page) ++room;
    if (room != before_.end()) {
      plan.tail = {room->second, 0, rest};
      consider(plan, room->first - rest, opened);
    }
    plan.tail = {0, 0, rest};
    plan.tail_is_new = true;
    consider(plan, 0, opened + 1);
  };

  begin_with(SeamPiece(), 0);
  if (!may_begin_within_page) return best;
  int tried = 0;
  for (auto room = behind_.begin();
       room != behind_.end() && room->first <= bytes &&
       tried < kBeginningsTried;
       room = behind_.lower_bound({room->first + 1, 0})) {
    ++tried;
    begin_with({room->second, page_bytes_ - room->first, room->first}, -1);
  }
  if (const auto room = behind_.lower_bound({bytes, 0});
      bytes < page_bytes_ && room != behind_.end()) {
    SeamPlan inside;
    inside.head = {room->second, page_bytes_ - room->first, bytes};
    consider(inside, 0, 0);
  }
  return best;
}

// ---- Pieces -----------------------------------------------------------------

void SeamPacker::Place(SeamPlan* plan) {
  if (plan->tail_is_new) plan->tail.page = next_id_++;
  Enter(plan->head);
  Enter(plan->tail);
}

void SeamPacker::Enter(const SeamPiece& piece) {
  if (piece.none()) return;
  SeamPage& page = pages_[piece.page];
  if (!page.pieces.empty()) Unindex(piece.page, page);
  if (page.is_idle()) --idle_pages_;
  page.pieces[piece.offset] = {piece.length};
  ++page.mapped;
  mapped_bytes_ += piece.length;
  Index(piece.page, page);
}

void SeamPacker::SetHandle(uint64_t page, PageHandle handle) {
  pages_.find(page)->second.handle = handle;
}

PageHandle SeamPacker::HandleOf(uint64_t page) const {
  return pages_.find(page)->second.handle;
}

void SeamPacker::SetIdle(const SeamPiece& piece, bool idle) {
  if (piece.none()) return;
  SeamPage& page = pages_.find(piece.page)->second;
  bool& is_idle = page.pieces.find(piece.offset)->second.idle;
  if (is_idle == idle) return;
  if (page.is_idle()) --idle_pages_;
  is_idle = idle;
  page.idle += idle ? 1 : -1;
  if (page.is_idle()) ++idle_pages_;
}

void SeamPacker::Remove(const SeamPiece& piece) {
  if (piece.none()) return;
  if (Unmap(piece)) EndUse(piece);
}

bool SeamPacker::Unmap(const SeamPiece& piece) {
  const auto page = pages_.find(piece.page);
  Piece& unmapped = page->second.pieces.find(piece.offset)->second;
  if (page->second.is_idle()) --idle_pages_;
  if (unmapped.idle) --page->second.idle;
  unmapped.mapped = false;
  mapped_bytes_ -= piece.length;
  ending_bytes_ += piece.length;
  --page->second.mapped;
  if (page->second.is_idle()) ++idle_pages_;
  if (page->second.mapped > 0) return true;
  for (const auto& [offset, ending] : page->second.pieces) {
    ending_bytes_ -= ending.length;
  }
  Unindex(piece.page, page->second);
  pages_.erase(page);
  return false;
}

void SeamPacker::EndUse(const SeamPiece& piece) {
  const auto page = pages_.find(piece.page);
  // Its page may have gone meanwhile; ids are never used again.
  if (page == pages_.end()) return;
  Unindex(piece.page, page->second);
  page->second.pieces.erase(piece.offset);
  ending_bytes_ -= piece.length;
  Index(piece.page, page->second);
}

// ---- Checks -----------------------------------------------------------------

absl::Status SeamPacker::CheckInvariants() const {
  uint64_t mapped_bytes = 0;
  uint64_t ending_bytes = 0;
  size_t before = 0;
  size_t behind = 0;
  uint64_t idle_pages = 0;
  for (const auto& [id, page] : pages_) {
    const auto broken = [id = id](const char* what) {
      return absl::InternalError(absl::StrFormat("seam page %u: %s", id, what));
    };
    uint64_t end = 0;
    uint64_t mapped = 0;
    uint64_t idle = 0;
    for (const auto& [offset, piece] : page.pieces) {
      if (offset < end) return broken("pieces overlap");
      if (piece.length == 0 || offset % kSeamBytes != 0 ||
          piece.length % kSeamBytes != 0) {
        return broken("a piece of no length or off the grid");
      }
      end = offset + piece.length;
      mapped += piece.mapped ? 1 : 0;
      idle += piece.mapped && piece.idle ? 1 : 0;
      (piece.mapped ? mapped_bytes : ending_bytes) += piece.length;
    }
    if (end > page_bytes_) return broken("a piece is beyond its end");
    idle_pages += mapped == idle ? 1 : 0;
    if (mapped == 0 || mapped != page.mapped || idle != page.idle) {
      return broken("mapped pieces miscounted");
    }
    const uint64_t room_before = RoomBefore(page);
    const uint64_t room_behind = RoomBehind(page);
    before += room_before > 0 ? 1 : 0;
    behind += room_behind > 0 ? 1 : 0;
    if ((room_before > 0 && !before_.contains({room_before, id})) ||
        (room_behind > 0 && !behind_.contains({room_behind, id}))) {
      return broken("its room is not listed");
    }
  }
  if (idle_pages != idle_pages_ || before != before_.size() ||
      behind != behind_.size() || mapped_bytes != mapped_bytes_ ||
      ending_bytes != ending_bytes_) {
    return absl::InternalError("seam pages: rooms or bytes miscounted");
  }
  return absl::OkStatus();
}

}  // namespace quire
