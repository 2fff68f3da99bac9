// Chooses the bytes of a detour: of which runs, and what of each.
//
// A detour has whole pages of any runs. It may begin in the bytes before a
// run's first page border and end in the bytes behind the last border of one;
// what of that is chosen keeps the pages few that are in use in part, and
// leaves little that nothing can use.
//
// One pass over the runs, and a sort of what lies behind their last borders; in
// memory that is used again, since a heap that is always full plans a detour
// for most of its large requests. Not thread-safe.

#ifndef QUIRE_ALLOC_DETOUR_PLANNER_H_
#define QUIRE_ALLOC_DETOUR_PLANNER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "alloc/piece.h"
#include "quire/alloc/units.h"

namespace quire {

// What a run has to offer a detour: bytes up to its first page border, whole
// pages, bytes behind its last border.
struct RunOffer {
  Piece before;
  Piece whole;
  Piece behind;

  // Nothing where it lies within a page, without a border.
  static std::optional<RunOffer> Of(const Piece& run, uint64_t page_bytes) {
    const Piece whole = WholePages(run, page_bytes);
    if (whole.begin > run.end()) return std::nullopt;
    return RunOffer{{run.begin, whole.begin - run.begin},
                    whole,
                    {whole.end(), run.end() - whole.end()}};
  }
};

class DetourPlanner {
 public:
  // REQUIRES: page_bytes is a power of two.
  explicit DetourPlanner(uint64_t page_bytes);

  struct Choice {
    // In the order in which they are to lie; none where pages are missing.
    Pieces pieces;
    uint64_t new_pages = 0;  // whole pages that are missing
    uint64_t addresses = 0;  // pages of them, side by side
  };
  // Of `runs`, by address, no two of which touch. REQUIRES: `bytes` is a
  // multiple of kPieceGrain, above 0.
  Choice Plan(std::span<const Piece> runs, uint64_t bytes, Bytes alignment);

 private:
  // A list of indices in a table of links.
  struct Chain {
    uint32_t first = 0;
    uint32_t last = 0;
  };
  // Where it begins and ends; pages.
  struct Ends {
    Piece head;
    Piece tail;
    uint64_t pages = 0;
  };

  void Gather(std::span<const Piece> runs);
  Ends ChooseEnds(uint64_t bytes, Bytes alignment);
  // To pieces_; what continues the last one becomes part of it.
  void Append(const Piece& piece);
  void AppendWhole(const Piece& head, uint64_t bytes);

  const uint64_t page_bytes_;
  const int page_shift_;

  // Of the runs of this plan: what is before the first border of the first few,
  // by address; what is behind the last one of each, by length; whole pages, by
  // address.
  std::vector<Piece> heads_;
  std::vector<Piece> tails_;
  std::vector<Piece> whole_;
  uint64_t whole_bytes_ = 0;

  // Runs of whole pages by their number; those of as many and more lie apart.
  static constexpr size_t kFew = 64;
  std::array<Chain, kFew> few_;
  std::vector<uint32_t> next_whole_;
  std::vector<Piece> many_;

  std::vector<Piece> pieces_;  // as chosen
};

}  // namespace quire

#endif  // QUIRE_ALLOC_DETOUR_PLANNER_H_
