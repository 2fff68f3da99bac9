// The address side of a driver: what is reserved and what is mapped where.
//
// The rules of CUDA's virtual memory management, apart from the calls that
// carry them out: a driver asks Check... or Find..., does the work, then says
// what happened. So every driver refuses the same misuse with the same words,
// before it has changed anything.
//
// Invariants: reservations are disjoint; every mapping lies in exactly one of
// them; mappings are disjoint; all borders are multiples of the granularity.
//
// Not thread-safe. Operations are O(log n) plus the mappings in the range.

#ifndef QUIRE_ALLOC_MAPPING_TABLE_H_
#define QUIRE_ALLOC_MAPPING_TABLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/page_table.h"
#include "quire/alloc/units.h"

namespace quire {

struct PageMapping {
  uint64_t address;
  PhysicalPage page;
  // Left behind by a rollback that was refused: never accessible, never mapped
  // or unmapped again.
  bool quarantined = false;

  uint64_t end() const { return address + page.size; }
  // Quarantined because the addresses are not the driver's any more: no page.
  bool addresses_lost() const {
    return quarantined && page.handle == PageHandle();
  }
};

struct AddressReservation {
  uint64_t address;
  uint64_t size;

  uint64_t end() const { return address + size; }
};

class MappingTable {
 public:
  // REQUIRES: `granularity` is a power of two.
  explicit MappingTable(uint64_t granularity) : granularity_(granularity) {}

  // ---- Reservations ----
  // The alignment to reserve with: `alignment`, at least the granularity.
  absl::StatusOr<uint64_t> CheckReserve(uint64_t size,
                                        uint64_t alignment) const;
  void AddReservation(uint64_t address, uint64_t size);
  // Refuses what is not exactly a reservation or has mappings; ones in
  // quarantine are left to the caller.
  absl::Status CheckRelease(uint64_t address, uint64_t size) const;
  // Removes the reservation at `address` with whatever is mapped in it.
  void RemoveReservation(uint64_t address);

  // ---- Mappings ----
  // The mappings of `pages`, side by side from `address` on. OK where they lie
  // in one reservation and nothing is mapped there. Adds nothing.
  absl::StatusOr<std::vector<PageMapping>> PlanMap(
      uint64_t address, std::span<const PhysicalPage> pages) const;
  // In address order, with nothing mapped between them but what they replace.
  void AddMappings(std::span<const PageMapping> mappings);
  // Puts addresses that no longer belong to the driver in quarantine: nothing
  // is ever mapped there again. REQUIRES: nothing is mapped there.
  void AddLostAddresses(uint64_t address, uint64_t size);
  // The mappings that make up the range, all whole and without gaps.
  absl::StatusOr<std::vector<PageMapping>> FindUnmap(uint64_t address,
                                                     uint64_t size) const;
  // REQUIRES: no mapping lies in the range in part.
  void RemoveMappings(uint64_t address, uint64_t size);
  // OK where every byte of the range is mapped to one device: that device.
  // REQUIRES: size > 0.
  absl::StatusOr<DeviceId> CheckAccess(uint64_t address, uint64_t size) const;

  // ---- Reading ----
  // The reservation that contains `address`.
  std::optional<AddressReservation> FindReservation(uint64_t address) const;
  // The mappings that overlap the range, in address order.
  std::vector<PageMapping> FindOverlapping(uint64_t address,
                                           uint64_t size) const;
  // By address.
  const absl::btree_map<uint64_t, uint64_t>& reservations() const {
    return reservations_;
  }
  const absl::btree_map<uint64_t, PageMapping>& mappings() const {
    return mappings_;
  }

 private:
  // OK where the range is aligned and lies in one reservation.
  absl::Status CheckReserved(const char* call, uint64_t address,
                             uint64_t size) const;
  absl::Status CheckMap(uint64_t address, uint64_t size) const;
  // The first mapping that ends behind `address`.
  absl::btree_map<uint64_t, PageMapping>::const_iterator FirstEndingBehind(
      uint64_t address) const;

  const uint64_t granularity_;
  absl::btree_map<uint64_t, uint64_t> reservations_;  // address -> size
  absl::btree_map<uint64_t, PageMapping> mappings_;
};

// "[0x7f0000000000, +2.00 MiB)": how messages name a range.
std::string FormatRange(uint64_t address, uint64_t size);

}  // namespace quire

#endif  // QUIRE_ALLOC_MAPPING_TABLE_H_
