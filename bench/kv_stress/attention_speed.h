// How fast attention reads the rows of a cache, as its layout puts them.
//
// What a layout saves in memory it may cost in time: the more layers share a
// row, the further apart the rows of one layer lie, and tables of blocks are
// read beside the rows. So the attention op of the decoder runs over a real
// cache of each kind, on this machine.

#ifndef QUIRE_BENCH_KV_STRESS_ATTENTION_SPEED_H_
#define QUIRE_BENCH_KV_STRESS_ATTENTION_SPEED_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/serving/cache_kind.h"
#include "bench/serving/model_table.h"
#include "quire/paging/kv_layout.h"

namespace quire {

// Of a decode step, all layers, in one thread: processor time, the median of
// several.
struct AttentionSpeed {
  double microseconds = 0;  // 0: the op does not read such rows
  double relative = 0;      // to the contiguous cache with one layer to a row
};

// In the order of `kinds`, over `rows` tokens of four sequences. Kinds take
// turns, so that what else runs on the machine slows all of them alike.
absl::StatusOr<std::vector<AttentionSpeed>> MeasureAttention(
    const StressModel& model, KvDType dtype,
    const std::vector<CacheKind>& kinds, uint64_t rows);

}  // namespace quire

#endif  // QUIRE_BENCH_KV_STRESS_ATTENTION_SPEED_H_
