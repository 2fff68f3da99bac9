#include "paging/ledger_table.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

bool IsProcess(const LedgerRecord& record) {
  return record.kind == LedgerRecordKind::kProcess;
}

ProcessIdentity ProcessOf(const LedgerRecord& record) {
  return {record.pid, record.start_time};
}

// What the others have to leave to it.
uint64_t Kept(const LedgerRecord& record) {
  return std::max(record.claim, record.min);
}

void SetName(const std::string& name, LedgerRecord* record) {
  record->name.fill('\0');
  const size_t length = std::min(name.size(), kLedgerNameBytes - 1);
  std::memcpy(record->name.data(), name.data(), length);
}

}  // namespace

LedgerRecords FreshLedgerRecords() {
  LedgerRecords records = {};
  for (LedgerRecord& record : records) record.checksum = LedgerChecksum(record);
  return records;
}

absl::Status LedgerTable::Validate() const {
  for (size_t i = 0; i < records_.size(); ++i) {
    const LedgerRecord& record = records_[i];
    const bool known = record.kind == LedgerRecordKind::kFree ||
                       record.kind == LedgerRecordKind::kProcess ||
                       record.kind == LedgerRecordKind::kOwner;
    // An owner may be left whose process's record is free already: its process
    // was killed while it ended, so that it is reaped as well.
    if (known && record.parent < records_.size() &&
        record.name.back() == '\0' && record.min <= CapOf(record))
      continue;
    return absl::DataLossError(
        absl::StrCat("record ", i, " holds what no process writes"));
  }
  return absl::OkStatus();
}

// ---- Who is there -----------------------------------------------------------

bool LedgerTable::Reap(
    const std::function<bool(const ProcessIdentity&)>& is_alive) {
  std::vector<std::pair<ProcessIdentity, bool>> asked;
  bool reaped = false;
  for (size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].kind == LedgerRecordKind::kFree) continue;
    const ProcessIdentity process = ProcessOf(records_[i]);
    auto found =
        std::find_if(asked.begin(), asked.end(),
                     [&](const auto& entry) { return entry.first == process; });
    if (found == asked.end())
      found = asked.insert(asked.end(), {process, is_alive(process)});
    if (found->second) continue;
    Free(i);
    reaped = true;
  }
  if (reaped) Rebalance();
  return reaped;
}

bool LedgerTable::HasProcesses() const {
  return std::any_of(records_.begin(), records_.end(), IsProcess);
}

void LedgerTable::Free(size_t index) {
  LedgerRecord& record = records_[index];
  const uint32_t generation = record.generation;
  record = {};
  record.generation = generation;
}

LedgerEntryId LedgerTable::IdOf(size_t index) const {
  return LedgerEntryId(uint64_t{records_[index].generation} << 32 |
                       (index + 1));
}

LedgerRecord* LedgerTable::Find(LedgerEntryId id,
                                std::optional<ProcessIdentity> process) {
  const uint64_t index = (id.value() & UINT32_MAX) - 1;
  if (index >= records_.size()) return nullptr;
  LedgerRecord& record = records_[index];
  if (record.kind == LedgerRecordKind::kFree || IdOf(index) != id ||
      (process && ProcessOf(record) != *process))
    return nullptr;
  return &record;
}

