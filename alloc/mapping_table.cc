#include "alloc/mapping_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

bool BeginsBefore(const PageMapping& mapping, uint64_t address) {
  return mapping.address < address;
}
bool BeginsBehind(uint64_t address, const PageMapping& mapping) {
  return address < mapping.address;
}

}  // namespace

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
  RemoveMappings(address, reservation->second);
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
  const PageMapping* const mapped = Get(FirstEndingBehind(address));
  if (mapped == nullptr || mapped->address >= address + size) {
    return absl::OkStatus();
  }
  const PageMapping& found = *mapped;
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

void MappingTable::AddMappings(std::vector<PageMapping> mappings) {
  if (mappings.size() <= kMostTogether) {
    mappings_.emplace(mappings.front().address, std::move(mappings));
    return;
  }
  for (size_t first = 0; first < mappings.size(); first += kMostTogether) {
    const auto part = std::span(mappings).subspan(
        first, std::min(kMostTogether, mappings.size() - first));
    mappings_.emplace(part.front().address,
                      std::vector<PageMapping>(part.begin(), part.end()));
  }
}

void MappingTable::Quarantine(PageMapping mapping) {
  RemoveMappings(mapping.address, mapping.page.size);
  mapping.quarantined = true;
  AddMappings({mapping});
}

void MappingTable::AddLostAddresses(uint64_t address, uint64_t size) {
  PageMapping lost{address, {}, /*quarantined=*/true};
  lost.page.size = size;
  AddMappings({lost});
}

absl::Status MappingTable::CheckUnmap(uint64_t address, uint64_t size) const {
  QUIRE_RETURN_IF_ERROR(CheckReserved("Unmap", address, size));
  uint64_t reached = address;
  for (Position at = FirstEndingBehind(address); const auto* mapping = Get(at);
       Advance(&at)) {
    if (mapping->address >= address + size) break;
    if (mapping->quarantined) {
      return absl::FailedPreconditionError(
          absl::StrFormat("Unmap: %s reaches into quarantine at %#x",
                          FormatRange(address, size), mapping->address));
    }
    if (mapping->address < address || mapping->end() > address + size) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "Unmap: %s covers only part of page %d, mapped at %s",
          FormatRange(address, size), mapping->page.handle.value(),
          FormatRange(mapping->address, mapping->page.size)));
    }
    if (mapping->address != reached) break;
    reached = mapping->end();
  }
  if (reached != address + size) {
    return absl::FailedPreconditionError(
        absl::StrFormat("Unmap: nothing is mapped at %#x in %s", reached,
                        FormatRange(address, size)));
  }
  return absl::OkStatus();
}

void MappingTable::RemoveMappings(uint64_t address, uint64_t size) {
  SplitAt(address);
  SplitAt(address + size);
  mappings_.erase(mappings_.lower_bound(address),
                  mappings_.lower_bound(address + size));
}

std::vector<PageMapping> MappingTable::TakeMappings(uint64_t address,
                                                    uint64_t size) {
  SplitAt(address);
  SplitAt(address + size);
  std::vector<PageMapping> taken;
  auto array = mappings_.lower_bound(address);
  while (array != mappings_.end() && array->first < address + size) {
    std::vector<PageMapping>& together = array->second;
    if (taken.empty()) {
      taken = std::move(together);
    } else {
      taken.insert(taken.end(), together.begin(), together.end());
    }
    array = mappings_.erase(array);
  }
  return taken;
}

void MappingTable::SplitAt(uint64_t address) {
  auto array = mappings_.lower_bound(address);
  if (array == mappings_.begin()) return;
  std::vector<PageMapping>& together = (--array)->second;
  if (together.back().address < address) return;
  const auto first =
      std::lower_bound(together.begin(), together.end(), address, BeginsBefore);
  std::vector<PageMapping> behind(first, together.end());
  // Memory for what is left, and no more.
  together = std::vector<PageMapping>(together.begin(), first);
  mappings_.emplace(address, std::move(behind));
}

absl::StatusOr<DeviceId> MappingTable::CheckAccess(uint64_t address,
                                                   uint64_t size) const {
  const auto end = CheckedAdd(address, size);
  uint64_t reached = address;
  std::optional<DeviceId> device;
  for (Position at = FirstEndingBehind(address); end && reached < *end;
       Advance(&at)) {
    const PageMapping* const mapping = Get(at);
    if (mapping == nullptr || mapping->address > reached ||
        mapping->quarantined) {
      break;
    }
    if (device && *device != mapping->page.device) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is memory of devices %d and %d", FormatRange(address, size),
          device->value(), mapping->page.device.value()));
    }
    device = mapping->page.device;
    reached = mapping->end();
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
  for (Position at = FirstEndingBehind(address); const auto* mapping = Get(at);
       Advance(&at)) {
    if (mapping->address >= address + size) break;
    found.push_back(*mapping);
  }
  return found;
}

MappingTable::Position MappingTable::FirstEndingBehind(uint64_t address) const {
  const auto behind = mappings_.upper_bound(address);
  if (behind != mappings_.begin()) {
    const auto array = std::prev(behind);
    const std::vector<PageMapping>& together = array->second;
    if (together.back().end() > address) {
      const auto mapping = std::prev(std::upper_bound(
          together.begin(), together.end(), address, BeginsBehind));
      return {array, static_cast<size_t>(mapping - together.begin())};
    }
  }
  return {behind, 0};
}

void MappingTable::Advance(Position* position) {
  if (++position->index < position->array->second.size()) return;
  ++position->array;
  position->index = 0;
}

}  // namespace quire
