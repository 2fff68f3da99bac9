// From GPTQModel's planar layout (see <quire/loader/gptq.h>) to one string of
// bits, in place.

#ifndef QUIRE_MODEL_OPS_PLANAR_REPACK_H_
#define QUIRE_MODEL_OPS_PLANAR_REPACK_H_

#include <cstddef>
#include <cstdint>

#include "quire/model/thread_pool.h"

namespace quire {

// `words` is [blocks * bits, columns]: `bits` words below each other are 32
// codes of a column. Of qweight the columns are the outputs; of qzeros, whose
// codes lie side by side, there is one column. bits: 2 to 8, of which 3, 5, 6
// and 7 have more than one plane.
void RepackPlanar(uint32_t* words, int bits, size_t blocks, size_t columns,
                  ThreadPool* pool);

}  // namespace quire

#endif  // QUIRE_MODEL_OPS_PLANAR_REPACK_H_
