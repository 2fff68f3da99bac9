// The address side of a driver: what is reserved and what is mapped where.
//
// The rules of CUDA's virtual memory management, apart from the calls that
// carry them out: a driver asks Check... or Find..., does the work, then says
// what happened. So every driver refuses the same misuse with the same words,
// before it has changed anything.
//
// Mappings that were made by one call lie in one array, or in a few where they
// are many: so what a call costs is mostly that of looking its range up, not of
// a node of a tree for each page.
//
// Invariants: reservations are disjoint; every mapping lies in exactly one of
// them; mappings are disjoint; all borders are multiples of the granularity.
// Mappings of an array lie side by side, in address order.
//
// Not thread-safe. Operations are O(log n) plus the mappings in the range, and
// in the arrays that reach into it, of kMostTogether at most.

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
  // Side by side, in address order. REQUIRES: nothing is mapped there, and
  // there is at least one.
  void AddMappings(std::vector<PageMapping> mappings);
  // Puts a mapping in quarantine, which may be there or not.
  void Quarantine(PageMapping mapping);
  // Puts addresses that no longer belong to the driver in quarantine: nothing
  // is ever mapped there again. REQUIRES: nothing is mapped there.
  void AddLostAddresses(uint64_t address, uint64_t size);
  // OK where mappings make up the range, all whole and without gaps.
  absl::Status CheckUnmap(uint64_t address, uint64_t size) const;
  // REQUIRES: no mapping lies in the range in part.
  void RemoveMappings(uint64_t address, uint64_t size);
  // The same. Returns what was there, in address order.
  std::vector<PageMapping> TakeMappings(uint64_t address, uint64_t size);
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
  // Calls function(mapping) for each, in address order.
  template <typename Function>
  void ForEachMapping(Function function) const {
    for (const auto& [address, together] : mappings_) {
      for (const PageMapping& mapping : together) function(mapping);
    }
  }

 private:
  // In one array: what a change in the middle of one may have to copy.
  static constexpr size_t kMostTogether = 256;
  // By the address of the first.
  using Arrays = absl::btree_map<uint64_t, std::vector<PageMapping>>;
  // One mapping, or the end.
  struct Position {
    Arrays::const_iterator array;
    size_t index = 0;
  };

  // OK where the range is aligned and lies in one reservation.
  absl::Status CheckReserved(const char* call, uint64_t address,
                             uint64_t size) const;
  absl::Status CheckMap(uint64_t address, uint64_t size) const;
  // The first mapping that ends behind `address`.
  Position FirstEndingBehind(uint64_t address) const;
  const PageMapping* Get(const Position& position) const {
    return position.array == mappings_.end()
               ? nullptr
               : &position.array->second[position.index];
  }
  // The mapping behind it, in this array or the next one.
  static void Advance(Position* position);
  // Makes `address` the border of two arrays where it lies within one.
  // REQUIRES: no mapping reaches across it.
  void SplitAt(uint64_t address);

  const uint64_t granularity_;
  absl::btree_map<uint64_t, uint64_t> reservations_;  // address -> size
  Arrays mappings_;
};

// "[0x7f0000000000, +2.00 MiB)": how messages name a range.
std::string FormatRange(uint64_t address, uint64_t size);

}  // namespace quire

#endif  // QUIRE_ALLOC_MAPPING_TABLE_H_
