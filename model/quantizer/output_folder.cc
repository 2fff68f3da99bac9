#include "model/quantizer/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/quantizer/checkpoint_export.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// A folder that is renamed or removed between two calls is looked for again;
// more than a few times in a row that is no accident.
constexpr int kAttempts = 16;

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return value_; }
  int Release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

absl::Status PathError(const std::string& path, const char* what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(Printable(path), ": ", what));
}

// Absolute, without links and without a slash at the end.
absl::StatusOr<std::string> Resolve(const std::string& path) {
  std::error_code error;
  fs::path resolved = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error)
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(path), ": ", error.message()));
  if (resolved.filename().empty()) resolved = resolved.parent_path();
  return resolved.string();
}

// Whether a folder can be renamed to `path`.
absl::Status CheckVacant(const std::string& path) {
  struct stat there;
  if (lstat(path.c_str(), &there) != 0)
    return errno == ENOENT ? absl::OkStatus() : PathError(path, "cannot look");
  std::error_code error;
  if (!S_ISDIR(there.st_mode) || !fs::is_empty(path, error) || error)
    return absl::AlreadyExistsError(absl::StrCat(
        Printable(path), S_ISDIR(there.st_mode) ? ": exists and is not empty"
                                                : ": exists and is no folder"));
  const fs::path parent = fs::path(path).parent_path();
  struct stat above;
  if (stat(parent.c_str(), &above) != 0)
    return PathError(parent, "cannot look");
  const char* const why =
      there.st_dev != above.st_dev || there.st_ino == above.st_ino
          ? "is a mount point"
      : fs::equivalent(path, fs::current_path(error), error)
          ? "is the working folder"
          : nullptr;
  if (why == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Printable(path), ": ", why,
                   ", which a folder that is written beside it cannot "
                   "replace; give a new folder in it"));
}

// A lock that goes with the descriptor, so with the process. False where
// another process has it; some network file systems have none, and do without.
absl::StatusOr<bool> Lock(const std::string& staging, int descriptor) {
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return false;
    if (errno == EBADF || errno == EINVAL || errno == ENOLCK ||
        errno == EOPNOTSUPP)
      return true;
    return PathError(staging, "cannot lock");
  }
  return true;
}

// The locked folder `staging`, made where it is missing.
absl::StatusOr<int> Claim(const std::string& path, const std::string& staging) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (mkdir(staging.c_str(), 0777) != 0 && errno != EEXIST)
      return PathError(staging, "cannot create");
    Descriptor folder(
        open(staging.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder.get() < 0) {
      if (errno == ENOENT) continue;
      return PathError(staging, "cannot open");
    }
    QUIRE_ASSIGN_OR_RETURN(const bool locked, Lock(staging, folder.get()));
    if (!locked)
      return absl::FailedPreconditionError(
          absl::StrCat(Printable(path), ": another process is writing it, in ",
                       Printable(staging)));
    // Its owner may have renamed or removed it before it unlocked it.
    struct stat opened, named;
    if (fstat(folder.get(), &opened) == 0 &&
        stat(staging.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
        opened.st_ino == named.st_ino)
      return folder.Release();
  }
  return absl::AbortedError(absl::StrCat(
      Printable(staging), ": is removed by others as often as it is made"));
}

// The first name that is none of an export's; nullopt where all are removed.
std::optional<std::string> Empty(const std::string& staging) {
  std::error_code ignored;
  std::optional<std::string> foreign;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(staging, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!IsExportedFile(name) || entry.is_directory(ignored) ||
        unlink(entry.path().c_str()) != 0)
      foreign = name;
  }
  return foreign;
}

absl::Status Sync(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return PathError(path, "cannot open");
  // Some file systems have no such call for folders, and need none.
  if (fsync(file.get()) != 0 && errno != EINVAL)
    return PathError(path, "cannot sync");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Create(
    const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const std::string resolved, Resolve(path));
  QUIRE_RETURN_IF_ERROR(CheckVacant(resolved));
  std::error_code error;
  const fs::path parent = fs::path(resolved).parent_path();
  fs::create_directories(parent, error);
  if (error)
    return absl::UnknownError(absl::StrCat(
        Printable(parent.string()), ": cannot create: ", error.message()));
  const std::string staging = resolved + ".partial";
  QUIRE_ASSIGN_OR_RETURN(const int descriptor, Claim(resolved, staging));
  std::unique_ptr<OutputFolder> folder(
      new OutputFolder(resolved, staging, descriptor));
  if (const std::optional<std::string> foreign = Empty(staging))
    return absl::AlreadyExistsError(absl::StrCat(
        Printable(staging), ": has ", Quoted(*foreign),
        ", which no interrupted run has left there; move it elsewhere"));
  return folder;
}

OutputFolder::OutputFolder(std::string path, std::string staging,
                           int descriptor)
    : path_(std::move(path)),
      staging_(std::move(staging)),
      descriptor_(descriptor) {}

OutputFolder::~OutputFolder() {
  if (!committed_) {
    Empty(staging_);
    // Not where it holds what others have put there.
    rmdir(staging_.c_str());
  }
  close(descriptor_);
}

absl::Status OutputFolder::Commit() {
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(staging_, error))
    QUIRE_RETURN_IF_ERROR(Sync(entry.path().string()));
  if (error)
    return absl::UnknownError(
        absl::StrCat(Printable(staging_), ": cannot list: ", error.message()));
  QUIRE_RETURN_IF_ERROR(Sync(staging_));
  if (rename(staging_.c_str(), path_.c_str()) != 0)
    return PathError(path_, "cannot be renamed to");
  committed_ = true;
  return Sync(fs::path(path_).parent_path().string());
}

}  // namespace quire
