// Why memory could not be had: part of every out-of-memory error.
//
// An error that says "out of memory" helps nobody. A verdict says which of the
// possible reasons it is, with the numbers, the largest owners and what to try.
// It travels as the payload of a kResourceExhausted status and reads as its
// message.

#ifndef QUIRE_ALLOC_VERDICT_H_
#define QUIRE_ALLOC_VERDICT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "quire/alloc/units.h"

namespace quire {

enum class ShortageKind {
  kCapacity,       // not enough memory exists on the device
  kFragmentation,  // enough exists, but it is held as slack or cache
  kLimit,          // the caller's own limit
  kCooling,        // freed, but a stream is still using it
  kAddressSpace,   // addresses ran out, not memory
  kOtherProcess,   // another process holds it
  kMappings,       // the kernel or driver takes no more mappings
};
const char* ShortageKindName(ShortageKind kind);  // "capacity", ...
std::optional<ShortageKind> ShortageKindFromName(const std::string& name);

// An owner that may not have more.
struct OwnerShortage {
  std::string owner;
  Bytes limit;
  Bytes live;  // its use, with that of all below it
  friend bool operator==(const OwnerShortage&, const OwnerShortage&) = default;
};

// A stream whose work keeps memory from being used again.
struct AwaitedStream {
  StreamId stream;
  // Addresses that were given up under fences on it.
  Bytes cooling;
  friend bool operator==(const AwaitedStream&, const AwaitedStream&) = default;
};

// What the program did before: of the event trace.
struct RecentEvent {
  uint64_t nanoseconds_before = 0;  // the last event
  std::string action;               // TraceActionName
  std::string owner;
  Bytes size;
  std::string label;  // of marks
  // "allocate 91.00 MiB (kv) 2.3 ms before".
  std::string ToString() const;
  friend bool operator==(const RecentEvent&, const RecentEvent&) = default;
};

struct OutOfMemoryVerdict {
  ShortageKind kind = ShortageKind::kCapacity;
  Bytes requested;
  // For kAddressSpace these three are of addresses, else of memory.
  Bytes free;              // could be created or is cached now
  Bytes largest_possible;  // the largest request that would succeed now
  Bytes limit;
  Bytes device_total;
  Bytes cooling;
  // What compaction would free, by level, each beyond those before: Trim what
  // caches hold, mesh and relocation what lies free between live allocations.
  Bytes held_as_slack;
  Bytes mesh_frees;
  Bytes relocation_frees;
  // What sleep of others would free: the live pages of every owner that can be
  // put to sleep without the one that asks. What the levels above would free of
  // these is in it again.
  Bytes sleep_frees;
  // Kept free for other owners, which have less than their reserved minimum.
  Bytes reserved_for_others;
  // Of kLimit: whose limit it is; none where it is that of the device memory.
  std::optional<OwnerShortage> owner_limit;
  std::vector<std::pair<std::string, Bytes>> owners;  // largest first
  // Whose work what cools is waiting for, most memory first.
  std::vector<AwaitedStream> awaited;
  std::vector<RecentEvent> recent;  // oldest first
  std::string advice;               // what to try

  // One line, for a status message.
  std::string ToString() const;
  // A kResourceExhausted status that carries this.
  absl::Status ToStatus() const;
  static std::optional<OutOfMemoryVerdict> FromStatus(
      const absl::Status& status);
};

// What was true when memory could not be had: the input of a verdict.
struct ShortageFacts {
  Bytes requested;
  Bytes limit;
  // Of the pool. in_use counts everything created, cached pages included.
  Bytes in_use;
  Bytes cached;
  Bytes cooling;
  // Of it, what comes back when captures into graphs have ended.
  Bytes captured;
  // Held by caches that could give it up, and what compaction could free beyond
  // that: mesh, and relocation beyond mesh.
  Bytes reclaimable;
  Bytes mesh_frees;
  Bytes relocation_frees;
  Bytes sleep_frees;
  // Of the whole device, as its driver sees it; `headroom` of what is free is
  // not to be touched.
  Bytes device_free;
  Bytes device_total;
  Bytes headroom;
  // Of the owner that asks: the limit that stands against it, and what it may
  // have at most, whatever there is.
  std::optional<OwnerShortage> owner_limit;
  Bytes allowance = Bytes(UINT64_MAX);
  Bytes reserved_for_others;
  std::vector<std::pair<std::string, Bytes>> owners;
  std::vector<AwaitedStream> awaited;
  std::vector<RecentEvent> recent;
};

// Decides, from the numbers alone, why memory ran short. Never kAddressSpace or
// kMappings, which no number here can show: whoever met those says so. Nothing
// is subtracted below zero, whatever the numbers are.
OutOfMemoryVerdict DiagnoseShortage(ShortageFacts facts);

}  // namespace quire

#endif  // QUIRE_ALLOC_VERDICT_H_
