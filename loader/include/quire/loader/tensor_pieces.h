// Reads tensors of a checkpoint from its files, a piece at a time: for who
// looks at what weights hold, without a device and in little memory.

#ifndef QUIRE_LOADER_TENSOR_PIECES_H_
#define QUIRE_LOADER_TENSOR_PIECES_H_

#include <cstddef>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"

namespace quire {

inline constexpr Bytes kMaxPieceUnit = MiB(8);

// Calls `see` with the bytes of a tensor from front to back, in pieces of about
// a MiB that are whole multiples of `unit` (the last one may not be), and drops
// the page cache behind them. A unit of more than kMaxPieceUnit is
// kInvalidArgument; other errors are those of Checkpoint::ReadSmallTensor. A
// piece is the callback's until it returns.
absl::Status ReadInPieces(
    const Checkpoint& checkpoint, const TensorInfo& tensor, Bytes unit,
    const std::function<void(std::span<std::byte> piece)>& see);

}  // namespace quire

#endif  // QUIRE_LOADER_TENSOR_PIECES_H_
