#include "alloc/address_space.h"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

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
    (void)driver->ReleaseAddress(*base, Bytes(pages * page_size.value()));
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
  InsertFree(0, total_pages);
}

AddressSpace::~AddressSpace() {
  // A refusal means that something is still mapped, which the driver's own
  // teardown check names; a destructor has nobody to tell.
  (void)driver_->ReleaseAddress(base_, Bytes(total_pages_ << page_shift_));
  munmap(table_, total_pages_ * sizeof(TableEntry));
}

std::optional<uint64_t> AddressSpace::Take(uint64_t pages, uint64_t alignment) {
  for (auto run = by_length_.lower_bound({pages, 0}); run != by_length_.end();
       ++run) {
    const auto [length, first] = *run;
    const auto aligned = CheckedAlignUp(AddressOf(first).value(), alignment);
    if (!aligned) continue;
    // Runs start on pages, so where the alignment is below the page size this
    // is the start itself.
    const uint64_t skipped =
        (*aligned - AddressOf(first).value()) >> page_shift_;
    if (skipped > length || length - skipped < pages) continue;
    EraseFree(by_first_.find(first));
    if (skipped > 0) InsertFree(first, skipped);
    const uint64_t behind = length - skipped - pages;
    if (behind > 0) InsertFree(first + skipped + pages, behind);
    return first + skipped;
  }
  return std::nullopt;
}

void AddressSpace::Return(uint64_t first, uint64_t pages) {
  const auto after = by_first_.lower_bound(first);
  if (after != by_first_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == first) {
      first = before->first;
      pages += before->second;
      EraseFree(before);
    }
  }
  if (after != by_first_.end() && first + pages == after->first) {
    pages += after->second;
    EraseFree(after);
  }
  InsertFree(first, pages);
}

void AddressSpace::Publish(uint64_t first, uint64_t pages,
                           AddressRange* range) {
  for (uint64_t page = first; page < first + pages; ++page) {
    table_[page].store(range, std::memory_order_release);
  }
}

void AddressSpace::InsertFree(uint64_t first, uint64_t pages) {
  by_first_.emplace(first, pages);
  by_length_.emplace(pages, first);
  free_pages_ += pages;
}

void AddressSpace::EraseFree(std::map<uint64_t, uint64_t>::iterator run) {
  free_pages_ -= run->second;
  by_length_.erase({run->second, run->first});
  by_first_.erase(run);
}

absl::Status AddressSpace::CheckInvariants() const {
  uint64_t free = 0;
  uint64_t previous_end = 0;
  bool first_run = true;
  for (const auto& [first, pages] : by_first_) {
    if (pages == 0 || pages > total_pages_ || first > total_pages_ - pages) {
      return absl::InternalError(absl::StrCat("free run of ", pages,
                                              " pages at page ", first,
                                              " outside ", total_pages_));
    }
    if (!first_run && first <= previous_end) {
      return absl::InternalError(absl::StrCat("free run at page ", first,
                                              " touches the one that ends at ",
                                              previous_end));
    }
    if (by_length_.count({pages, first}) == 0) {
      return absl::InternalError(
          absl::StrCat("free run at page ", first, " has no entry by length"));
    }
    first_run = false;
    previous_end = first + pages;
    free += pages;
  }
  if (by_length_.size() != by_first_.size() || free != free_pages_) {
    return absl::InternalError(absl::StrCat(
        free_pages_, " pages counted as free, ", free, " in ", by_first_.size(),
        " runs, ", by_length_.size(), " runs by length"));
  }
  return absl::OkStatus();
}

}  // namespace quire
