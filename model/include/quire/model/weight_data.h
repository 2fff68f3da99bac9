// What the bytes of a checkpoint's weights tell: scales and weights that are no
// numbers, zero points and group indices that are odd. For checkpoints of any
// family, also of those that are not run here.
//
// What is looked at is a matter of cost. Group indices are read by whoever
// describes a model. The tables of quantised linears are a few hundredths of
// the bytes, and every load looks at them where they lie. The rest means every
// byte: loads of plain weights, and of GGUF's blocks, whose scales stand among
// the codes, would take longer for it. So that is for who asks.

#ifndef QUIRE_MODEL_WEIGHT_DATA_H_
#define QUIRE_MODEL_WEIGHT_DATA_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/quantization.h"

namespace quire {

struct DataParts {
  bool groups = false;   // group indices of act-order; always from the files
  bool tables = false;   // scales and zero points of quantised linears
  bool weights = false;  // FP8 codes, what is not quantised, GGUF's blocks
};

// Calls `see` with the bytes of a tensor from front to back, in pieces that are
// whole multiples of `unit`.
using SeePiece = std::function<void(std::span<const std::byte> piece)>;
using PieceReader = std::function<absl::Status(const TensorInfo& tensor,
                                               Bytes unit, const SeePiece&)>;

struct DataFindings {
  // A sentence for each kind of what is odd, as ModelWeights::warnings has.
  std::vector<std::string> warnings;
  // What cannot be read, and what no load takes; each names its tensor.
  std::vector<absl::Status> errors;
};

// `modules` are those of the checkpoint. `read` is called by one thread, a
// tensor at a time.
DataFindings CheckWeightData(const Checkpoint& checkpoint,
                             const QuantizedModules& modules, DataParts parts,
                             const PieceReader& read);

}  // namespace quire

#endif  // QUIRE_MODEL_WEIGHT_DATA_H_
