// The books of a ledger: a copy of its records, and what may be done with them.
//
// Arithmetic only: no file, no clock, no process is asked here. Records come
// from outside and may hold any numbers: sums saturate, and nothing falls below
// zero.
//
// With claim(i), min(i) of the processes' records and B the budget:
//   sum of claim(i) <= B                         always
//   a claim grows beyond min(i) only while
//     sum of max(claim(j), min(j)) <= B          what is kept for others stays
//
// Who wants more than there is (Rebalance). Processes *demand* what they want,
// or where they want nothing, what they use; nobody less than its minimum.
//   1. All demands fit: what is short comes from those that want nothing and
//      hold more than they use, the largest such excess first.
//   2. They do not: max-min fair shares. The level L is the largest for which
//      sum of max(min(i), smaller of demand(i) and L) fits; nobody is to hold
//      more than that, nor gets more while it lasts.
// What a process is to hold at most is written into its record (`most`); it
// comes down to it in its own time.
//
// All operations are O(records), Rebalance O(records * log records). Not
// thread-safe.

#ifndef QUIRE_PAGING_LEDGER_TABLE_H_
#define QUIRE_PAGING_LEDGER_TABLE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paging/ledger_format.h"
#include "paging/process_identity.h"
#include "quire/paging/memory_ledger.h"

namespace quire {

using LedgerRecords = std::array<LedgerRecord, kLedgerRecords>;

// Records of a ledger that nobody has used.
LedgerRecords FreshLedgerRecords();

class LedgerTable {
 public:
  LedgerTable(uint64_t budget, const LedgerRecords& records)
      : budget_(budget), records_(records) {}

  uint64_t budget() const { return budget_; }
  const LedgerRecords& records() const { return records_; }

  // An error names a record that cannot be: damage that checksums did not show.
  absl::Status Validate() const;

  // Frees the records of processes that have ended, each asked once. True where
  // there were any.
  bool Reap(const std::function<bool(const ProcessIdentity&)>& is_alive);
  bool HasProcesses() const;

  absl::StatusOr<LedgerEntryId> Register(const LedgerRegistration& registration,
                                         const ProcessIdentity& process);
  absl::Status Unregister(LedgerEntryId id, const ProcessIdentity& process);
  // A request that is granted in part may be had in full after a Reap.
  absl::StatusOr<LedgerAnswer> Request(LedgerEntryId id,
                                       const ProcessIdentity& process,
                                       const LedgerRequest& request,
                                       uint64_t now);
  absl::Status SetLimit(LedgerEntryId id, uint64_t limit);

  uint64_t Claimed() const;
  LedgerEntryId IdOf(size_t index) const;
  // By its own limit and maximum, and for processes what others ask back.
  uint64_t MostOf(const LedgerRecord& record) const;

 private:
  // The record of that id, or null; with `process`, one of that process.
  LedgerRecord* Find(LedgerEntryId id,
                     std::optional<ProcessIdentity> process = std::nullopt);
  void Free(size_t index);
  // The most that the limit and the maximum of a record allow.
  uint64_t CapOf(const LedgerRecord& record) const;
  // What a record wants to hold, within its cap; its claim where that is more.
  uint64_t DesireOf(const LedgerRecord& record) const;
  // Whether a process wants what it could hold and has not got.
  bool AnyoneWants() const;
  // What it wants to hold, or where it wants no more, what it uses; its minimum
  // at least.
  uint64_t DemandOf(const LedgerRecord& record) const;
  // The most that `record` may claim without taking what others have claimed or
  // have kept for them.
  uint64_t RoomFor(const LedgerRecord& record) const;
  void Rebalance();
  void TakeIdle(const std::vector<LedgerRecord*>& processes, uint64_t shortage);
  void ShareFairly(const std::vector<LedgerRecord*>& processes);
  std::vector<LedgerRecord*> Processes();

  const uint64_t budget_;
  LedgerRecords records_;
};

}  // namespace quire

#endif  // QUIRE_PAGING_LEDGER_TABLE_H_
