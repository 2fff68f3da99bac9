// The physical pages of one heap, and the addresses where they lie.
//
// Every page has one *home*: a place in the heap's own addresses, where pages
// that were made one after another lie side by side. Memory is handed out of
// there as by any allocator that splits and joins, without the driver. Bytes
// that nobody holds are runs: free ones here, others in the lists of the
// streams that may still be using them (StreamFreeList).
//
// Where no run is long enough, though the pages of several together are, these
// are mapped a second time, side by side under other addresses: a *detour*. Its
// pages stay at home too, so that bytes which are given back join their old
// neighbours. A detour that nobody uses stays mapped: who asks for the same
// length again has it without the driver, if all of its bytes are unused. So a
// program that repeats itself calls the driver in its first rounds only.
//
// A page is *idle* while nobody holds a byte of it, and *free* when no use of
// it is left either. It is given back by unmapping it everywhere: at home, and
// with every detour that it lies under, none of which can be in use.
//
// Invariants: runs and pieces in use are disjoint and together all bytes of
// backed pages; a detour in use holds the bytes of its pieces.
// O(pages) for what is taken and given, O(log n) besides. Not thread-safe.
// Makes the driver's calls through DeviceMemory, by functions that ask no
// reclaimer and wait for nothing.

#ifndef QUIRE_ALLOC_ARENA_H_
#define QUIRE_ALLOC_ARENA_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/piece.h"
#include "alloc/run_set.h"
#include "alloc/span_table.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/units.h"

namespace quire {

// Pieces that are mapped side by side. All but the first begin on a page
// border, and all but the last end on one.
struct Detour {
  AddressRange* range = nullptr;
  Pieces pieces;
  uint64_t base = 0;   // where the first byte lies
  uint64_t bytes = 0;  // of all pieces
  bool idle = false;
  StreamId last_stream;  // that may still be using an idle one
  uint64_t number = 0;   // in the order of becoming idle
  // The one that was taken next after this one, the last time that this one
  // was; and the one that this one was taken next after. Null: none any more.
  Detour* successor = nullptr;
  Detour* predecessor = nullptr;
};

// Of all heaps of an allocator.
struct MappedTotal {
  uint64_t bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t made_bytes = 0;  // ever

  void UpdatePeak() { peak_bytes = std::max(peak_bytes, bytes); }
};

class Arena {
 public:
  // Everything must outlive the arena. `marker` is what the table of spans has
  // for addresses that no slab lies at.
  Arena(OwnerId owner, DeviceMemory* memory, SpanTable* spans,
        MappedTotal* total, Span* marker);

  Span* marker() const { return marker_; }

  // ---- Accounts, O(1) ----
  uint64_t backed_pages() const { return backed_pages_; }
  uint64_t idle_pages() const { return idle_pages_; }
  uint64_t free_pages() const { return free_pages_; }
  const RunSet& free_runs() const { return free_; }
  // Bytes that were given up in part of a page, until their fence completes.
  uint64_t ending_bytes() const { return ending_bytes_; }
  // Whether somebody begins, or ceases, to hold the bytes.
  void BecomeIdle(const Piece& piece) { Count(piece, &HomePage::idle, true); }
  void BecomeBusy(const Piece& piece) { Count(piece, &HomePage::idle, false); }
  // Whether a use of them is left, where they are in no run.
  void BecomeFree(const Piece& piece) { Count(piece, &HomePage::free, true); }
  void BecomeUsed(const Piece& piece) { Count(piece, &HomePage::free, false); }

  // ---- Free bytes ----
  // Idle bytes become a free run, or part of one.
  void InsertFree(const Piece& piece);
  // The reverse. REQUIRES: they are in one free run.
  void TakeFree(const Piece& piece);

  // ---- Pages ----
  // Whether `pages` more can be put at home from `address` on.
  bool CanGrowAt(uint64_t address, uint64_t pages) const;
  // Puts pages side by side at home, at `address` if it is not 0: they are
  // free. Returns where. From prepared pages only: kAborted where those, or
  // addresses, are too few (DeviceMemory::TryMakeRange).
  absl::StatusOr<uint64_t> Grow(uint64_t pages, Bytes alignment,
                                uint64_t address = 0);
  // Gives idle pages to the pool once `fence` is complete, and the detours over
  // them. REQUIRES: whole pages that are backed, in no run, and not free.
  void Give(const Piece& pages, const Fence& fence);
  // Idle bytes that are in no run: whole pages go to the pool, and the rest is
  // free, once `fence` is complete.
  void GiveUp(const Piece& piece, const Fence& fence);
  // Frees what waited for fences that are complete.
  void Poll();
  // Whether parts of pages wait for fences that can complete.
  bool IsEnding() const;
  PageHandle PageAt(uint64_t address) const;
  // The range that the address lies in, and its page there.
  AddressRange* RangeAt(uint64_t address, PageCount* slot) const;
  // For a mesh: the home addresses of the pages get other pages (`to`), and
  // theirs go to the pool. All or nothing, as DeviceMemory::Remap.
  absl::Status Remap(const Piece& pages, std::span<const PageHandle> to);
  // After Remap: the pages are no more the arena's, until TakeHome says that
  // nothing lies at their addresses any longer once `fence` is complete.
  void Lend(const Piece& pages);
  void TakeHome(const Piece& pages, const Fence& fence);
  // All addresses of what spans hold of whole pages lead to `span`.
  void Publish(const Piece& pages, Span* span);

