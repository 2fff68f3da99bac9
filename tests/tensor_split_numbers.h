// Linears of a checkpoint, and the shares of several ranks of them, as numbers:
// what the tests of tensor parallelism compare.

#ifndef QUIRE_TESTS_TENSOR_SPLIT_NUMBERS_H_
#define QUIRE_TESTS_TENSOR_SPLIT_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "loader/streaming_test_util.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/quantization.h"
#include "quire/loader/tensor_split.h"

namespace quire {

using ByteVector = std::vector<std::byte>;

// Both fail the test where the bytes cannot be read; of no tensor there are
// none.
ByteVector Read(const Checkpoint& checkpoint, const TensorInfo* tensor);
ByteVector Read(const Checkpoint& checkpoint, const TensorSlice& slice);

// A linear by its own tensors: the whole, or one share of it.
struct Stored {
  uint64_t in_features = 0;
  uint64_t out_features = 0;
  ByteVector codes = {};
  ByteVector scales = {};
  ByteVector zeros = {};
  ByteVector bias = {};
  uint64_t row_bytes = 0;
  uint64_t groups = 0;
  std::vector<uint32_t> group_of_input = {};
};

// With a null target the slices are read, not loaded, which takes less time.
Stored Shard(const Checkpoint& checkpoint, const LinearShard& shard,
             LoadTarget* target);

// The tensors of a quantised module, all of them; what the formats say in
// different ways is left to the caller.
template <typename Module>
Stored WholeOf(const Checkpoint& checkpoint, const Module& module,
               const TensorInfo* codes, const TensorInfo* zeros) {
  return {.in_features = module.in_features,
          .out_features = module.out_features,
          .codes = Read(checkpoint, codes),
          .scales = Read(checkpoint, module.scales),
          .zeros = Read(checkpoint, zeros),
          .bias = Read(checkpoint, module.bias)};
}

// A linear as numbers: weight [outputs, inputs], and the bias it adds, or none.
struct Numbers {
  uint64_t in_features = 0;
  uint64_t out_features = 0;
  std::vector<float> weight;
  std::vector<float> bias;
};

Numbers Decode(const GptqModule& module, uint32_t zero_offset, Stored stored);
// One of the linears of the module.
Numbers Decode(const ScaledModule& module, uint64_t expert,
               const Stored& stored);
Numbers Decode(const PlainLinear& linear, const Stored& stored);

}  // namespace quire

#endif  // QUIRE_TESTS_TENSOR_SPLIT_NUMBERS_H_
