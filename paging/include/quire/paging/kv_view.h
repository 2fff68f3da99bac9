// Where the rows of one layer of one sequence are: what attention reads.
//
// Either contiguous, one array of rows, or in blocks: a pool of blocks of equal
// numbers of rows, and a table that names the block of each run of tokens. A
// kernel takes both; contiguous rows are the case without a table.

#ifndef QUIRE_PAGING_KV_VIEW_H_
#define QUIRE_PAGING_KV_VIEW_H_

#include <cstdint>

#include "quire/alloc/units.h"

namespace quire {

struct KvLayerView {
  // Of token 0, or, where there is a table, of the first row of block 0.
  DeviceAddress keys;
  DeviceAddress values;
  Bytes row_stride;    // of keys
  Bytes value_stride;  // the same, but where values stand apart and are larger
                       // or smaller than keys
  // The scales that go with these keys and values, where the layout has them:
  // as far apart as their rows are.
  DeviceAddress key_scales;
  DeviceAddress value_scales;

  // A token sees the last `window` tokens, itself included, and of those before
  // them the first `sinks`; 0: all. Rows of others may be gone.
  uint64_t window = 0;
  uint64_t sinks = 0;

  // Token t is row t % 2^block_shift of block block_table[t >> block_shift].
  // The table is in host memory and valid until the next call of the cache that
  // names the sequence: a launch that is only queued takes a copy. Null:
  // contiguous.
  const uint32_t* block_table = nullptr;
  uint32_t block_shift = 0;
  Bytes block_stride;  // of keys
  Bytes value_block_stride;

  // REQUIRES: the token is backed.
  DeviceAddress KeyRow(uint64_t token) const {
    return DeviceAddress(keys.value() +
                         Offset(token, row_stride, block_stride));
  }
  DeviceAddress ValueRow(uint64_t token) const {
    return DeviceAddress(values.value() +
                         Offset(token, value_stride, value_block_stride));
  }
  DeviceAddress KeyScales(uint64_t token) const {
    return DeviceAddress(key_scales.value() +
                         Offset(token, row_stride, block_stride));
  }
  DeviceAddress ValueScales(uint64_t token) const {
    return DeviceAddress(value_scales.value() +
                         Offset(token, value_stride, value_block_stride));
  }

 private:
  uint64_t Offset(uint64_t token, Bytes stride, Bytes of_block) const {
    if (block_table == nullptr) return token * stride.value();
    const uint64_t row = token & ((uint64_t{1} << block_shift) - 1);
    return block_table[token >> block_shift] * of_block.value() +
           row * stride.value();
  }
};

}  // namespace quire

#endif  // QUIRE_PAGING_KV_VIEW_H_
