#include "bench/model_switching/plain_rates.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = size_t{4} << 20;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

absl::Status ReadAll(const std::string& path, std::vector<char>* buffer) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be opened"));
  }
  const auto close_file = absl::MakeCleanup([file] { close(file); });
  // Best effort: where a file's pages cannot be dropped the read is faster.
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  while (true) {
    const ssize_t read_bytes = read(file, buffer->data(), buffer->size());
    if (read_bytes == 0) break;
    if (read_bytes < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
    }
  }
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<double> MeasureCopy(Bytes bytes, Bytes page_size) {
  const PageCount pages = PagesFor(bytes, page_size);
  HostDriverOptions device;
  device.granularity = std::min(device.granularity, page_size);
  device.memory_per_device =
      CheckedBytes(pages, page_size).value_or(Bytes(UINT64_MAX));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<HostDriver> driver,
                         HostDriver::Create(device));
  OwnerRegistry owners;
  DeviceMemoryOptions memory_options;
  memory_options.page_size = page_size;
  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceMemory> memory,
      DeviceMemory::Create(driver.get(), &owners, memory_options));
  QUIRE_ASSIGN_OR_RETURN(AddressRange* const range,
                         memory->ReserveRange(pages, kUnnamedOwner));
  QUIRE_RETURN_IF_ERROR(memory->Commit(range, PageCount(0), pages));
  QUIRE_ASSIGN_OR_RETURN(void* const host, driver->AllocatePinned(bytes));
  std::memset(host, 1, bytes.value());
  const Clock::time_point start = Clock::now();
  std::memcpy(range->address().host_pointer<char>(), host, bytes.value());
  const double seconds = SecondsSince(start);
  QUIRE_RETURN_IF_ERROR(driver->FreePinned(host));
  memory->ReleaseRange(range, Fence());
  return seconds;
}

absl::StatusOr<double> MeasureRead(const std::vector<std::string>& paths) {
  std::vector<char> buffer(kReadBytes);
  const Clock::time_point start = Clock::now();
  for (const std::string& path : paths) {
    QUIRE_RETURN_IF_ERROR(ReadAll(path, &buffer));
  }
  return SecondsSince(start);
}

}  // namespace quire
