// What a scheduler needs of a cache that can move sequences out of device
// memory and back.

#ifndef QUIRE_PAGING_SEQUENCE_SWAP_H_
#define QUIRE_PAGING_SEQUENCE_SWAP_H_

#include "absl/status/status.h"
#include "quire/alloc/fence.h"
#include "quire/paging/sequence_id.h"

namespace quire {

class SequenceSwap {
 public:
  virtual ~SequenceSwap() = default;
  // Keeps the contents elsewhere and gives up the memory under `fence`. The id
  // stays valid for SwapIn and for Release of the cache. After an error nothing
  // has changed.
  virtual absl::Status SwapOut(SequenceId sequence, const Fence& fence) = 0;
  // Backs the sequence as it was. kResourceExhausted where memory is short.
  // After an error it is still swapped out.
  virtual absl::Status SwapIn(SequenceId sequence) = 0;
};

}  // namespace quire

#endif  // QUIRE_PAGING_SEQUENCE_SWAP_H_
