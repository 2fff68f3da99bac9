// Pinned host memory for pages that are swapped out, in blocks of a page each.
//
// Memory is pinned in slabs, when it is first needed and never more than the
// limit, and stays pinned: pinning takes milliseconds. Blocks are handed out by
// address, so that those taken together lie side by side where they can, and a
// run of pages is one copy.
//
// Who takes a block that another one gave back writes to it on the same stream:
// copies that are still under way come first.
//
// Thread-safe. Pinning has a lock of its own: who takes blocks, or gives them
// back, never waits for the driver. Costs: O(log blocks) a block.

#ifndef QUIRE_PAGING_SWAP_SPACE_H_
#define QUIRE_PAGING_SWAP_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

class SwapSpace;

// Blocks of a SwapSpace, which go back to it at the end. Movable.
class SwapBlocks {
 public:
  SwapBlocks() = default;
  SwapBlocks(SwapBlocks&& other) noexcept;
  SwapBlocks& operator=(SwapBlocks&& other) noexcept;
  ~SwapBlocks();

  size_t size() const { return blocks_.size(); }
  std::byte* operator[](size_t i) const { return blocks_[i]; }
  // The last block, as blocks of its own. REQUIRES: there is one.
  SwapBlocks TakeLast();

 private:
  friend class SwapSpace;
  SwapBlocks(SwapSpace* space, std::vector<std::byte*> blocks)
      : space_(space), blocks_(std::move(blocks)) {}

  SwapSpace* space_ = nullptr;
  std::vector<std::byte*> blocks_;  // ascending
};

class SwapSpace {
 public:
  // At most `limit` bytes, in blocks of `block` bytes. `driver` must outlive
  // it.
  SwapSpace(Driver* driver, Bytes block, Bytes limit);
  // REQUIRES: no copy is under way.
  ~SwapSpace();
  SwapSpace(const SwapSpace&) = delete;
  SwapSpace& operator=(const SwapSpace&) = delete;

  // All or none. None where fewer are free and pinned: Pin them, and try again.
  // Error: kResourceExhausted where that many are not free within the limit,
  // with the numbers.
  absl::StatusOr<std::optional<SwapBlocks>> Take(uint64_t count)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Pins memory until `count` blocks are free, as far as the limit goes: some
  // ten milliseconds for each slab, so call it under no lock that others wait
  // for. Errors: the driver's.
  absl::Status Pin(uint64_t count) ABSL_LOCKS_EXCLUDED(pin_mutex_, mutex_);

  Bytes block() const { return block_; }
  Bytes limit() const { return Bytes(most_blocks_ * block_.value()); }
  Bytes taken() const;   // by those who have blocks
  Bytes pinned() const;  // in all

 private:
  friend class SwapBlocks;
  void GiveBack(std::span<std::byte* const> blocks);

  Driver* const driver_;
  const Bytes block_;
  const uint64_t most_blocks_;
  Mutex pin_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one Pin at a time
  mutable Mutex mutex_;
  std::vector<std::byte*> slabs_ ABSL_GUARDED_BY(mutex_);
  uint64_t blocks_ ABSL_GUARDED_BY(mutex_) = 0;  // of all slabs
  std::set<std::byte*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_PAGING_SWAP_SPACE_H_
