// The addresses of one device: a single driver reservation, cut into runs of
// pages, and the table that finds the range an address belongs to.
//
// Runs are handed out best fit and coalesce when they return, so addresses
// fragment only as far as the live ranges force them to. The table holds one
// pointer per page, in memory that the system backs when it is first touched:
// 8 bytes for each 2 MiB of addresses in use.
//
// Invariant: every page outside the free runs was taken. Every operation is
// O(log free runs), plus one store per page for Publish; a Take whose alignment
// exceeds the page size may look at every free run.
//
// Not thread-safe, Find apart, which may run beside anything.

#ifndef QUIRE_ALLOC_ADDRESS_SPACE_H_
#define QUIRE_ALLOC_ADDRESS_SPACE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/run_set.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/units.h"

namespace quire {

class AddressRange;

class AddressSpace {
 public:
  // Reserves `size` bytes of addresses, or, where the driver does not give that
  // much, half of it, and so on down to `minimum`. REQUIRES: page_size is a
  // power of two; both sizes are multiples of it; 0 < minimum <= size.
  static absl::StatusOr<std::unique_ptr<AddressSpace>> Create(Driver* driver,
                                                              Bytes size,
                                                              Bytes minimum,
                                                              Bytes page_size);
  // Returns the reservation. REQUIRES: nothing is mapped in it.
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // A run of `pages` pages whose address is a multiple of `alignment`: the
  // index of its first page. Nullopt where no free run is long enough.
  // REQUIRES: pages > 0; alignment is a power of two.
  std::optional<uint64_t> Take(uint64_t pages, uint64_t alignment);
  // REQUIRES: exactly a run that was taken.
  void Return(uint64_t first, uint64_t pages);

  DeviceAddress AddressOf(uint64_t page) const {
    return DeviceAddress(base_.value() + (page << page_shift_));
  }
  uint64_t total_pages() const { return total_pages_; }
  uint64_t free_pages() const { return free_.bytes() >> page_shift_; }
  // 0 where nothing is free. O(1).
  uint64_t largest_free_run() const { return free_.largest() >> page_shift_; }

  // Makes Find give `range` (null: nothing) for each of the pages.
  void Publish(uint64_t first, uint64_t pages, AddressRange* range);
  bool Contains(DeviceAddress address) const {
    return address >= base_ &&
           (address.value() - base_.value()) >> page_shift_ < total_pages_;
  }
  // What was published for the page of `address`, or null. Lock-free.
  AddressRange* Find(DeviceAddress address) const {
    if (!Contains(address)) return nullptr;
    return table_[(address.value() - base_.value()) >> page_shift_].load(
        std::memory_order_acquire);
  }

  // For checks.
  const RunSet& free_runs() const { return free_; }
  absl::Status CheckInvariants() const;

 private:
  using TableEntry = std::atomic<AddressRange*>;

  AddressSpace(Driver* driver, DeviceAddress base, uint64_t total_pages,
               int page_shift, TableEntry* table);

  Driver* const driver_;
  const DeviceAddress base_;
  const uint64_t total_pages_;
  const int page_shift_;
  TableEntry* const table_;  // total_pages_ entries

  RunSet free_;  // addresses
};

}  // namespace quire

#endif  // QUIRE_ALLOC_ADDRESS_SPACE_H_
