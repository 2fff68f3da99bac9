#include "quire/loader/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr char kStatusPath[] = "/proc/self/status";
constexpr char kMachinePath[] = "/proc/meminfo";

// The value of "<field>:   123 kB".
std::optional<Bytes> FieldOf(std::string_view status, std::string_view field) {
  size_t at = 0;
  while (at < status.size()) {
    const std::string_view line = status.substr(at, status.find('\n', at) - at);
    at += line.size() + 1;
    if (!line.starts_with(field) || line.substr(field.size(), 1) != ":")
      continue;
    const size_t digits = line.find_first_of("0123456789");
    uint64_t kibibytes = 0;
    if (digits == std::string_view::npos ||
        std::from_chars(line.data() + digits, line.data() + line.size(),
                        kibibytes)
                .ec != std::errc())
      return std::nullopt;
    return CheckedMultiply(KiB(1), kibibytes);
  }
  return std::nullopt;
}

// A file of the kernel's about memory, kept open: a sampler reads it a thousand
// times a second.
class StatusFile {
 public:
  // `path` outlives the file.
  static absl::StatusOr<std::unique_ptr<StatusFile>> Open(const char* path) {
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
    }
    return std::unique_ptr<StatusFile>(new StatusFile(path, descriptor));
  }
  ~StatusFile() { close(descriptor_); }
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

  // Twice what the file of a process with many groups takes.
  using Buffer = std::array<char, 16384>;
  absl::StatusOr<std::string_view> ReadText(Buffer* buffer) const {
    ssize_t got;
    do {
      got = pread(descriptor_, buffer->data(), buffer->size(), 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
    }
    return std::string_view(buffer->data(), static_cast<size_t>(got));
  }

  // Of kStatusPath.
  absl::StatusOr<ProcessMemory> Read() const {
    Buffer buffer;
    QUIRE_ASSIGN_OR_RETURN(const std::string_view status, ReadText(&buffer));
    const auto anonymous = FieldOf(status, "RssAnon");
    const auto resident = FieldOf(status, "VmRSS");
    const auto peak_resident = FieldOf(status, "VmHWM");
    if (!anonymous || !resident || !peak_resident) {
      return absl::UnavailableError(
          absl::StrCat(kStatusPath, " does not say RssAnon, VmRSS and VmHWM"));
    }
    return ProcessMemory{*anonymous, *resident, *peak_resident};
  }

 private:
  StatusFile(const char* path, int descriptor)
      : path_(path), descriptor_(descriptor) {}

  const char* const path_;
  const int descriptor_;
};

}  // namespace

absl::StatusOr<Bytes> ReadAvailableMemory() {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<StatusFile> file,
                         StatusFile::Open(kMachinePath));
  StatusFile::Buffer buffer;
  QUIRE_ASSIGN_OR_RETURN(const std::string_view text, file->ReadText(&buffer));
  const auto available = FieldOf(text, "MemAvailable");
  if (!available)
    return absl::UnavailableError(
        absl::StrCat(kMachinePath, " does not say MemAvailable"));
  return *available;
}

absl::StatusOr<ProcessMemory> ReadProcessMemory() {
  QUIRE_ASSIGN_OR_RETURN(const auto file, StatusFile::Open(kStatusPath));
  return file->Read();
}

class AnonymousPeakSampler::Impl {
 public:
  Impl(std::unique_ptr<StatusFile> file, Bytes first,
       std::chrono::microseconds interval)
      : file_(std::move(file)), interval_(interval), peak_(first) {}
  ~Impl() { Stop(); }

  absl::Status Start() {
    try {
      thread_ = std::thread([this] { Sample(); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start the memory sampler: ", error.what()));
    }
    return absl::OkStatus();
  }

  Bytes Stop() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(&mutex_);
      stop_ = true;
    }
    stopped_.NotifyAll();
    if (thread_.joinable()) thread_.join();
    MutexLock lock(&mutex_);
    return peak_;
  }

 private:
  void Sample() ABSL_LOCKS_EXCLUDED(mutex_) {
    bool last = false;
    while (!last) {
      {
        MutexLock lock(&mutex_);
        if (!stop_) stopped_.WaitFor(&mutex_, interval_);
        last = stop_;
      }
      const auto memory = file_->Read();
      if (!memory.ok()) continue;
      MutexLock lock(&mutex_);
      peak_ = std::max(peak_, memory->anonymous);
    }
  }

  const std::unique_ptr<StatusFile> file_;
  const std::chrono::microseconds interval_;
  std::thread thread_;
  Mutex mutex_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  Bytes peak_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<AnonymousPeakSampler>>
AnonymousPeakSampler::Start(std::chrono::microseconds interval) {
  QUIRE_ASSIGN_OR_RETURN(auto file, StatusFile::Open(kStatusPath));
  QUIRE_ASSIGN_OR_RETURN(const ProcessMemory now, file->Read());
  auto impl = std::make_unique<Impl>(std::move(file), now.anonymous, interval);
  QUIRE_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<AnonymousPeakSampler>(
      new AnonymousPeakSampler(std::move(impl)));
}

AnonymousPeakSampler::AnonymousPeakSampler(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}

AnonymousPeakSampler::~AnonymousPeakSampler() = default;

Bytes AnonymousPeakSampler::Stop() { return impl_->Stop(); }

}  // namespace quire
