// The shared-memory object of a ledger: made, found, locked, read, written.
//
// Read and written by system calls, not mapped: a mapped object that another
// process truncates ends its users with SIGBUS, and what is looked at twice may
// have changed in between. A call costs less than a microsecond, and the lock
// is one anyway.
//
// The lock is a POSIX record lock, not a mutex in the shared memory: the kernel
// releases it when its process ends, at whatever instruction; no contents can
// damage it; and a child of fork does not have it. (flock and open file
// description locks are shared with children, and would outlive a parent that
// is killed; a robust mutex follows pointers that lie in the shared memory.)
// Record locks do not keep threads of one process apart, and closing any
// descriptor of the file releases them: so one mutex of the process is held
// over each lock and each close.

#ifndef QUIRE_PAGING_LEDGER_FILE_H_
#define QUIRE_PAGING_LEDGER_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paging/ledger_format.h"
#include "paging/ledger_table.h"
#include "quire/alloc/mutex.h"
#include "quire/paging/memory_ledger.h"

namespace quire {

// Guards the descriptors and locks of all ledgers of this process.
extern Mutex ledger_process_mutex;

// kInvalidArgument for what cannot be the name of a ledger.
absl::Status CheckLedgerName(const std::string& name);

class LedgerFile {
 public:
  // Opens nothing yet.
  explicit LedgerFile(const MemoryLedgerOptions& options);
  ~LedgerFile();
  LedgerFile(const LedgerFile&) = delete;
  LedgerFile& operator=(const LedgerFile&) = delete;

  // "memory ledger NAME": how messages begin.
  std::string Title() const;

  // Takes the lock of the object that has the name now; opens or makes it where
  // that is another one than before, or none. True where it is not the same
  // object as at the last lock. What nobody has written yet is laid out. Errors
  // leave nothing locked.
  absl::StatusOr<bool> Lock()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  void Unlock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);

  // REQUIRES for all of these: locked.
  //
  // kDataLoss where sizes, magic or checksums are wrong.
  absl::StatusOr<LedgerTable> Read() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  // Writes the records that differ, first those whose claim does not grow.
  absl::Status Write(const LedgerRecords& before, const LedgerRecords& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  // Everything anew, for another budget.
  absl::Status LayOut(uint64_t budget)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  void Remove() ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);

 private:
  absl::Status Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  void Close() ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  absl::Status AwaitLock() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  absl::StatusOr<LedgerHeader> ReadHeader() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  absl::Status ReadAt(void* data, size_t size, size_t offset) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  absl::Status WriteAt(const void* data, size_t size, size_t offset) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_process_mutex);
  absl::Status SystemError(const char* what) const;
  absl::Status Damaged(const std::string& how) const;

  const MemoryLedgerOptions options_;
  const int pid_;
  const uint64_t pid_namespace_;
  int file_ ABSL_GUARDED_BY(ledger_process_mutex) = -1;
};

}  // namespace quire

#endif  // QUIRE_PAGING_LEDGER_FILE_H_
