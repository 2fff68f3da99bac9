#include "paging/tail_store.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {

TailStore::~TailStore() {
  for (const auto& [id, page] : pages_) memory_->ReleaseRange(page.range, {});
}

uint64_t TailStore::Mask(const Piece& piece) {
  const uint64_t ones =
      piece.count == kChunks ? UINT64_MAX : (uint64_t{1} << piece.count) - 1;
  return ones << piece.first;
}

uint64_t TailStore::ChunksOf(Bytes size) const {
  return (size.value() + chunk() - 1) / chunk();
}

bool TailStore::IsOurs(Page* page) {
  const absl::StatusOr<bool> complete = page->others.IsComplete();
  if (!complete.ok() || !*complete) return false;
  page->others = Fence();
  return true;
}

uint64_t TailStore::free_chunks() {
  uint64_t chunks = 0;
  for (auto& [id, page] : pages_) {
    if (IsOurs(&page))
      chunks += static_cast<uint64_t>(std::popcount(~page.used));
  }
  return chunks;
}

std::optional<TailStore::Tail> TailStore::Take(Bytes size) {
  uint64_t left = ChunksOf(size);
  if (left > free_chunks()) return std::nullopt;
  std::vector<std::pair<int, uint64_t>> by_room;
  for (auto& [id, page] : pages_) {
    if (page.used != UINT64_MAX && IsOurs(&page))
      by_room.push_back({std::popcount(~page.used), id});
  }
  std::sort(by_room.begin(), by_room.end());
  Tail tail{size, {}};
  for (const auto& [room, id] : by_room) {
    uint64_t& used = pages_.at(id).used;
    while (left > 0 && used != UINT64_MAX) {
      Piece piece{id, static_cast<uint32_t>(std::countr_one(used)), 0};
      const int free = std::countr_zero(used >> piece.first);
      piece.count = static_cast<uint32_t>(std::min<uint64_t>(
          {left, static_cast<uint64_t>(free), kChunks - piece.first}));
      used |= Mask(piece);
      left -= piece.count;
      tail.pieces.push_back(piece);
    }
  }
  return tail;
}

absl::StatusOr<TailStore::Tail> TailStore::TakeOver(
    std::span<const PageHandle> pages, uint64_t begin, Bytes size,
    const Fence& fence) {
  Tail tail{size, {}};
  uint64_t first = begin / chunk();
  uint64_t left = ChunksOf(size);
  for (const PageHandle& page : pages) {
    const auto range =
        memory_->TryMakeRange(owner_, Bytes(0), std::span(&page, 1));
    if (!range.ok()) {
      Free(tail);
      return range.status();
    }
    const uint64_t count = std::min(left, kChunks - first);
    const Piece piece{next_page_++, static_cast<uint32_t>(first),
                      static_cast<uint32_t>(count)};
    pages_.emplace(piece.page, Page{*range, Mask(piece), fence});
    tail.pieces.push_back(piece);
    left -= count;
    first = 0;
  }
  return tail;
}

void TailStore::Free(const Tail& tail) {
  for (const Piece& piece : tail.pieces) {
    const auto it = pages_.find(piece.page);
    Page& page = it->second;
    page.used &= ~Mask(piece);
    if (page.used != 0) continue;
    const bool ours = IsOurs(&page);
    // A range is released under one fence. Where it is to be waited for, but
    // cannot be, the driver has failed, and nothing is known of any kernel.
    if (!ours && !IsIdle()) readers_.Wait().IgnoreError();
    memory_->ReleaseRange(page.range, ours ? readers_ : page.others);
    pages_.erase(it);
  }
}

std::vector<TailStore::Place> TailStore::PlacesOf(const Tail& tail,
                                                  uint64_t from,
                                                  uint64_t to) const {
  std::vector<Place> places;
  uint64_t begin = 0;  // of the piece
  for (const Piece& piece : tail.pieces) {
    const uint64_t end = begin + piece.count * chunk();
    const uint64_t first = std::max(begin, from);
    const uint64_t last = std::min(end, to);
    if (first < last)
      places.push_back(
          {DeviceAddress(pages_.at(piece.page).range->address().value() +
                         piece.first * chunk() + (first - begin)),
           first, Bytes(last - first)});
    begin = end;
  }
  return places;
}

bool TailStore::IsIdle() {
  const absl::StatusOr<bool> complete = readers_.IsComplete();
  if (!complete.ok() || !*complete) return false;
  readers_ = Fence();  // its event goes back to the driver
  return true;
}

std::optional<Fence> TailStore::OffStream(StreamId stream) const {
  const std::span<const StreamId> streams = readers_.streams();
  if (streams.empty() || streams.front() == stream) return std::nullopt;
  return readers_;
}

absl::Status TailStore::CheckInvariants(
    const std::vector<const Tail*>& tails) const {
  absl::flat_hash_map<uint64_t, uint64_t> used;
  for (const Tail* const tail : tails) {
    uint64_t chunks = 0;
    for (const Piece& piece : tail->pieces) {
      uint64_t& mask = used[piece.page];
      if ((mask & Mask(piece)) != 0)
        return absl::InternalError(absl::StrCat("tail store: chunks from ",
                                                piece.first, " of page ",
                                                piece.page, " have two tails"));
      mask |= Mask(piece);
      chunks += piece.count;
    }
    if (chunks != ChunksOf(tail->size))
      return absl::InternalError(absl::StrCat("tail store: a tail of ",
                                              tail->size.value(), " bytes has ",
                                              chunks, " chunks"));
  }
  if (used.size() != pages_.size())
    return absl::InternalError(absl::StrCat(
        "tail store: tails lie on ", used.size(), " pages of ", pages_.size()));
  for (const auto& [id, page] : pages_) {
    const auto counted = used.find(id);
    if (counted == used.end() || counted->second != page.used)
      return absl::InternalError(absl::StrCat("tail store: chunks of page ", id,
                                              " are used, and by nobody"));
  }
  return absl::OkStatus();
}

}  // namespace quire
