// Pages in which the ends of many cached prefixes lie side by side.
//
// A region begins each of its parts with a page of its own, so a prefix that is
// kept for prompts to come holds a partly used page for every group of layers:
// 36 of them for a few tokens of a model whose layers lie apart. Its rows grow
// no more, and are copied where a prompt needs them in any case. So they may
// lie anywhere meanwhile: here, as bytes, whatever the layout of their group.
//
// A page of the store is cut into 64 chunks. A *tail*, the rows that a prefix
// has behind the last page that they fill in a group, takes whole chunks,
// wherever they are free; where too few are, the page that it lies on already
// becomes one of the store, with the tail at its beginning: that needs no free
// page and no copy, and may be done while somebody waits for pages. So do the
// pages of the last window of a sequence that ends, which its rows leave
// elsewhere. A page goes back when its last chunk is free.
//
// Who copies from the store says so by AddReader. Chunks are taken, and so
// written, only while nobody reads (IsIdle), and pages go back under the fence.
//
// Costs: Take O(pages), the rest O(chunks of the tail). Not thread-safe: the
// cache's state lock guards it.

#ifndef QUIRE_PAGING_TAIL_STORE_H_
#define QUIRE_PAGING_TAIL_STORE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/units.h"

namespace quire {

class TailStore {
 public:
  static constexpr uint32_t kChunks = 64;  // of a page

  // Chunks side by side.
  struct Piece {
    uint64_t page;
    uint32_t first;
    uint32_t count;
  };
  struct Tail {
    Bytes size;
    std::vector<Piece> pieces;  // in the order of the bytes
  };

  // `memory` outlives the store; REQUIRES: its pages divide into chunks.
  TailStore(DeviceMemory* memory, OwnerId owner)
      : memory_(memory), owner_(owner) {}
  // REQUIRES: nobody reads.
  ~TailStore();
  TailStore(const TailStore&) = delete;
  TailStore& operator=(const TailStore&) = delete;

  // Room for `size` bytes on the pages that there are, on the fullest first;
  // none where they have too little. REQUIRES: IsIdle(), size > 0.
  std::optional<Tail> Take(Bytes size);
  // The pages, which lie elsewhere too, become the store's: `size` bytes from
  // `begin` on, which is the beginning of a chunk of the first page, are the
  // tail. Others read the rest of them until `fence` completes. Asks nobody for
  // memory. Errors: those of DeviceMemory::TryMakeRange.
  absl::StatusOr<Tail> TakeOver(std::span<const PageHandle> pages,
                                uint64_t begin, Bytes size, const Fence& fence);
  void Free(const Tail& tail);

  Bytes chunk_size() const { return Bytes(chunk()); }
  // Chunks that a tail takes, and those that may be taken.
  uint64_t ChunksOf(Bytes size) const;
  uint64_t free_chunks();
  PageCount pages() const { return PageCount(pages_.size()); }

  // Where bytes [from, to) of a tail lie.
  struct Place {
    DeviceAddress address;
    uint64_t from;  // in the tail
    Bytes size;
  };
  std::vector<Place> PlacesOf(const Tail& tail, uint64_t from,
                              uint64_t to) const;

  // Whether all copies from the store are complete. An event that cannot be
  // queried counts as not complete.
  bool IsIdle();
  // Copies are queued on `stream`, behind which is `fence`. Before that, those
  // on other streams must be complete: the caller waits for OffStream, without
  // the lock.
  void AddReader(const Fence& fence) { readers_ = fence; }
  std::optional<Fence> OffStream(StreamId stream) const;

  // `tails` are all that were taken and not freed; an error names what does not
  // hold.
  absl::Status CheckInvariants(const std::vector<const Tail*>& tails) const;

 private:
  struct Page {
    AddressRange* range;
    uint64_t used = 0;  // a bit for each chunk
    Fence others;       // who had it read what is free until then
  };

  uint64_t chunk() const { return memory_->page_size().value() / kChunks; }
  static uint64_t Mask(const Piece& piece);
  // Whether nobody but readers of tails uses the page any more.
  static bool IsOurs(Page* page);

  DeviceMemory* const memory_;
  const OwnerId owner_;
  std::map<uint64_t, Page> pages_;
  uint64_t next_page_ = 1;
  Fence readers_;
};

// The tail of one part of a region: bytes of the part from `begin` on. The
// first `slot` pages are all that the part itself has, and are what comes
// before them, but for what is gone behind a window.
struct PackedTail {
  uint32_t group;
  PageCount slot;
  Bytes begin;
  TailStore::Tail tail;
};

}  // namespace quire

#endif  // QUIRE_PAGING_TAIL_STORE_H_
