#include "paging/ledger_file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "paging/process_identity.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr size_t kLongestName = 200;
// An object may be removed between being opened and being locked, each time
// because somebody has ended: so often in a row it is something else.
constexpr int kOpenAttempts = 100;
// The lock is held for microseconds: first the processor is given away, then
// time passes between attempts.
constexpr int kYields = 100;
constexpr std::chrono::microseconds kPause(100);

}  // namespace

Mutex ledger_process_mutex;

absl::Status CheckLedgerName(const std::string& name) {
  const bool fits =
      !name.empty() && name.size() <= kLongestName && name[0] != '.' &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
      });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "memory ledger: '", name, "' is no name: 1 to ", kLongestName,
      " letters, digits, '.', '_' and '-', and no '.' in front"));
}

LedgerFile::LedgerFile(const MemoryLedgerOptions& options)
    : options_(options), pid_(getpid()), pid_namespace_(PidNamespace()) {}

// In a forked child the mutex may be held by a thread that is not there, and
// closing releases no lock but the child's own.
LedgerFile::~LedgerFile() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (getpid() != pid_) {
    Close();
    return;
  }
  MutexLock lock(&ledger_process_mutex);
  Close();
}

std::string LedgerFile::Title() const {
  return absl::StrCat("memory ledger ", options_.name);
}

absl::Status LedgerFile::SystemError(const char* what) const {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat(Title(), ": ", what));
}

absl::Status LedgerFile::Damaged(const std::string& how) const {
  return absl::DataLossError(absl::StrCat(
      Title(), " is damaged: ", how,
      "; end the programs that use it and remove /dev/shm/", options_.name));
}

void LedgerFile::Close() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

absl::Status LedgerFile::Open() {
  const std::string path = absl::StrCat("/", options_.name);
  const int flags = O_RDWR | O_CLOEXEC | (options_.create ? O_CREAT : 0);
  file_ = shm_open(path.c_str(), flags, S_IRUSR | S_IWUSR);
  if (file_ < 0 && errno == ENOENT)
    return absl::NotFoundError(
        absl::StrCat(Title(),
                     ": there is none; programs make it that are "
                     "started with --ledger"));
  if (file_ < 0) return SystemError("cannot be opened");
  struct stat info;
  if (fstat(file_, &info) != 0) return SystemError("cannot be examined");
  if (info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return absl::PermissionDeniedError(absl::StrCat(
        Title(), " belongs to user ", info.st_uid, " and has mode 0",
        (info.st_mode >> 6) & 7, (info.st_mode >> 3) & 7, info.st_mode & 7,
        ": only this user may be able to write it"));
  return absl::OkStatus();
}

absl::Status LedgerFile::AwaitLock() const {
  const auto give_up = std::chrono::steady_clock::now() + options_.lock_timeout;
  struct flock lock = {};
  for (int attempt = 0;; ++attempt) {
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (fcntl(file_, F_SETLK, &lock) == 0) return absl::OkStatus();
    if (errno != EACCES && errno != EAGAIN && errno != EINTR)
      return SystemError("cannot be locked");
    if (attempt < kYields) {
      sched_yield();
      continue;
    }
    if (std::chrono::steady_clock::now() >= give_up) break;
    std::this_thread::sleep_for(kPause);
  }
  const bool known = fcntl(file_, F_GETLK, &lock) == 0 &&
                     lock.l_type != F_UNLCK && lock.l_pid > 0;
  return absl::DeadlineExceededError(absl::StrCat(
      Title(), " was locked for ", options_.lock_timeout.count(), " ms",
      known ? absl::StrCat(" by process ", lock.l_pid) : std::string(),
      ": is a process stopped?"));
}

absl::StatusOr<bool> LedgerFile::Lock() {
  bool is_new = false;
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    if (file_ < 0) {
      is_new = true;
      const absl::Status opened = Open();
      if (!opened.ok()) {
        Close();
        return opened;
      }
    }
    QUIRE_RETURN_IF_ERROR(AwaitLock());
    struct stat info;
    if (fstat(file_, &info) != 0) {
      const absl::Status status = SystemError("cannot be examined");
      Unlock();
      return status;
    }
    if (info.st_nlink > 0) {
      // Nothing was written where whoever made it ended at once: the header
      // comes last.
      bool unwritten = info.st_size == 0;
      if (!unwritten && info.st_size == kLedgerBytes) {
        std::array<char, kLedgerBlock> header;
        const std::array<char, kLedgerBlock> zeros = {};
        unwritten =
            ReadAt(header.data(), header.size(), 0).ok() && header == zeros;
      }
      if (!unwritten) return is_new;
      const absl::Status laid_out =
          options_.budget.zero()
              ? absl::InvalidArgumentError(absl::StrCat(
                    Title(), ": a new ledger needs a budget, and it is 0"))
              : LayOut(options_.budget.value());
      if (laid_out.ok()) return is_new;
      if (options_.create) Remove();
      Unlock();
      return laid_out;
    }
    // Somebody ended as the last one and has removed it.
    Close();
  }
  return absl::UnavailableError(absl::StrCat(
      Title(), " was removed ", kOpenAttempts, " times while it was opened"));
}

