#include "quire/paging/memory_ledger.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "paging/ledger_file.h"
#include "paging/ledger_format.h"
#include "paging/ledger_table.h"
#include "paging/process_identity.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Of the clock that all processes of the machine share.
uint64_t NowInMilliseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

LedgerEntry EntryOf(const LedgerTable& table, size_t index, uint64_t now) {
  const LedgerRecord& record = table.records()[index];
  LedgerEntry entry;
  entry.id = table.IdOf(index);
  if (record.kind == LedgerRecordKind::kOwner)
    entry.parent = table.IdOf(record.parent);
  entry.pid = record.pid;
  entry.name = record.name.data();
  entry.limit = Bytes(record.limit);
  entry.min = Bytes(record.min);
  entry.max = Bytes(record.max);
  entry.most = Bytes(table.MostOf(record));
  entry.claim = Bytes(record.claim);
  entry.used = Bytes(record.used);
  entry.peak = Bytes(record.peak);
  entry.wanted = Bytes(record.wanted);
  // Of a record that others have damaged it may be any number.
  const uint64_t idle =
      std::min<uint64_t>(SaturatingSubtract(now, record.last_seen), INT64_MAX);
  entry.idle = std::chrono::milliseconds(static_cast<int64_t>(idle));
  return entry;
}

}  // namespace

class MemoryLedger::Impl {
 public:
  Impl(const MemoryLedgerOptions& options, const ProcessIdentity& process)
      : options_(options), process_(process), file_(options) {}
  ~Impl();

  const std::string& name() const { return options_.name; }

  // Finds the ledger, or makes it, and settles the budget.
  absl::Status Open();

  absl::StatusOr<LedgerEntryId> Register(
      const LedgerRegistration& registration);
  absl::Status Unregister(LedgerEntryId entry);
  absl::StatusOr<LedgerAnswer> Request(LedgerEntryId entry,
                                       const LedgerRequest& request);
  absl::Status SetLimit(LedgerEntryId entry, Bytes limit);
  absl::StatusOr<LedgerSnapshot> Read();

 private:
  bool in_child() const { return getpid() != process_.pid; }
  absl::Status CheckProcess() const {
    if (!in_child()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(file_.Title(), " was opened by process ", process_.pid,
                     ", of which this is a forked child"));
  }
  // Reads the books, changes them and writes what has changed, under the lock.
  // Nothing is written after an error.
  template <typename Change>
  auto Transact(Change change)
      -> decltype(change(static_cast<LedgerTable*>(nullptr)));

  const MemoryLedgerOptions options_;
  const ProcessIdentity process_;
  LedgerFile file_;
  // Registered here, and not removed.
  std::vector<LedgerEntryId> entries_ ABSL_GUARDED_BY(ledger_process_mutex);
};

template <typename Change>
auto MemoryLedger::Impl::Transact(Change change)
    -> decltype(change(static_cast<LedgerTable*>(nullptr))) {
  QUIRE_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(&ledger_process_mutex);
  QUIRE_ASSIGN_OR_RETURN(const bool is_new, file_.Lock());
  // Whoever leaves the block, with or without an error, unlocks.
  const auto locked = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex)
      -> decltype(change(static_cast<LedgerTable*>(nullptr))) {
    if (is_new && !entries_.empty())
      return absl::FailedPreconditionError(absl::StrCat(
          file_.Title(), " was removed while this process was registered"));
    QUIRE_ASSIGN_OR_RETURN(LedgerTable table, file_.Read());
    const LedgerRecords before = table.records();
    auto result = change(&table);
    if (result.ok())
      QUIRE_RETURN_IF_ERROR(file_.Write(before, table.records()));
    return result;
  };
  auto result = locked();
  file_.Unlock();
  return result;
}

absl::Status MemoryLedger::Impl::Open() {
  MutexLock lock(&ledger_process_mutex);
  QUIRE_RETURN_IF_ERROR(file_.Lock().status());
  const auto settle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                          ledger_process_mutex) -> absl::Status {
    QUIRE_ASSIGN_OR_RETURN(LedgerTable table, file_.Read());
    const uint64_t budget = options_.budget.value();
    if (budget == 0 || budget == table.budget()) return absl::OkStatus();
    table.Reap(IsAlive);
    if (!table.HasProcesses()) return file_.LayOut(budget);
    return absl::InvalidArgumentError(
        absl::StrCat(file_.Title(), " has a budget of ", table.budget(),
                     " bytes and is in use: it cannot be ", budget));
  };
  const absl::Status status = settle();
  file_.Unlock();
  return status;
}

