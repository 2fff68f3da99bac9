#include "paging/process_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace quire {
namespace {

// Of the fields of /proc/PID/stat behind the name of the program: state,
// threads and start time, which proc(5) numbers 3, 20 and 22.
constexpr size_t kState = 0;
constexpr size_t kThreads = 17;
constexpr size_t kStartTime = 19;

struct ProcessStat {
  char state;
  uint64_t threads;
  uint64_t start_time;
};

absl::StatusOr<ProcessStat> ReadStat(int32_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, path);
  // Longer than any: a name of 64 bytes at most and 50 numbers.
  char buffer[2048];
  const ssize_t length = read(file, buffer, sizeof(buffer));
  const int error = errno;
  close(file);
  if (length < 0) return absl::ErrnoToStatus(error, path);
  // The name may hold anything, also ")": it ends at the last one.
  const std::string text(buffer, static_cast<size_t>(length));
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos)
    return absl::InternalError(absl::StrCat(path, ": is not as in proc(5)"));
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(name_end + 2), ' ');
  ProcessStat stat;
  if (fields.size() <= kStartTime || fields[kState].size() != 1 ||
      !absl::SimpleAtoi(fields[kThreads], &stat.threads) ||
      !absl::SimpleAtoi(fields[kStartTime], &stat.start_time))
    return absl::InternalError(absl::StrCat(path, ": is not as in proc(5)"));
  stat.state = fields[kState][0];
  return stat;
}

}  // namespace

absl::StatusOr<ProcessIdentity> CurrentProcess() {
  const int32_t pid = getpid();
  const absl::StatusOr<ProcessStat> stat = ReadStat(pid);
  if (!stat.ok()) return stat.status();
  return ProcessIdentity{pid, stat->start_time};
}

bool IsAlive(const ProcessIdentity& process) {
  const absl::StatusOr<ProcessStat> stat = ReadStat(process.pid);
  if (!stat.ok()) {
    // ENOENT, or ESRCH where it ended between the two calls.
    return !absl::IsNotFound(stat.status());
  }
  if (stat->start_time != process.start_time) return false;
  const bool ended = stat->state == 'Z' || stat->state == 'X';
  // The first thread of a process may end before others do.
  return !ended || stat->threads > 1;
}

uint64_t PidNamespace() {
  struct stat info;
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace quire