void LedgerFile::Unlock() {
  struct flock lock = {};
  lock.l_type = F_UNLCK;
  lock.l_whence = SEEK_SET;
  // Cannot fail on a descriptor that is open.
  if (file_ >= 0) (void)fcntl(file_, F_SETLK, &lock);
}

void LedgerFile::Remove() {
  (void)shm_unlink(absl::StrCat("/", options_.name).c_str());
}

// ---- Contents ---------------------------------------------------------------

absl::Status LedgerFile::ReadAt(void* data, size_t size, size_t offset) const {
  const ssize_t done = pread(file_, data, size, static_cast<off_t>(offset));
  if (done < 0) return SystemError("cannot be read");
  if (static_cast<size_t>(done) == size) return absl::OkStatus();
  return Damaged(absl::StrCat("it ends at byte ", offset + done, ", before ",
                              kLedgerBytes));
}

absl::Status LedgerFile::WriteAt(const void* data, size_t size,
                                 size_t offset) const {
  const ssize_t done = pwrite(file_, data, size, static_cast<off_t>(offset));
  if (done < 0) return SystemError("cannot be written");
  if (static_cast<size_t>(done) == size) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(Title(), ": only ", done, " of ",
                                          size, " bytes were written"));
}

absl::Status LedgerFile::LayOut(uint64_t budget) {
  LedgerHeader header = {};
  header.magic = kLedgerMagic;
  header.version = kLedgerVersion;
  header.records = kLedgerRecords;
  header.device = options_.device.value();
  header.budget = budget;
  header.pid_namespace = pid_namespace_;
  header.checksum = LedgerChecksum(header);
  const LedgerRecords records = FreshLedgerRecords();
  // All memory now: no write fails later because there is none left.
  const int error = posix_fallocate(file_, 0, static_cast<off_t>(kLedgerBytes));
  if (error != 0) {
    errno = error;
    return SystemError("cannot be made");
  }
  QUIRE_RETURN_IF_ERROR(WriteAt(records.data(), sizeof(records), kLedgerBlock));
  return WriteAt(&header, sizeof(header), 0);
}

absl::StatusOr<LedgerHeader> LedgerFile::ReadHeader() const {
  struct stat info;
  if (fstat(file_, &info) != 0) return SystemError("cannot be examined");
  if (info.st_size != kLedgerBytes)
    return Damaged(
        absl::StrCat("it has ", info.st_size, " bytes, not ", kLedgerBytes));
  LedgerHeader header;
  QUIRE_RETURN_IF_ERROR(ReadAt(&header, sizeof(header), 0));
  if (header.magic != kLedgerMagic) return Damaged("it is no memory ledger");
  if (header.version != kLedgerVersion)
    return absl::FailedPreconditionError(
        absl::StrCat(Title(), " is of version ", header.version,
                     ", this program of ", kLedgerVersion));
  if (header.checksum != LedgerChecksum(header))
    return Damaged("the checksum of the header is wrong");
  if (header.records != kLedgerRecords || header.budget == 0)
    return Damaged(absl::StrCat("the header names ", header.records,
                                " records and a budget of ", header.budget));
  if (header.pid_namespace != pid_namespace_)
    return absl::FailedPreconditionError(
        absl::StrCat(Title(), " is of another pid namespace (",
                     header.pid_namespace, ", here it is ", pid_namespace_,
                     "): its processes cannot be told apart from here"));
  if (header.device != options_.device.value())
    return absl::InvalidArgumentError(absl::StrCat(Title(), " is of device ",
                                                   header.device, ", not ",
                                                   options_.device.value()));
  return header;
}

absl::StatusOr<LedgerTable> LedgerFile::Read() const {
  QUIRE_ASSIGN_OR_RETURN(const LedgerHeader header, ReadHeader());
  LedgerRecords records;
  QUIRE_RETURN_IF_ERROR(ReadAt(records.data(), sizeof(records), kLedgerBlock));
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i].checksum != LedgerChecksum(records[i]))
      return Damaged(absl::StrCat("the checksum of record ", i, " is wrong"));
  }
  LedgerTable table(header.budget, records);
  const absl::Status valid = table.Validate();
  if (!valid.ok()) return Damaged(std::string(valid.message()));
  return table;
}

absl::Status LedgerFile::Write(const LedgerRecords& before,
                               const LedgerRecords& after) {
  // What is given up is written before what is claimed, so that the sum fits
  // whichever write is the last.
  for (const bool grown : {false, true}) {
    for (size_t i = 0; i < after.size(); ++i) {
      if ((after[i].claim > before[i].claim) != grown ||
          std::memcmp(&before[i], &after[i],
                      offsetof(LedgerRecord, checksum)) == 0)
        continue;
      LedgerRecord record = after[i];
      record.checksum = LedgerChecksum(record);
      QUIRE_RETURN_IF_ERROR(
          WriteAt(&record, sizeof(record), kLedgerBlock * (1 + i)));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