absl::StatusOr<LedgerEntryId> LedgerTable::Register(
    const LedgerRegistration& registration, const ProcessIdentity& process) {
  const uint64_t min = registration.min.value();
  const uint64_t max = registration.max.zero()
                           ? budget_
                           : std::min(registration.max.value(), budget_);
  if (min > max)
    return absl::InvalidArgumentError(
        absl::StrCat("a minimum of ", min, " bytes for ", registration.name,
                     " is above the maximum of ", max));
  const LedgerRecord* parent = nullptr;
  if (registration.parent) {
    parent = Find(*registration.parent, process);
    if (parent == nullptr || !IsProcess(*parent))
      return absl::InvalidArgumentError(
          absl::StrCat("no entry ", registration.parent->value(),
                       " of this process to put ", registration.name, " in"));
  } else {
    uint64_t minima = min;
    for (const LedgerRecord* other : Processes())
      minima = SaturatingAdd(minima, other->min);
    if (minima > budget_)
      return absl::ResourceExhaustedError(
          absl::StrCat("a minimum of ", min, " bytes for ", registration.name,
                       " cannot be kept: all minima would come to ", minima,
                       ", the budget is ", budget_));
  }
  const auto record =
      std::find_if(records_.begin(), records_.end(), [](const auto& candidate) {
        return candidate.kind == LedgerRecordKind::kFree;
      });
  if (record == records_.end())
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", records_.size(), " entries are taken"));
  const size_t index = static_cast<size_t>(record - records_.begin());
  const uint32_t generation = record->generation + 1;
  *record = {};
  record->kind =
      parent == nullptr ? LedgerRecordKind::kProcess : LedgerRecordKind::kOwner;
  record->generation = generation;
  record->pid = process.pid;
  record->start_time = process.start_time;
  if (parent != nullptr)
    record->parent = static_cast<uint32_t>(parent - records_.data());
  record->min = min;
  record->max = max;
  record->most = kNoBytesLimit;
  SetName(registration.name, &*record);
  Rebalance();
  return IdOf(index);
}

absl::Status LedgerTable::Unregister(LedgerEntryId id,
                                     const ProcessIdentity& process) {
  const LedgerRecord* const record = Find(id, process);
  if (record == nullptr)
    return absl::NotFoundError(
        absl::StrCat("no entry ", id.value(), " to remove"));
  const auto index = static_cast<size_t>(record - records_.data());
  if (IsProcess(*record)) {
    for (size_t i = 0; i < records_.size(); ++i) {
      if (records_[i].kind == LedgerRecordKind::kOwner &&
          records_[i].parent == index)
        Free(i);
    }
  }
  Free(index);
  Rebalance();
  return absl::OkStatus();
}

// ---- Who has what -----------------------------------------------------------

uint64_t LedgerTable::Claimed() const {
  uint64_t sum = 0;
  for (const LedgerRecord& record : records_) {
    if (IsProcess(record)) sum = SaturatingAdd(sum, record.claim);
  }
  return sum;
}

uint64_t LedgerTable::CapOf(const LedgerRecord& record) const {
  const uint64_t cap = std::min(record.max, budget_);
  return record.limit == 0 ? cap : std::min(cap, record.limit);
}

uint64_t LedgerTable::MostOf(const LedgerRecord& record) const {
  return std::min(CapOf(record), record.most);
}

uint64_t LedgerTable::DesireOf(const LedgerRecord& record) const {
  return std::max(record.claim, std::min(record.wanted, CapOf(record)));
}

bool LedgerTable::AnyoneWants() const {
  return std::any_of(
      records_.begin(), records_.end(), [this](const LedgerRecord& record) {
        return IsProcess(record) && DesireOf(record) > record.claim;
      });
}

uint64_t LedgerTable::DemandOf(const LedgerRecord& record) const {
  const uint64_t desire = DesireOf(record);
  return std::max(record.min, desire > record.claim
                                  ? desire
                                  : std::min(record.used, record.claim));
}

uint64_t LedgerTable::RoomFor(const LedgerRecord& record) const {
  uint64_t claimed = 0;
  uint64_t kept = 0;
  for (const LedgerRecord& other : records_) {
    if (!IsProcess(other) || &other == &record) continue;
    claimed = SaturatingAdd(claimed, other.claim);
    kept = SaturatingAdd(kept, Kept(other));
  }
  // Up to its minimum it comes before what is kept for others: all minima fit.
  return std::max(SaturatingSubtract(budget_, kept),
                  std::min(record.min, SaturatingSubtract(budget_, claimed)));
}

