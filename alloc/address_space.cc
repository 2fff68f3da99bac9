#include "alloc/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"

namespace quire {

absl::StatusOr<std::unique_ptr<AddressSpace>> AddressSpace::Create(
    Driver* driver, Bytes size, Bytes minimum, Bytes page_size) {
  // All-zero bytes are a table of null pointers, and loads take no lock.
  static_assert(TableEntry::is_always_lock_free);
  static_assert(sizeof(TableEntry) == sizeof(AddressRange*));

  uint64_t pages = PagesFor(size, page_size).value();
  const uint64_t fewest = PagesFor(minimum, page_size).value();
  absl::StatusOr<DeviceAddress> base = DeviceAddress();
  for (;;) {
    base = driver->ReserveAddress(Bytes(pages * page_size.value()), page_size);
    if (!absl::IsResourceExhausted(base.status()) || pages / 2 < fewest) break;
    pages /= 2;
  }
  if (!base.ok()) {
    return absl::Status(
        base.status().code(),
        absl::StrCat("cannot reserve ", FormatBytes(minimum),
                     " of device addresses: ", base.status().message()));
  }
  const size_t table_bytes = pages * sizeof(TableEntry);
  void* const table =
      mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (table == MAP_FAILED) {
    const int error = errno;
    const Bytes reserved(pages * page_size.value());
    (void)TryTwice([&] { return driver->ReleaseAddress(*base, reserved); });
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map a page table of ", table_bytes,
                     " bytes: ", std::strerror(error)));
  }
  return std::unique_ptr<AddressSpace>(new AddressSpace(
      driver, *base, pages, std::countr_zero(page_size.value()),
      static_cast<TableEntry*>(table)));
}

AddressSpace::AddressSpace(Driver* driver, DeviceAddress base,
                           uint64_t total_pages, int page_shift,
                           TableEntry* table)
    : driver_(driver),
      base_(base),
      total_pages_(total_pages),
      page_shift_(page_shift),
      table_(table) {
  Return(0, total_pages);
}

AddressSpace::~AddressSpace() {
  // A refusal means that something is still mapped, which the driver's own
  // teardown check names; a destructor has nobody to tell.
  const Bytes size(total_pages_ << page_shift_);
  (void)TryTwice([&] { return driver_->ReleaseAddress(base_, size); });
  munmap(table_, total_pages_ * sizeof(TableEntry));
}

std::optional<uint64_t> AddressSpace::Take(uint64_t pages, uint64_t alignment) {
  if (pages > total_pages_) return std::nullopt;
  const uint64_t bytes = pages << page_shift_;
  const std::optional<uint64_t> address = free_.FindFit(
      bytes, Bytes(std::max(alignment, uint64_t{1} << page_shift_)));
  if (!address) return std::nullopt;
  free_.Take(*address, bytes);
  return (*address - base_.value()) >> page_shift_;
}

void AddressSpace::Return(uint64_t first, uint64_t pages) {
  free_.Insert({AddressOf(first).value(), pages << page_shift_});
}

void AddressSpace::Publish(uint64_t first, uint64_t pages,
                           AddressRange* range) {
  for (uint64_t page = first; page < first + pages; ++page) {
    table_[page].store(range, std::memory_order_release);
  }
}

absl::Status AddressSpace::CheckInvariants() const {
  QUIRE_RETURN_IF_ERROR(free_.CheckInvariants());
  if (free_.empty()) return absl::OkStatus();
  const uint64_t end = AddressOf(total_pages_).value();
  const uint64_t first = free_.runs().begin()->first;
  const uint64_t last = free_.runs().rbegin()->second.end();
  if (first < base_.value() || last > end) {
    return absl::InternalError(
        absl::StrFormat("free addresses from %#x to %#x, outside [%#x, %#x)",
                        first, last, base_.value(), end));
  }
  return absl::OkStatus();
}

}  // namespace quire
