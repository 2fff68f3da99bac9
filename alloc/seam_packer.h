// Where large allocations meet in one physical page.
//
// An allocation of 2.1 MiB on pages of 2 MiB needs one whole page and a tail of
// 0.1 MiB. The tail's page (a *seam page*) is mapped at the end of that
// allocation and at the start of another, whose first bytes are the rest of the
// page; a third, shorter than a page, may lie between two others. Each has
// addresses of its own, contiguous as ever; only physical pages are shared, at
// multiples of 512 bytes.
//
// A seam page is a row of pieces. A head ends where its page ends, a tail
// starts where its page starts; what is shorter than a page may lie anywhere
// behind the last piece. So what counts of a page is the room before its first
// piece and the room behind its last one. Plan looks at every way to begin an
// allocation in the room behind some piece (or on a page border) and to end it
// in the room before one (or in a new page), and takes the one that costs the
// fewest new pages; then the one that leaves the smallest gap that nothing can
// use before its neighbours go; then the one that leaves the fewest open pages.
// To begin in the room behind the last piece is to fill a page to its end, so
// that a run of allocations lies in physical memory like a bump allocator's.
//
// A piece is *mapped* while a span has it under its addresses, and occupied
// until every use of it is over, which may be later. A page whose last mapped
// piece goes is no longer the packer's: whoever owns physical pages has it.
//
// Invariants: the pieces of a page are disjoint, each is counted once; every
// page has a mapped piece. Plan is O(distinct rooms * log pages), all else
// O(log pages). Not thread-safe; makes no driver call.

#ifndef QUIRE_ALLOC_SEAM_PACKER_H_
#define QUIRE_ALLOC_SEAM_PACKER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "quire/alloc/units.h"

namespace quire {

// Pieces start and end at multiples of this: PyTorch's block size, and more
// than any kernel's vector load or copy engine asks for.
inline constexpr uint64_t kSeamBytes = 512;

// Part of a seam page. Page 0 is no page, and length 0 no piece.
struct SeamPiece {
  uint64_t page = 0;
  uint64_t offset = 0;
  uint64_t length = 0;

  bool none() const { return length == 0; }
};

// How an allocation lies on pages: the slots of its range are the page of the
// head, the whole pages, the page of the tail.
struct SeamPlan {
  SeamPiece head;
  uint64_t whole_pages = 0;
  SeamPiece tail;
  bool tail_is_new = false;  // its page is yet to be made

  uint64_t first_whole_slot() const { return head.none() ? 0 : 1; }
  uint64_t slots() const {
    return first_whole_slot() + whole_pages + (tail.none() ? 0 : 1);
  }
  uint64_t new_pages() const { return whole_pages + (tail_is_new ? 1 : 0); }
};

class SeamPacker {
 public:
  explicit SeamPacker(uint64_t page_bytes) : page_bytes_(page_bytes) {}

  // How `bytes`, a multiple of kSeamBytes, are best laid. Where they may not
  // begin within a page (an alignment above kSeamBytes), they begin on a
  // border.
  SeamPlan Plan(uint64_t bytes, bool may_begin_within_page) const;
  // Enters the pieces of a plan, mapped; a new page has an id from then on.
  // REQUIRES: nothing was entered or removed since the plan was made.
  void Place(SeamPlan* plan);
  // The physical page under a seam page: null until it is set.
  void SetHandle(uint64_t page, PageHandle handle);
  PageHandle HandleOf(uint64_t page) const;

  // Whether the span that has the piece mapped could give it up now. No-op for
  // no piece.
  void SetIdle(const SeamPiece& piece, bool idle);
  // The piece is no longer mapped by a span, and free. No-op for no piece.
  void Remove(const SeamPiece& piece);
  // The piece is no longer mapped, but may still be in use: it stays occupied
  // until EndUse, or until its page goes. Returns whether the page stays.
  bool Unmap(const SeamPiece& piece);
  void EndUse(const SeamPiece& piece);

  // The longest piece for which there is room in the pages that exist.
  uint64_t LargestRoom() const {
    return std::max(before_.empty() ? 0 : before_.rbegin()->first,
                    behind_.empty() ? 0 : behind_.rbegin()->first);
  }
  uint64_t page_count() const { return pages_.size(); }
  // Pages of which all mapped pieces are idle.
  uint64_t idle_pages() const { return idle_pages_; }
  // Of mapped pieces, and of those that are occupied and not mapped.
  uint64_t mapped_bytes() const { return mapped_bytes_; }
  uint64_t ending_bytes() const { return ending_bytes_; }

  absl::Status CheckInvariants() const;

 private:
  struct Piece {
    uint64_t length;
    bool mapped = true;
    bool idle = false;
  };
  struct SeamPage {
    PageHandle handle;
    std::map<uint64_t, Piece> pieces;  // by offset
    uint64_t mapped = 0;
    uint64_t idle = 0;  // of the mapped ones

    bool is_idle() const { return mapped > 0 && idle == mapped; }
  };
  // Room and page id.
  using Rooms = absl::btree_set<std::pair<uint64_t, uint64_t>>;

  uint64_t RoomBefore(const SeamPage& page) const;
  uint64_t RoomBehind(const SeamPage& page) const;
  void Index(uint64_t id, const SeamPage& page);
  void Unindex(uint64_t id, const SeamPage& page);
  void Enter(const SeamPiece& piece);

  const uint64_t page_bytes_;
  uint64_t next_id_ = 1;
  absl::flat_hash_map<uint64_t, SeamPage> pages_;
  // Pages with room; a page is in neither, one or both.
  Rooms before_;
  Rooms behind_;
  uint64_t idle_pages_ = 0;
  uint64_t mapped_bytes_ = 0;
  uint64_t ending_bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SEAM_PACKER_H_
