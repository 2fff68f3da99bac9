#include "loader/offload_unit.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"

namespace quire {

absl::StatusOr<HostBlock> HostBlock::Create(Bytes size) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto whole = CheckedAlignUp(size.value(), page);
  void* const memory =
      whole ? mmap(nullptr, *whole, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
            : MAP_FAILED;
  if (memory == MAP_FAILED)
    return absl::ErrnoToStatus(whole ? errno : ENOMEM,
                               absl::StrCat("cannot have ", FormatBytes(size),
                                            " of host memory for weights"));
  return HostBlock(static_cast<std::byte*>(memory), Bytes(*whole));
}

HostBlock::HostBlock(HostBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      pinned_by_(other.pinned_by_) {}

absl::Status HostBlock::Pin(Driver* driver) {
  QUIRE_RETURN_IF_ERROR(driver->PinMemory(data_, size_));
  pinned_by_ = driver;
  return absl::OkStatus();
}

HostBlock::~HostBlock() {
  if (data_ == nullptr) return;
  // What a device may still reach is kept for good.
  if (pinned_by_ != nullptr &&
      !TryTwice([&] { return pinned_by_->UnpinMemory(data_); }).ok())
    return;
  munmap(data_, size_.value());
}

}  // namespace quire
