#include "quire/loader/tensor_pieces.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loader/checkpoint_file.h"
#include "loader/tensor_errors.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Large enough for the disk, small enough to stay in a processor's cache while
// it is looked at.
constexpr uint64_t kPieceBytes = MiB(1).value();

}  // namespace

absl::Status ReadInPieces(
    const Checkpoint& checkpoint, const TensorInfo& tensor, Bytes unit,
    const std::function<void(std::span<std::byte> piece)>& see) {
  if (unit > kMaxPieceUnit)
    return TensorError(
        checkpoint, tensor,
        absl::StrCat("its rows of ", unit.value(),
                     " bytes are longer than the ", kMaxPieceUnit.value(),
                     " that are read at once here"));
  const uint64_t whole = std::max<uint64_t>(unit.value(), 1);
  const uint64_t most = std::max(whole, kPieceBytes / whole * whole);
  const auto read = [&]() -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(const auto file,
                           OpenUnchanged(checkpoint.files()[tensor.file]));
    const uint64_t size = tensor.size.value();
    std::vector<std::byte> buffer(std::min(most, size));
    for (uint64_t done = 0; done < size;) {
      const std::span<std::byte> piece =
          std::span(buffer).first(std::min(most, size - done));
      QUIRE_RETURN_IF_ERROR(file->Read(tensor.offset + done, piece));
      file->DropCache(tensor.offset + done, piece.size());
      see(piece);
      done += piece.size();
    }
    return absl::OkStatus();
  };
  return OfTensor(tensor, read());
}

}  // namespace quire