absl::StatusOr<LedgerAnswer> LedgerTable::Request(
    LedgerEntryId id, const ProcessIdentity& process,
    const LedgerRequest& request, uint64_t now) {
  LedgerRecord* const record = Find(id, process);
  if (record == nullptr)
    return absl::NotFoundError(
        absl::StrCat("no entry ", id.value(), " of this process"));
  const uint64_t held = request.held.value();
  record->last_seen = now;
  record->used = std::min(request.used.value(), held);
  if (!IsProcess(*record)) {
    record->claim = held;
    record->peak = std::max(record->peak, held);
    return LedgerAnswer{Bytes(held), Bytes(CapOf(*record))};
  }
  if (held > record->claim)
    return absl::InvalidArgumentError(
        absl::StrCat(record->name.data(), " holds ", held,
                     " bytes and has claimed ", record->claim));
  record->claim = held;
  record->wanted = request.wanted.value() > held ? request.wanted.value() : 0;
  Rebalance();
  const uint64_t allowed =
      std::min({record->wanted, MostOf(*record), RoomFor(*record)});
  record->claim = std::max(held, allowed);
  if (record->claim >= record->wanted) record->wanted = 0;
  if (record->wanted == 0 && !AnyoneWants()) {
    record->claim = std::max(
        record->claim,
        std::min({request.hoped.value(), MostOf(*record), RoomFor(*record)}));
  }
  record->peak = std::max(record->peak, record->claim);
  Rebalance();
  return LedgerAnswer{Bytes(record->claim), Bytes(MostOf(*record))};
}

absl::Status LedgerTable::SetLimit(LedgerEntryId id, uint64_t limit) {
  LedgerRecord* const record = Find(id);
  if (record == nullptr)
    return absl::NotFoundError(absl::StrCat("no entry ", id.value()));
  if (limit != 0 && limit < record->min)
    return absl::InvalidArgumentError(
        absl::StrCat("a limit of ", limit, " bytes is below the minimum of ",
                     record->name.data(), ", ", record->min));
  record->limit = limit;
  Rebalance();
  return absl::OkStatus();
}

// ---- Who gets what ----------------------------------------------------------

std::vector<LedgerRecord*> LedgerTable::Processes() {
  std::vector<LedgerRecord*> processes;
  for (LedgerRecord& record : records_) {
    if (IsProcess(record)) processes.push_back(&record);
  }
  return processes;
}

void LedgerTable::Rebalance() {
  const std::vector<LedgerRecord*> processes = Processes();
  uint64_t desired = 0;
  uint64_t needed = 0;
  for (LedgerRecord* record : processes) {
    record->most = kNoBytesLimit;
    const uint64_t desire = std::max(DesireOf(*record), record->min);
    desired = SaturatingAdd(desired, desire);
    needed = SaturatingAdd(needed, DemandOf(*record));
  }
  const uint64_t shortage = SaturatingSubtract(desired, budget_);
  if (shortage == 0) return;
  if (needed <= budget_) {
    TakeIdle(processes, shortage);
  } else {
    ShareFairly(processes);
  }
}

void LedgerTable::TakeIdle(const std::vector<LedgerRecord*>& processes,
                           uint64_t shortage) {
  struct Idle {
    uint64_t bytes;
    LedgerRecord* record;
  };
  std::vector<Idle> idle;
  for (LedgerRecord* record : processes) {
    const uint64_t bytes = SaturatingSubtract(record->claim, DemandOf(*record));
    if (bytes > 0) idle.push_back({bytes, record});
  }
  std::stable_sort(idle.begin(), idle.end(), [](const Idle& a, const Idle& b) {
    return a.bytes > b.bytes;
  });
  for (const auto& [bytes, record] : idle) {
    const uint64_t taken = std::min(bytes, shortage);
    if (taken == 0) break;
    record->most = record->claim - taken;
    shortage -= taken;
  }
}

void LedgerTable::ShareFairly(const std::vector<LedgerRecord*>& processes) {
  struct Demand {
    uint64_t bytes;
    LedgerRecord* record;
  };
  std::vector<Demand> demands;
  for (LedgerRecord* record : processes)
    demands.push_back({DemandOf(*record), record});
  const auto sum_at = [&](uint64_t level) {
    uint64_t sum = 0;
    for (const auto& [bytes, record] : demands)
      sum = SaturatingAdd(sum, std::max(record->min, std::min(bytes, level)));
    return sum;
  };
  // The sum grows with the level and fits at 0, where only minima count.
  uint64_t fits = 0;
  uint64_t too_much = budget_;
  while (too_much - fits > 1) {
    const uint64_t middle = fits + (too_much - fits) / 2;
    (sum_at(middle) <= budget_ ? fits : too_much) = middle;
  }
  for (const auto& [bytes, record] : demands)
    record->most = std::max(record->min, std::min(bytes, fits));
}

}  // namespace quire