  // ---- Detours ----
  // REQUIRES: the pieces are held by the caller. Errors: those of TryMakeRange.
  absl::StatusOr<Detour*> MakeDetour(Pieces pieces, Bytes alignment);
  // An idle one of `bytes` to `excess` more, whose pieces all pass. It stays
  // idle until TakeDetour.
  Detour* FindDetour(uint64_t bytes, uint64_t excess, Bytes alignment,
                     absl::FunctionRef<bool(const Piece&)> usable) const;
  void TakeDetour(Detour* detour);
  // Nobody holds it any more, but `stream` may still be using it.
  void LeaveDetour(Detour* detour, StreamId stream);
  // Unmaps an idle one once `fence` is complete.
  void DropDetour(Detour* detour, const Fence& fence);
  // Unmaps idle detours, the least recently used first, until at most `keep`
  // pages of addresses are left under them. Leaves those alone whose stream
  // does not pass. Returns how many it dropped.
  uint64_t TrimDetours(uint64_t keep,
                       absl::FunctionRef<bool(StreamId)> may_record);

  // Those that may still be using idle detours.
  void AppendStreams(std::vector<StreamId>* streams) const;

  // Gives all addresses back, under `fence`. The end: nothing else may follow.
  void ReleaseAll(const Fence& fence);

  // `held`: the bytes of spans at home.
  absl::Status CheckInvariants(uint64_t cooling_runs, uint64_t held) const;
  // Whether DeviceMemory has pages at home where the arena says.
  absl::Status CheckBacking() const;

 private:
  enum class PageState : uint8_t { kHole, kBacked, kLeaving, kLent, kLost };
  struct HomePage {
    PageState state = PageState::kHole;
    uint32_t idle = 0;  // bytes
    uint32_t free = 0;  // bytes
    // Over it; twice where two pieces are.
    absl::InlinedVector<Detour*, 2> detours;
  };
  // A reservation of addresses. Its last page is never used, so that no run
  // reaches into the next chunk.
  struct Chunk {
    AddressRange* range = nullptr;
    std::vector<HomePage> pages;
    uint64_t in_use = 0;  // pages that are no holes
  };
  struct Ending {
    Fence fence;
    Piece piece;
  };

  Chunk& ChunkAt(uint64_t address);
  const Chunk& ChunkAt(uint64_t address) const;
  HomePage& PageOf(Chunk& chunk, uint64_t address) const {
    return chunk
        .pages[(address - chunk.range->address().value()) >> page_shift_];
  }
  void Count(const Piece& piece, uint32_t HomePage::*bytes, bool add);
  void SetState(const Piece& pages, PageState state);
  // The pages are no longer backed: nothing is counted of them.
  void Leave(const Piece& pages, const Fence& fence);
  absl::Status AddChunk(uint64_t pages, Bytes alignment);
  void DropEmptyChunks();
  absl::Status Back(const Piece& pages);
  void LeaveIdle(Detour* detour);
  void FollowUp(Detour* taken);
  void Unlink(Detour* detour);
  // Detours over any of the pages, which are idle.
  void DropDetoursOver(const Piece& pages, const Fence& fence);
  template <typename Function>
  void ForEachPage(const Piece& piece, Function function) const;

  const OwnerId owner_;
  DeviceMemory* const memory_;
  SpanTable* const spans_;
  MappedTotal* const total_;
  Span* const marker_;
  const uint64_t page_bytes_;
  const int page_shift_;

  std::map<uint64_t, Chunk> chunks_;  // by address
  uint64_t chunk_pages_ = 0;
  RunSet holes_;  // addresses of pages that are not backed
  RunSet free_;
  std::vector<Ending> leaving_;  // whole pages
  std::vector<Ending> endings_;  // parts of pages
  uint64_t ending_bytes_ = 0;
  uint64_t backed_pages_ = 0;
  uint64_t idle_pages_ = 0;
  uint64_t free_pages_ = 0;

  absl::flat_hash_map<Detour*, std::unique_ptr<Detour>> detours_;
  struct ByBytesThenNumber {
    using is_transparent = void;
    bool operator()(const Detour* a, const Detour* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->number < b->number;
    }
    bool operator()(const Detour* a, uint64_t bytes) const {
      return a->bytes < bytes;
    }
    bool operator()(uint64_t bytes, const Detour* b) const {
      return bytes < b->bytes;
    }
  };
  absl::btree_set<Detour*, ByBytesThenNumber> idle_detours_;
  absl::btree_map<uint64_t, Detour*> idle_by_number_;
  Detour* last_taken_ = nullptr;
  std::vector<PageHandle> made_of_;  // memory for each MakeDetour in turn
  uint64_t idle_detour_pages_ = 0;
  uint64_t detours_left_ = 0;  // ever
};

}  // namespace quire

#endif  // QUIRE_ALLOC_ARENA_H_
