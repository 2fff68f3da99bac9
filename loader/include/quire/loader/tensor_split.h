// Which bytes of a linear each of several devices takes, when they compute it
// together: tensor parallelism (Shoeybi et al. 2019, Megatron-LM,
// https://arxiv.org/abs/1909.08053).
//
//   kOutputs  a rank has some of the outputs, all inputs: the results of the
//             ranks, one after the other, are the result (column parallel)
//   kInputs   a rank has some of the inputs, all outputs: the results of the
//             ranks, added, are the result (row parallel); the bias is rank
//             0's, so that it is added once
//
// Shares are equal, and never cut what is stored together: the codes of a word,
// the blocks of GGUF, the outputs of one scale. Where a size does not allow
// that the split is refused with the numbers; nothing is padded. Scales that
// serve several ranks each of them has. With act-order the inputs of a rank are
// in any groups, so that every rank has the scales of all of them; in order it
// has those of its own inputs, of GPTQ and AWQ with a group at either end
// perhaps in part.
//
// A pure function of the index of a checkpoint, g_idx apart, which is read.

#ifndef QUIRE_LOADER_TENSOR_SPLIT_H_
#define QUIRE_LOADER_TENSOR_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/gptq.h"
#include "quire/loader/scaled_modules.h"
#include "quire/loader/tensor_slice.h"

namespace quire {

enum class SplitAxis : uint8_t { kOutputs, kInputs };

struct SplitRule {
  SplitAxis axis = SplitAxis::kOutputs;
  uint32_t ranks = 1;
  // A share is a multiple of this as well: of the head size, for what goes into
  // heads or comes out of them.
  uint64_t unit = 1;
};

// A linear that is stored as it is, or rounded as it is loaded.
struct PlainLinear {
  const TensorInfo* weight = nullptr;  // [outputs, inputs]
  const TensorInfo* bias = nullptr;    // null: absent
  // Where it is rounded at load: inputs of one scale, of one row.
  std::optional<uint64_t> rounded_block;
};

// What one rank takes. Its slices, each run behind the other, are the tensors
// of a linear of these sizes in the format of the whole.
struct LinearShard {
  uint64_t begin = 0;  // outputs or inputs of the whole: [begin, end)
  uint64_t end = 0;
  uint64_t in_features = 0;
  uint64_t out_features = 0;
  // Null where the rank has nothing of it. StreamSlices loads them.
  TensorSlice codes;  // or plain weights
  TensorSlice scales;
  TensorSlice zeros;
  TensorSlice bias;
  uint64_t row_bytes = 0;  // of a row of codes, but for GPTQ and AWQ
  uint64_t groups = 0;     // along the inputs, in `scales`
  // The group of each input, among those. Always of GPTQ and AWQ; of other
  // formats with act-order, and else it is input / block_columns.
  std::vector<uint32_t> group_of_input;
  // A row is read whole and rounded before the rank's inputs are taken of it,
  // since its scale is of all inputs: rounded at load in blocks of whole rows,
  // and split along the inputs.
  bool rounded_first = false;
};

// One shard for each rank. Errors name the module and the numbers.
absl::StatusOr<std::vector<LinearShard>> SplitLinear(
    const Checkpoint& checkpoint, const GptqModule& module,
    const SplitRule& rule);
// MXFP4's experts are split each, and stay together.
absl::StatusOr<std::vector<LinearShard>> SplitLinear(
    const Checkpoint& checkpoint, const ScaledModule& module,
    const SplitRule& rule);
// Of embeddings and heads too, whose outputs are the vocabulary.
absl::StatusOr<std::vector<LinearShard>> SplitLinear(
    const Checkpoint& checkpoint, const PlainLinear& linear,
    const SplitRule& rule);

// The runs of a slice, one behind the other. Only for small tensors, as
// Checkpoint::ReadSmallTensor.
absl::Status ReadSlice(const Checkpoint& checkpoint, const TensorSlice& slice,
                       std::vector<std::byte>* out);

}  // namespace quire

#endif  // QUIRE_LOADER_TENSOR_SPLIT_H_
