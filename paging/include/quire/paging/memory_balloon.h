// Binds a device memory to a ledger: it grows only as far as the process has
// claimed, and comes down when others ask.
//
// The limit of the memory is what is claimed. Growth is asked for
//   - by Sync, so that `claim_ahead` can always be had: call it once per step;
//   - under pressure, by the thread that causes it;
//   - when a commit runs short, for what it lacks, also where that is more than
//     all that is claimed (MemoryHooks, LimitRaiser);
//   - by EnsureRoom, before what asks no hooks: an admission to a KvCache.
// When others ask something back, Sync lowers the limit and has the reclaimers
// give as much as is beyond it: parked KV regions, cached ranges. What is in
// use stays: growth stops, and its pages go back as they are given up.
//
// Owners of the memory (models) may have entries as well, so that they are seen
// and can be limited from outside; their limits become those of the memory.
//
// A process that does not come to call Sync gives nothing back: with
// `sync_interval` a thread does it.
//
// Thread-safe. No lock is held while it waits for other processes, and hooks of
// others run under none. In a forked child calls fail with kFailedPrecondition,
// and destruction is harmless.

#ifndef QUIRE_PAGING_MEMORY_BALLOON_H_
#define QUIRE_PAGING_MEMORY_BALLOON_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/units.h"
#include "quire/paging/memory_ledger.h"

namespace quire {

struct MemoryBalloonOptions {
  std::string name;  // of the process, in the ledger
  // Kept for this memory by the ledger, and claimed as soon as it is to be had;
  // a page at least.
  Bytes min;
  // 0: the limit of the memory when it is bound, which is never exceeded.
  Bytes max;
  // To be had without asking the ledger: cached, reclaimable, or claimed and
  // not created yet. Sync claims it while nobody else wants it, pressure in any
  // case, and Sync gives back what is claimed beyond twice that.
  Bytes claim_ahead = MiB(64);
  // The longest that Create, EnsureRoom and commits that run short wait for
  // others to give back what they have been asked for.
  std::chrono::milliseconds patience{100};
  // For so long Sync asks again for what EnsureRoom or a commit was short of,
  // since others need time to come down, and keeps it where it was had.
  std::chrono::milliseconds want_lifetime{1000};
  // A thread calls Sync so often; 0: there is none.
  std::chrono::milliseconds sync_interval{0};
};

class MemoryBalloon {
 public:
  // Claims what the memory has in use, its minimum where that is to be had, and
  // makes that its limit. Both must outlive the balloon. Errors:
  // kResourceExhausted where that cannot be had, those of Register and Request,
  // and where there is no thread.
  static absl::StatusOr<std::unique_ptr<MemoryBalloon>> Create(
      DeviceMemory* memory, MemoryLedger* ledger,
      const MemoryBalloonOptions& options);
  // Ends the thread and the entry. The memory gets the limit back that it had:
  // nobody counts on what it holds any more.
  ~MemoryBalloon();

  // Shows `owner` in the ledger, by its name, and applies to it from now on the
  // smaller of `max` (0: none) and the limit that is set from outside; its
  // limits must not be set elsewhere as well. `min` is kept for it within the
  // memory (OwnerLimits::reserved_minimum) and part of the balloon's own:
  // kFailedPrecondition where that has not been claimed.
  absl::Status AddOwner(OwnerId owner, Bytes min = Bytes(0),
                        Bytes max = Bytes(0));

  // Reports, asks for claim_ahead and what is still wanted, gives back what
  // was asked for. Waits for nobody. Tens of microseconds.
  absl::Status Sync();
  // Claims until `room` bytes more can be committed, or kResourceExhausted,
  // with what was had kept.
  absl::Status EnsureRoom(Bytes room);

  // Of the thread: OK, or how its last Sync failed.
  absl::Status health() const;

 private:
  class Impl;
  explicit MemoryBalloon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_MEMORY_BALLOON_H_
