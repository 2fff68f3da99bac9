#include "alloc/host_page_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"

namespace quire {
namespace {

// The file grows by at least so much at a time: holes cost nothing, calls do.
constexpr uint64_t kFileGrowth = uint64_t{64} << 20;

// Where the process has closed a standard stream, its number is the next to be
// given out, and what is printed later would be written over the pages.
int CreateMemoryFile() {
  const int fd = memfd_create("quire-device-memory", MFD_CLOEXEC);
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(fd);
  errno = error;
  return above;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostPageMemory>> HostPageMemory::Create(
    DeviceId device, uint64_t capacity, bool backed) {
  int fd = -1;
  if (backed) {
    fd = CreateMemoryFile();
    if (fd < 0) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("no memory file for device %d: memfd_create: %s",
                          device.value(), std::strerror(errno)));
    }
  }
  return absl::WrapUnique(new HostPageMemory(device, capacity, fd));
}

HostPageMemory::~HostPageMemory() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<uint64_t> HostPageMemory::Allocate(uint64_t size) {
  if (size > capacity_ - used_) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "CreatePage: out of physical memory on device %d: asked for %s, free "
        "%s of %s",
        device_.value(), FormatBytes(Bytes(size)),
        FormatBytes(Bytes(capacity_ - used_)), FormatBytes(Bytes(capacity_))));
  }
  for (auto run = free_.begin(); run != free_.end(); ++run) {
    const auto [offset, run_size] = *run;
    if (run_size < size) continue;
    free_.erase(run);
    if (run_size > size) free_[offset + size] = run_size - size;
    used_ += size;
    return offset;
  }
  const auto end = CheckedAdd(frontier_, size);
  const auto grown = CheckedAdd(frontier_, std::max(size, kFileGrowth));
  if (!end || !grown || *grown > uint64_t{INT64_MAX}) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("CreatePage: no offset is left for %s on device %d",
                        FormatBytes(Bytes(size)), device_.value()));
  }
  if (fd_ >= 0 && *end > file_size_) {
    if (ftruncate(fd_, static_cast<off_t>(*grown)) != 0) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "CreatePage: the memory file of device %d cannot grow to %d bytes: "
          "%s",
          device_.value(), *grown, std::strerror(errno)));
    }
    file_size_ = *grown;
  }
  const uint64_t offset = frontier_;
  frontier_ = *end;
  used_ += size;
  return offset;
}

void HostPageMemory::Free(uint64_t offset, uint64_t size) {
  if (fd_ >= 0) {
    // Where the kernel refuses, the memory stays in the file and serves the
    // next page at this offset: its contents are unspecified either way.
    (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(offset), static_cast<off_t>(size));
  }
  used_ -= size;
  auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  if (offset + size == frontier_) {
    frontier_ = offset;
  } else {
    free_[offset] = size;
  }
}

}  // namespace quire
