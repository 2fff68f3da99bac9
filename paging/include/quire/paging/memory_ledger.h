// A ledger of the memory of one device, shared by the processes that use it.
//
// A process asks before its pool grows: a *claim* is granted atomically, within
// the budget of the device, within the limits of who asks, and never out of
// what is kept for others. What is not to be had at once is asked back from
// those who hold more than they need, or more than their share: each finds in
// its next answer the *most* that it should hold, and comes down to it when it
// can. Limits may be set from outside at any time.
//
// The claims of all processes never exceed the budget. A claim of a process
// that has died, at whatever instruction, is released by whoever looks next.
// The ledger keeps no memory itself, and the driver of the device knows nothing
// of it: it binds those who ask it.
//
// It is a POSIX shared-memory object of mode 0600, so that one user's processes
// share it. docs/kv_sharing_between_models.md has its layout, and why it is
// read and written, not mapped, under a lock that the kernel releases with the
// process. Nothing in it is trusted: what is damaged is an error (kDataLoss)
// and neither a crash nor a wait.
//
// Thread-safe. Each call takes the lock of the ledger for some ten
// microseconds; where a stopped process has it, calls end with
// kDeadlineExceeded. In a forked child calls fail with kFailedPrecondition, and
// the parent's claims stay the parent's.

#ifndef QUIRE_PAGING_MEMORY_LEDGER_H_
#define QUIRE_PAGING_MEMORY_LEDGER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

// An entry of the ledger. 0 names none; ids of entries that were removed are
// not used again soon.
using LedgerEntryId = Id<struct LedgerEntryIdTag, uint64_t>;

struct MemoryLedgerOptions {
  // Of the shared-memory object: letters, digits, '.', '_' and '-'; empty:
  // DefaultName of the device.
  std::string name;
  DeviceId device;
  // What all processes may claim together. Decides where nobody is registered;
  // elsewhere it must be what the ledger has, or 0: whatever it has.
  Bytes budget;
  // False: kNotFound where there is no ledger.
  bool create = true;
  // How long a call waits for the lock.
  std::chrono::milliseconds lock_timeout = std::chrono::seconds(5);
};

// Who uses memory: a process's memory of the device as a whole, or an owner
// within it, whose limits the process applies.
struct LedgerRegistration {
  std::string name;  // of the process, or the owner; at most 95 bytes count
  // Kept for it: others cannot claim what it has claimed less than this. All
  // minima together fit in the budget. Of an owner: within its process.
  Bytes min;
  Bytes max;  // never more than this, whatever the limit; 0: the budget
  // Of an owner: the entry of its process, which must be of this handle. Owners
  // claim nothing themselves.
  std::optional<LedgerEntryId> parent;
};

struct LedgerRequest {
  // What the process may come to hold without asking again: its memory's limit,
  // or what is in use beyond a limit that was lowered. The claim never falls
  // below this. Of an owner: its live bytes.
  Bytes held;
  // Of this, what it could not give back if asked: not caches.
  Bytes used;
  // What it wants to hold: where that is not to be had, the rest is asked back
  // from others. Less than `held` asks for nothing.
  Bytes wanted;
  // What it would like to hold as long as nobody else wants it.
  Bytes hoped;
};

struct LedgerAnswer {
  // Claimed now: `held`, or more where more was wanted and could be had.
  Bytes claim;
  // The most that it should hold: its maximum, its limit and what others have
  // asked back are in it. Where it is less than held, the caller lowers its
  // limit, gives back what it can, and asks again.
  Bytes most;
};

struct LedgerEntry {
  LedgerEntryId id;
  std::optional<LedgerEntryId> parent;  // of owners
  int32_t pid = 0;
  std::string name;
  Bytes limit;  // 0: none
  Bytes min;
  Bytes max;
  Bytes most;  // as in the answers; of owners, of limit and max alone
  Bytes claim;
  Bytes used;
  Bytes peak;    // largest claim so far; of owners, of live bytes
  Bytes wanted;  // 0 where nothing is wanted that was not granted
  // Since the last request: a process that does not ask for long is no less
  // alive.
  std::chrono::milliseconds idle{0};
};

struct LedgerSnapshot {
  std::string name;
  DeviceId device;
  Bytes budget;
  Bytes claimed;                     // of all processes together
  std::vector<LedgerEntry> entries;  // of processes that live
};

class MemoryLedger {
 public:
  // Opens the ledger or, where there is none, makes it. Errors:
  // kInvalidArgument for the name, a budget that is missing or not the
  // ledger's, and another device's ledger; kNotFound where there is none and it
  // is not to be made; kPermissionDenied where another user has it or may write
  // it; kFailedPrecondition where it is of another version or another pid
  // namespace; kDataLoss where it is damaged; those of the system.
  static absl::StatusOr<std::unique_ptr<MemoryLedger>> Open(
      const MemoryLedgerOptions& options);
  // "quire-UID-DEVICE".
  static std::string DefaultName(DeviceId device);

  // Ends all entries that were registered here. Where nobody is left, the
  // shared-memory object is removed.
  ~MemoryLedger();

  const std::string& name() const;

  // Errors: kInvalidArgument for a minimum above the maximum and an unknown
  // parent; kResourceExhausted where the minima would not fit in the budget, or
  // all entries are taken.
  absl::StatusOr<LedgerEntryId> Register(
      const LedgerRegistration& registration);
  // Releases what it has claimed, and its owners.
  absl::Status Unregister(LedgerEntryId entry);

  // Claims, releases and reports, in one: see LedgerRequest. Where `wanted` is
  // not granted, what is missing is asked back from others until the next
  // request. O(entries). Errors: kNotFound for an entry that is not of this
  // handle; kInvalidArgument where `held` is more than was claimed.
  absl::StatusOr<LedgerAnswer> Request(LedgerEntryId entry,
                                       const LedgerRequest& request);

  // For tools; any entry, of any process. 0 takes the limit away. Errors:
  // kNotFound where the entry has ended; kInvalidArgument where it is below
  // the minimum.
  absl::Status SetLimit(LedgerEntryId entry, Bytes limit);
  absl::StatusOr<LedgerSnapshot> Read();

 private:
  class Impl;
  explicit MemoryLedger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_MEMORY_LEDGER_H_
