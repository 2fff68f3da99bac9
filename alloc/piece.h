// Bytes side by side at home, in the addresses of an arena (arena.h).

#ifndef QUIRE_ALLOC_PIECE_H_
#define QUIRE_ALLOC_PIECE_H_

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "quire/alloc/units.h"

namespace quire {

// Pieces begin and end at multiples of this: PyTorch's block size, and more
// than any kernel's vector load or copy engine asks for.
inline constexpr uint64_t kPieceGrain = 512;

// What an allocation of `size` takes of an arena. REQUIRES: `size` is that of
// something that may exist, so that rounding up does not overflow.
inline uint64_t PieceBytes(Bytes size) {
  return std::max(*CheckedAlignUp(size.value(), kPieceGrain), kPieceGrain);
}

struct Piece {
  uint64_t begin = 0;
  uint64_t length = 0;

  uint64_t end() const { return begin + length; }
};

// Nearly always it is one.
using Pieces = absl::InlinedVector<Piece, 1>;

// Those of its bytes that are whole pages. REQUIRES: page_bytes is a power of
// two.
inline Piece WholePages(const Piece& piece, uint64_t page_bytes) {
  const uint64_t first = (piece.begin + page_bytes - 1) & ~(page_bytes - 1);
  const uint64_t last = piece.end() & ~(page_bytes - 1);
  return {first, last > first ? last - first : 0};
}

}  // namespace quire

#endif  // QUIRE_ALLOC_PIECE_H_
