#include "quire/loader/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status FileError(const std::string& path, const char* what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": ", what));
}

// Null, with errno, where that fails. O_NONBLOCK: opening a pipe that nobody
// reads would wait for a reader for ever; writing to one that is read may wait.
FILE* OpenForWriting(const std::string& path) {
  int fd = -1;
  do {
    fd = open(path.c_str(),
              O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return nullptr;
  const int flags = fcntl(fd, F_GETFL);
  FILE* const file = flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0
                         ? fdopen(fd, "wb")
                         : nullptr;
  if (file != nullptr) return file;
  const int error = errno;
  close(fd);
  errno = error;
  return nullptr;
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string written_path, FILE* file)
    : path_(std::move(path)),
      written_path_(std::move(written_path)),
      file_(file) {}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(
    const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status status =
      std::filesystem::status(path, ignored);
  const bool direct = std::filesystem::exists(status) &&
                      !std::filesystem::is_regular_file(status);
  const std::string written_path = direct ? path : path + ".partial";
  FILE* file = OpenForWriting(written_path);
  if (file == nullptr) return FileError(path, "cannot open for writing");
  return std::unique_ptr<OutputFile>(new OutputFile(path, written_path, file));
}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (written_path_ != path_) std::remove(written_path_.c_str());
}

absl::Status OutputFile::Error(const char* what) const {
  return FileError(path_, what);
}

absl::Status OutputFile::Write(const void* data, size_t size) {
  if (std::fwrite(data, 1, size, file_) != size) return Error("cannot write");
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  // The buffers go out first: a failure must leave file_ for the destructor.
  if (std::fflush(file_) != 0) return Error("cannot write");
  if (std::fclose(std::exchange(file_, nullptr)) != 0)
    return Error("cannot write");
  if (written_path_ != path_ &&
      std::rename(written_path_.c_str(), path_.c_str()) != 0)
    return Error("cannot rename to");
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, std::string_view contents) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file,
                         OutputFile::Create(path));
  QUIRE_RETURN_IF_ERROR(file->Write(contents.data(), contents.size()));
  return file->Commit();
}

}  // namespace quire
