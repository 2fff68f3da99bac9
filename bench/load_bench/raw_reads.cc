#include "bench/load_bench/raw_reads.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "absl/status/statusor.h"
#include "bench/load_bench/raw_file.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Takes blocks of the file from `next` on until there are none.
absl::Status ReadBlocks(const RawFile& file, bool drop,
                        std::atomic<uint64_t>* next) {
  const ReadBuffer buffer(kReadBlock);
  if (!buffer.ok()) return absl::ResourceExhaustedError("no memory to read to");
  while (true) {
    const uint64_t begin = next->fetch_add(kReadBlock);
    if (begin >= file.size()) return absl::OkStatus();
    const ssize_t got =
        pread(file.fd(), buffer.data(), kReadBlock, static_cast<off_t>(begin));
    if (got < 0) return absl::ErrnoToStatus(errno, "a read");
    if (drop)
      posix_fadvise(file.fd(), static_cast<off_t>(begin),
                    static_cast<off_t>(kReadBlock), POSIX_FADV_DONTNEED);
  }
}

absl::Status ReadByThreads(const std::vector<std::string>& files, int flags,
                           bool drop) {
  for (const std::string& path : files) {
    QUIRE_ASSIGN_OR_RETURN(const RawFile file, RawFile::Open(path, flags));
    // As the loader does: the threads themselves read ahead.
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_RANDOM);
    std::atomic<uint64_t> next = 0;
    Mutex mutex;
    absl::Status first_error;
    std::vector<std::thread> threads;
    for (int i = 0; i < kReadsAtOnce; ++i)
      threads.emplace_back([&] {
        const absl::Status status = ReadBlocks(file, drop, &next);
        MutexLock lock(&mutex);
        first_error.Update(status);
      });
    for (std::thread& thread : threads) thread.join();
    QUIRE_RETURN_IF_ERROR(first_error);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadDirectly(const std::vector<std::string>& files) {
  return ReadByThreads(files, O_DIRECT, /*drop=*/false);
}

absl::Status ReadAndDrop(const std::vector<std::string>& files) {
  return ReadByThreads(files, 0, /*drop=*/true);
}

void DropFromCache(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    const auto file = RawFile::Open(path, 0);
    if (file.ok()) posix_fadvise(file->fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

}  // namespace quire
