// Getting pages back from live memory: what a pass may do, and what it did.
//
// Cheapest first: Trim gives back what nobody uses. Mesh lays slabs whose live
// slots do not overlap into one physical page; no pointer changes. Relocation
// moves allocations to other addresses, with the help of those who hold the
// pointers. Sleep takes all pages of an owner away, until it wakes.

#ifndef QUIRE_ALLOC_COMPACTION_H_
#define QUIRE_ALLOC_COMPACTION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "quire/alloc/units.h"

namespace quire {

struct CompactionReport {
  uint64_t moves = 0;  // allocations that were copied
  Bytes bytes_moved;
  PageCount pages_freed;  // less those that it took itself
  uint64_t driver_calls = 0;
  double seconds = 0.0;
};

struct MeshOptions {
  // Only slabs of this owner; none: of every owner.
  std::optional<OwnerId> owner;
  // Below this size slabs have so many slots that few of them do not overlap.
  Bytes smallest_slot = KiB(32);
};

// ---- Relocation ------------------------------------------------------------

struct RelocationLimits {
  // Only allocations of this owner; none: of every owner.
  std::optional<OwnerId> owner;
  // Stop before the moves come to more than this. Slabs are emptied as a whole.
  Bytes max_bytes{UINT64_MAX};
  uint64_t max_moves = UINT64_MAX;
};

// An allocation that would lie better elsewhere. Until the pass ends both
// places are allocated.
struct RelocationMove {
  DeviceAddress from;
  DeviceAddress to;
  Bytes size;  // as requested
  OwnerId owner;
};

enum class MoveAction : uint8_t {
  // `to` is the allocation from the end of the pass on. Whoever sets this, or
  // leaves it as it is, sees to the contents (RelocationPass::Copy does), and
  // to
  // the pointers.
  kCopy,
  // It stays where it is.
  kIgnore,
  // It is not needed any more: both places are freed.
  kDestroy,
};

// One pass of an allocator, from BeginRelocation to End. One thread at a time.
// Only allocations that were made as movable, and are not pinned, are moved.
// While the pass is open, these can be neither freed nor pinned
// (kFailedPrecondition), and no other pass can begin.
class RelocationPass {
 public:
  class Impl;
  explicit RelocationPass(std::unique_ptr<Impl> impl);
  RelocationPass(RelocationPass&&) noexcept;
  RelocationPass& operator=(RelocationPass&&) noexcept;
  // A pass that was not ended is given up: everything stays where it is.
  ~RelocationPass();

  std::span<const RelocationMove> moves() const;
  // kCopy is what every move has at first. REQUIRES: index < moves().size().
  void SetAction(size_t index, MoveAction action);
  // Copies the contents of all moves that are kCopy and waits for that. An
  // error of the driver leaves the pass open.
  absl::Status Copy();
  // Carries the actions out, and gives the pages that this makes free back to
  // the pool. The pass is over. REQUIRES: it is open.
  CompactionReport End();

 private:
  std::unique_ptr<Impl> impl_;
};

// ---- What to do, and when ---------------------------------------------------

// In the order of what they cost, and last what takes a sleep back.
enum class CompactionLevel : uint8_t {
  kTrim,
  kMesh,
  kRelocation,
  kSleep,
  kWake,
};
const char* CompactionLevelName(CompactionLevel level);  // "trim", ...

// Told of compactions. Called without a lock of the allocator's or the memory's
// by the thread that compacts. After each BeforeCompaction comes an
// AfterCompaction, after an error too; the report is of what was done.
class CompactionListener {
 public:
  virtual ~CompactionListener() = default;
  virtual void BeforeCompaction(CompactionLevel /*level*/) {}
  virtual void AfterCompaction(CompactionLevel /*level*/,
                               const CompactionReport& /*report*/) {}
  // Each move of RelocationPass::Copy, and each that End carries out.
  virtual void BeforeMove(const RelocationMove& /*move*/) {}
  virtual void AfterMove(const RelocationMove& /*move*/,
                         MoveAction /*action*/) {}
};

// What a policy decides by.
struct CompactionFacts {
  Bytes mapped;
  Bytes live;
  Bytes cached;      // Trim frees it
  Bytes pinned;      // lies free between live slots: mesh or relocation may
  Bytes pool_limit;  // of the device memory
  Bytes pool_in_use;
  uint64_t failed_allocations = 0;  // since the last compaction
  double seconds_since_last = 0.0;  // infinite before the first
  // Nothing was allocated or freed for at least so long: it is looked at when
  // Compact is called, so 0 at the first call after something was.
  double seconds_idle = 0.0;
  // Now, for policies that go by the clock on the wall.
  std::chrono::system_clock::time_point time;
};

// Decides what DeviceAllocator::Compact does at a quiescent point.
class CompactionPolicy {
 public:
  virtual ~CompactionPolicy() = default;
  // The levels to run, in this order. kSleep and kWake are nobody's to decide
  // but the caller's, and kRelocation needs him: all three are left out here.
  virtual std::vector<CompactionLevel> Decide(const CompactionFacts& facts) = 0;
};

// Trims where the pool is nearly used up or an allocation has failed; meshes
// where moreover a good part of what is mapped lies free between live slots.
// The same where nobody is kept waiting: while the program is idle, and at a
// time of the day that was set aside for it.
class ThresholdPolicy final : public CompactionPolicy {
 public:
  // Times of each day, UTC, in seconds from midnight, `end` not included. One
  // that ends before it begins goes on over midnight; where both are equal
  // there is none.
  struct DailyWindow {
    uint32_t begin = 0;
    uint32_t end = 0;
    bool Contains(std::chrono::system_clock::time_point time) const;
  };
  struct Thresholds {
    double pool_in_use = 0.85;     // of its limit
    double pinned = 0.10;          // of the mapped memory
    double least_interval = 10.0;  // seconds; not after a failure
    // Whatever is in use of the pool: seconds of which nothing was allocated or
    // freed, and a time of the day. By default, neither.
    double idle = std::numeric_limits<double>::infinity();
    DailyWindow maintenance = {};
  };
  ThresholdPolicy() = default;
  explicit ThresholdPolicy(const Thresholds& thresholds)
      : thresholds_(thresholds) {}

  std::vector<CompactionLevel> Decide(const CompactionFacts& facts) override;

 private:
  Thresholds thresholds_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_COMPACTION_H_
