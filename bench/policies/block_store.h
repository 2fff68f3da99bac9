// Pieces of device memory that are cut and put together again: what pools with
// splitting and coalescing are made of.
//
// A segment is memory that the driver gave at one time; its blocks lie side by
// side and are linked in order of address. A block is cut in two in O(1), and
// takes in the one behind it in O(1). Blocks that are gone are used again, so
// that memory is O(most blocks that there were at one time).

#ifndef QUIRE_BENCH_POLICIES_BLOCK_STORE_H_
#define QUIRE_BENCH_POLICIES_BLOCK_STORE_H_

#include <compare>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

struct PoolBlock {
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t stream = 0;   // StreamId of whoever may use it
  uint64_t segment = 0;  // policy's own
  uint64_t stamp = 0;    // policy's own
  PoolBlock* before = nullptr;
  PoolBlock* behind = nullptr;
  bool live = false;    // handed out
  bool mapped = true;   // false: addresses without memory
  bool small = false;   // policy's own: which of two pools it is of
  uint32_t events = 0;  // policy's own: what it waits for after it was freed

  // All of its segment.
  bool whole() const { return before == nullptr && behind == nullptr; }
  uint64_t end() const { return address + size; }
};

// Free blocks in order of stream, size and address, and among them those that
// may go back to the driver, which are found without the others.
class FreeBlocks {
 public:
  // May go back: blocks that are all of their segment; with a `granule`, those
  // of so many bytes or more, which may hold a whole one.
  explicit FreeBlocks(uint64_t granule = 0) : granule_(granule) {}

  struct Entry {
    uint64_t stream;
    uint64_t size;
    uint64_t address;
    PoolBlock* block;
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };
  using Set = absl::btree_set<Entry>;
  using const_iterator = Set::const_iterator;

  void Insert(PoolBlock* block);
  // REQUIRES: the block is as it was when it was inserted.
  void Erase(PoolBlock* block);

  const_iterator begin() const { return set_.begin(); }
  const_iterator end() const { return set_.end(); }
  bool empty() const { return set_.empty(); }
  // What may go back, in the same order.
  std::vector<PoolBlock*> Spare() const;
  // The smallest of `stream` with `size` bytes or more, or what comes after.
  const_iterator LowerBound(uint64_t stream, uint64_t size) const {
    return set_.lower_bound({stream, size, 0, nullptr});
  }
  // The smallest of `stream` with `size` bytes or more; null where none is.
  PoolBlock* BestFit(uint64_t stream, uint64_t size) const;
  // The largest of `stream`; null where it has none.
  PoolBlock* Largest(uint64_t stream) const;

 private:
  static Entry EntryOf(PoolBlock* block) {
    return {block->stream, block->size, block->address, block};
  }
  bool MayGoBack(const PoolBlock* block) const {
    return granule_ == 0 ? block->whole() : block->size >= granule_;
  }

  uint64_t granule_;
  Set set_;
  Set spare_;
};

class BlockStore {
 public:
  // The first block of a segment.
  PoolBlock* Add(const PoolBlock& block);
  // `block` keeps its first `size` bytes; returns the rest, alike in all else.
  // REQUIRES: 0 < size < block->size.
  PoolBlock* Split(PoolBlock* block, uint64_t size);
  // `block` becomes as long as both. REQUIRES: there is one behind it.
  void TakeInNext(PoolBlock* block);
  // Out of its segment, and dead.
  void Remove(PoolBlock* block);
  // `block` takes in neighbours that are free like it: of the same stream, both
  // backed or both not. These are in `free`, and leave it; `block` is not.
  // Returns what it is part of then.
  PoolBlock* MergeFree(PoolBlock* block, FreeBlocks* free);

  // Blocks that are handed out, by address.
  void MarkLive(PoolBlock* block);
  // No longer handed out. Null where no live block begins at the address.
  PoolBlock* TakeLive(DeviceAddress address);
  // As TakeLive, but it stays.
  PoolBlock* FindLive(DeviceAddress address) const;

 private:
  std::deque<PoolBlock> blocks_;
  std::vector<PoolBlock*> unused_;
  absl::flat_hash_map<uint64_t, PoolBlock*> live_;
};

// Of a free for an address that is none.
absl::Status NotAllocated(const char* policy, DeviceAddress address);

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_BLOCK_STORE_H_
