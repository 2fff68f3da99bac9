#include "loader/offload_unit.h"

#include <sys/mman.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"

namespace quire {

absl::StatusOr<HostBlock> HostBlock::Create(Driver* driver, Bytes size,
                                            bool pinned) {
  if (pinned) {
    QUIRE_ASSIGN_OR_RETURN(void* const memory, driver->AllocatePinned(size));
    return HostBlock(driver, static_cast<std::byte*>(memory), size);
  }
  void* const memory = mmap(nullptr, size.value(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot have ", FormatBytes(size),
                                            " of host memory for weights"));
  return HostBlock(nullptr, static_cast<std::byte*>(memory), size);
}

HostBlock::HostBlock(HostBlock&& other) noexcept
    : driver_(other.driver_), data_(other.data_), size_(other.size_) {
  other.data_ = nullptr;
}

HostBlock::~HostBlock() {
  if (data_ == nullptr) return;
  if (driver_ == nullptr) {
    munmap(data_, size_.value());
  } else {
    // What a second attempt does not free, nobody could.
    TryTwice([&] { return driver_->FreePinned(data_); }).IgnoreError();
  }
}

}  // namespace quire
