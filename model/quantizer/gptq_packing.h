// A quantised linear as the tensors of a GPTQ checkpoint (format:
// <quire/loader/gptq.h>).

#ifndef QUIRE_MODEL_QUANTIZER_GPTQ_PACKING_H_
#define QUIRE_MODEL_QUANTIZER_GPTQ_PACKING_H_

#include <cstdint>
#include <vector>

#include "model/decoder/gptq_weights.h"
#include "model/quantizer/gptq_solver.h"
#include "quire/model/ops.h"

namespace quire {

struct PackedLinear {
  int bits = 4;
  size_t in_features = 0;
  size_t out_features = 0;
  size_t groups = 0;
  std::vector<uint32_t> qweight;  // [ceil(in * bits / 32), out]
  std::vector<uint32_t> qzeros;   // [groups, ceil(out * bits / 32)]
  std::vector<uint16_t> scales;   // half precision [groups, out]
  std::vector<uint32_t> g_idx;    // [in]
};

// `zero_offset` is taken from every zero point before it is stored, modulo
// 2^bits: 1 for v1, 0 for v2.
PackedLinear PackLinear(const QuantizedLinear& linear, int bits,
                        uint32_t zero_offset);

// What MatMul reads, over a packed linear: rows sorted by group.
class PackedLinearView {
 public:
  // Sorts the rows of `packed` in place.
  PackedLinearView(PackedLinear packed, uint32_t zero_offset, ThreadPool* pool);
  PackedLinearView(const PackedLinearView&) = delete;
  PackedLinearView& operator=(const PackedLinearView&) = delete;

  // Valid as long as the view.
  GptqMatrix matrix() const;

 private:
  PackedLinear packed_;
  const uint32_t zero_offset_;
  GroupedRows rows_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_GPTQ_PACKING_H_