MemoryLedger::Impl::~Impl() {
  // Damage, and locks that cannot be had, are nobody's concern here: others
  // release what this process has claimed when it ends.
  if (in_child()) return;
  MutexLock lock(&ledger_process_mutex);
  const absl::StatusOr<bool> is_new = file_.Lock();
  if (!is_new.ok()) return;
  absl::StatusOr<LedgerTable> table = file_.Read();
  if (table.ok()) {
    const LedgerRecords before = table->records();
    for (const LedgerEntryId entry : entries_)
      table->Unregister(entry, process_).IgnoreError();
    table->Reap(IsAlive);
    file_.Write(before, table->records()).IgnoreError();
    if (!table->HasProcesses()) file_.Remove();
  }
  file_.Unlock();
}

absl::StatusOr<LedgerEntryId> MemoryLedger::Impl::Register(
    const LedgerRegistration& registration) {
  return Transact([&](LedgerTable* table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                      ledger_process_mutex) -> absl::StatusOr<LedgerEntryId> {
    table->Reap(IsAlive);
    absl::StatusOr<LedgerEntryId> entry =
        table->Register(registration, process_);
    if (!entry.ok())
      return absl::Status(
          entry.status().code(),
          absl::StrCat(file_.Title(), ": ", entry.status().message()));
    entries_.push_back(*entry);
    return entry;
  });
}

absl::Status MemoryLedger::Impl::Unregister(LedgerEntryId entry) {
  return Transact([&](LedgerTable* table)
                      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex) {
                        std::erase(entries_, entry);
                        return table->Unregister(entry, process_);
                      });
}

absl::StatusOr<LedgerAnswer> MemoryLedger::Impl::Request(
    LedgerEntryId entry, const LedgerRequest& request) {
  return Transact([&](LedgerTable* table) {
    const uint64_t now = NowInMilliseconds();
    absl::StatusOr<LedgerAnswer> answer =
        table->Request(entry, process_, request, now);
    // The dead are looked for where that may help: each is a look into /proc.
    if (answer.ok() &&
        answer->claim < std::max(request.wanted, request.hoped) &&
        table->Reap(IsAlive)) {
      answer = table->Request(entry, process_,
                              {.held = answer->claim,
                               .used = request.used,
                               .wanted = request.wanted,
                               .hoped = request.hoped},
                              now);
    }
    return answer;
  });
}

absl::Status MemoryLedger::Impl::SetLimit(LedgerEntryId entry, Bytes limit) {
  return Transact([&](LedgerTable* table) {
    return table->SetLimit(entry, limit.value());
  });
}

absl::StatusOr<LedgerSnapshot> MemoryLedger::Impl::Read() {
  return Transact([&](LedgerTable* table) -> absl::StatusOr<LedgerSnapshot> {
    table->Reap(IsAlive);
    const uint64_t now = NowInMilliseconds();
    LedgerSnapshot snapshot;
    snapshot.name = options_.name;
    snapshot.device = options_.device;
    snapshot.budget = Bytes(table->budget());
    snapshot.claimed = Bytes(table->Claimed());
    for (size_t i = 0; i < kLedgerRecords; ++i) {
      if (table->records()[i].kind != LedgerRecordKind::kFree)
        snapshot.entries.push_back(EntryOf(*table, i, now));
    }
    return snapshot;
  });
}

// ---- The public face --------------------------------------------------------

absl::StatusOr<std::unique_ptr<MemoryLedger>> MemoryLedger::Open(
    const MemoryLedgerOptions& options) {
  MemoryLedgerOptions named = options;
  if (named.name.empty()) named.name = DefaultName(options.device);
  QUIRE_RETURN_IF_ERROR(CheckLedgerName(named.name));
  QUIRE_ASSIGN_OR_RETURN(const ProcessIdentity process, CurrentProcess());
  auto impl = std::make_unique<Impl>(named, process);
  QUIRE_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<MemoryLedger>(new MemoryLedger(std::move(impl)));
}

std::string MemoryLedger::DefaultName(DeviceId device) {
  return absl::StrCat("quire-", geteuid(), "-", device.value());
}

MemoryLedger::MemoryLedger(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
MemoryLedger::~MemoryLedger() = default;

const std::string& MemoryLedger::name() const { return impl_->name(); }
absl::StatusOr<LedgerEntryId> MemoryLedger::Register(
    const LedgerRegistration& registration) {
  return impl_->Register(registration);
}
absl::Status MemoryLedger::Unregister(LedgerEntryId entry) {
  return impl_->Unregister(entry);
}
absl::StatusOr<LedgerAnswer> MemoryLedger::Request(
    LedgerEntryId entry, const LedgerRequest& request) {
  return impl_->Request(entry, request);
}
absl::Status MemoryLedger::SetLimit(LedgerEntryId entry, Bytes limit) {
  return impl_->SetLimit(entry, limit);
}
absl::StatusOr<LedgerSnapshot> MemoryLedger::Read() { return impl_->Read(); }

}  // namespace quire
