// What stands for a sequence that was swapped out: where its rows are on the
// host, and which of its pages are still on the device.
//
// Pages that lie elsewhere too when a sequence is swapped out stay under it:
// unmapping them would free nothing. They are the first ones of each part, and
// have host memory set aside. When memory is short and nobody else needs them,
// they are written out too, from the end, once for all sequences that have them
// (KeptPage). The first of these that comes back reads them in, and the others
// have its pages then, as before, as long as it stands on the books of
// SharedPages with them.

#ifndef QUIRE_PAGING_SWAPPED_ROWS_H_
#define QUIRE_PAGING_SWAPPED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "paging/kv_region.h"
#include "paging/swap_space.h"
#include "quire/alloc/units.h"
#include "quire/paging/sequence_id.h"

namespace quire {

// A page that sequences had in common when they were swapped out.
struct KeptPage {
  KeptPage(PageHandle handle, SwapBlocks memory)
      : page(handle), block(std::move(memory)) {}

  PageHandle page;         // as long as it is mapped
  const SwapBlocks block;  // one
  bool written = false;    // to the block
  uint64_t mapped = 0;     // swapped-out sequences that it lies under
  // Who has its rows again, since they were read in, and since when they stand
  // on the books.
  SequenceId back_in;
  uint64_t stamp = 0;
};

struct SwappedRows {
  struct Part {
    // Of slots from 0 on. Those that the region has committed are mapped.
    std::vector<std::shared_ptr<KeptPage>> kept;
    PageCount behind;  // where the window left off: KvRegion::behind
  };
  std::vector<Part> parts;    // by group
  std::vector<PageRun> runs;  // of the slots in blocks, in this order
  SwapBlocks blocks;
  uint64_t used_tokens = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_SWAPPED_ROWS_H_
