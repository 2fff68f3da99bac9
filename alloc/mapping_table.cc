#include "alloc/mapping_table.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {

std::string FormatRange(uint64_t address, uint64_t size) {
  return absl::StrFormat("[%#x, +%s)", address, FormatBytes(Bytes(size)));
}

absl::StatusOr<uint64_t> MappingTable::CheckReserve(uint64_t size,
                                                    uint64_t alignment) const {
  if (size == 0 || size % granularity_ != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "ReserveAddress: size %d is not a positive multiple of the granularity "
        "%d",
        size, granularity_));
  }
  if (alignment != 0 && !IsPowerOfTwo(alignment)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "ReserveAddress: alignment %d is not a power of two", alignment));
  }
  return std::max(alignment, granularity_);
}

void MappingTable::AddReservation(uint64_t address, uint64_t size) {
  reservations_[address] = size;
}

absl::Status MappingTable::CheckRelease(uint64_t address, uint64_t size) const {
  const auto reservation = reservations_.find(address);
  if (reservation == reservations_.end() || reservation->second != size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ReleaseAddress: %s is not exactly a reserved range",
                        FormatRange(address, size)));
  }
  for (const PageMapping& mapping : FindOverlapping(address, size)) {
    if (mapping.quarantined) continue;
    return absl::FailedPreconditionError(
        absl::StrFormat("ReleaseAddress: page %d is still mapped at %#x in %s",
                        mapping.page.handle.value(), mapping.address,
                        FormatRange(address, size)));
  }
  return absl::OkStatus();
}

void MappingTable::RemoveReservation(uint64_t address) {
  const auto reservation = reservations_.find(address);
  mappings_.erase(mappings_.lower_bound(address),
                  mappings_.lower_bound(address + reservation->second));
  reservations_.erase(reservation);
}

absl::Status MappingTable::CheckReserved(const char* call, uint64_t address,
                                         uint64_t size) const {
  if (size == 0 || size % granularity_ != 0 || address % granularity_ != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: address %#x and size %d must be multiples of the granularity %d, "
        "the size positive",
        call, address, size, granularity_));
  }
  const auto reservation = FindReservation(address);
  if (!reservation || reservation->end() - address < size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s does not lie in one reserved range", call,
                        FormatRange(address, size)));
  }
  return absl::OkStatus();
}

absl::Status MappingTable::CheckMap(uint64_t address, uint64_t size) const {
  QUIRE_RETURN_IF_ERROR(CheckReserved("Map", address, size));
  const auto mapping = FirstEndingBehind(address);
  if (mapping == mappings_.end() || mapping->first >= address + size) {
    return absl::OkStatus();
  }
  const PageMapping& found = mapping->second;
  return absl::FailedPreconditionError(absl::StrFormat(
      "Map: %s is not free: %s is %s", FormatRange(address, size),
      FormatRange(found.address, found.page.size),
      found.quarantined
          ? "in quarantine"
          : absl::StrFormat("mapped to page %d", found.page.handle.value())));
}

absl::StatusOr<std::vector<PageMapping>> MappingTable::PlanMap(
    uint64_t address, std::span<const PhysicalPage> pages) const {
  std::vector<PageMapping> mappings;
  mappings.reserve(pages.size());
  uint64_t size = 0;
  for (const PhysicalPage& page : pages) {
    mappings.push_back({address + size, page});
    const auto sum = CheckedAdd(size, page.size);
    if (!sum) {
      return absl::InvalidArgumentError(
          "Map: the pages together exceed 64 bits");
    }
    size = *sum;
  }
  QUIRE_RETURN_IF_ERROR(CheckMap(address, size));
  return mappings;
}

void MappingTable::AddMappings(std::span<const PageMapping> mappings) {
  auto behind = mappings_.lower_bound(mappings.front().address);
  for (const PageMapping& mapping : mappings) {
    behind =
        std::next(mappings_.insert_or_assign(behind, mapping.address, mapping));
  }
}

void MappingTable::AddLostAddresses(uint64_t address, uint64_t size) {
  PageMapping lost{address, {}, /*quarantined=*/true};
  lost.page.size = size;
  mappings_[address] = lost;
}

absl::StatusOr<std::vector<PageMapping>> MappingTable::FindUnmap(
    uint64_t address, uint64_t size) const {
  QUIRE_RETURN_IF_ERROR(CheckReserved("Unmap", address, size));
  std::vector<PageMapping> found = FindOverlapping(address, size);
  uint64_t reached = address;
  for (const PageMapping& mapping : found) {
    if (mapping.quarantined) {
      return absl::FailedPreconditionError(
          absl::StrFormat("Unmap: %s reaches into quarantine at %#x",
                          FormatRange(address, size), mapping.address));
    }
    if (mapping.address < address || mapping.end() > address + size) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "Unmap: %s covers only part of page %d, mapped at %s",
          FormatRange(address, size), mapping.page.handle.value(),
          FormatRange(mapping.address, mapping.page.size)));
    }
    if (mapping.address != reached) break;
    reached = mapping.end();
  }
  if (reached != address + size) {
    return absl::FailedPreconditionError(
        absl::StrFormat("Unmap: nothing is mapped at %#x in %s", reached,
                        FormatRange(address, size)));
  }
  return found;
}

void MappingTable::RemoveMappings(uint64_t address, uint64_t size) {
  mappings_.erase(mappings_.lower_bound(address),
                  mappings_.lower_bound(address + size));
}

absl::StatusOr<DeviceId> MappingTable::CheckAccess(uint64_t address,
                                                   uint64_t size) const {
  const auto end = CheckedAdd(address, size);
  auto mapping = FirstEndingBehind(address);
  uint64_t reached = address;
  std::optional<DeviceId> device;
  while (end && reached < *end) {
    if (mapping == mappings_.end() || mapping->second.address > reached ||
        mapping->second.quarantined) {
      break;
    }
    if (device && *device != mapping->second.page.device) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is memory of devices %d and %d", FormatRange(address, size),
          device->value(), mapping->second.page.device.value()));
    }
    device = mapping->second.page.device;
    reached = mapping->second.end();
    ++mapping;
  }
  if (!end || reached < *end) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "nothing is mapped at %#x in %s", reached, FormatRange(address, size)));
  }
  return *device;
}

std::optional<AddressReservation> MappingTable::FindReservation(
    uint64_t address) const {
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return std::nullopt;
  --reservation;
  if (address - reservation->first >= reservation->second) return std::nullopt;
  return AddressReservation{reservation->first, reservation->second};
}

std::vector<PageMapping> MappingTable::FindOverlapping(uint64_t address,
                                                       uint64_t size) const {
  std::vector<PageMapping> found;
  for (auto mapping = FirstEndingBehind(address);
       mapping != mappings_.end() && mapping->first < address + size;
       ++mapping) {
    found.push_back(mapping->second);
  }
  return found;
}

absl::btree_map<uint64_t, PageMapping>::const_iterator
MappingTable::FirstEndingBehind(uint64_t address) const {
  auto mapping = mappings_.upper_bound(address);
  if (mapping != mappings_.begin()) {
    const auto before = std::prev(mapping);
    if (before->second.end() > address) return before;
  }
  return mapping;
}

}  // namespace quire
