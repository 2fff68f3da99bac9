#include "alloc/host_address_space.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// How far Unmap may exceed the limit of mappings: one part in so many.
constexpr uint64_t kUnmapHeadroomParts = 16;

// Addresses of no kernel: programs have none from here on, on any processor, so
// they fault as reserved ones do.
constexpr uint64_t kFirstNumber = uint64_t{1} << 56;
constexpr uint64_t kLastNumber = uint64_t{1} << 63;

// Addresses that nobody else in the process has, though the kernel does not
// know of them. False where there are none left.
bool TakeNumbers(uint64_t size, uint64_t alignment, uint64_t* address) {
  static std::atomic<uint64_t> next = kFirstNumber;
  uint64_t begin = next.load(std::memory_order_relaxed);
  for (;;) {
    const auto aligned = CheckedAlignUp(begin, alignment);
    const auto end = aligned ? CheckedAdd(*aligned, size) : std::nullopt;
    if (!end || *end > kLastNumber) return false;
    if (next.compare_exchange_weak(begin, *end, std::memory_order_relaxed)) {
      *address = *aligned;
      return true;
    }
  }
}

// True where the kernel keeps both as one mapping.
bool Merges(const PhysicalPage& page, const PhysicalPage& next) {
  return page.device == next.device && page.backing + page.size == next.backing;
}

}  // namespace

HostAddressSpace::HostAddressSpace(HostKernel* kernel, uint64_t granularity,
                                   uint64_t mapping_limit,
                                   std::vector<int> files)
    : kernel_(kernel),
      mapping_limit_(mapping_limit),
      files_(std::move(files)),
      table_(granularity) {}

HostAddressSpace::~HostAddressSpace() {
  for (const auto& [address, size] : table_.reservations()) {
    ReleaseInKernel(address, size);
  }
}

absl::StatusOr<uint64_t> HostAddressSpace::Reserve(uint64_t size,
                                                   uint64_t alignment) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t aligned,
                         table_.CheckReserve(size, alignment));
  if (kernel_mappings_ + 1 > mapping_limit_) {
    return OutOfMappings("ReserveAddress", kernel_mappings_ + 1);
  }
  uint64_t address = 0;
  const int error = ReserveAligned(kernel_, size, aligned, &address);
  if (error != 0 && (any_backed() || !TakeNumbers(size, aligned, &address))) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "ReserveAddress: out of addresses: asked for %s aligned to %s: %s",
        FormatBytes(Bytes(size)), FormatBytes(Bytes(aligned)),
        std::strerror(error)));
  }
  table_.AddReservation(address, size);
  ++kernel_mappings_;
  return address;
}

absl::Status HostAddressSpace::Release(uint64_t address, uint64_t size,
                                       std::vector<PageHandle>* unmapped) {
  QUIRE_RETURN_IF_ERROR(table_.CheckRelease(address, size));
  for (const PageMapping& mapping : table_.FindOverlapping(address, size)) {
    if (!mapping.addresses_lost()) unmapped->push_back(mapping.page.handle);
  }
  kernel_mappings_ -= CountAround(address, size);
  ReleaseInKernel(address, size);
  table_.RemoveReservation(address);
  return absl::OkStatus();
}

void HostAddressSpace::ReleaseInKernel(uint64_t address, uint64_t size) {
  if (address >= kFirstNumber) return;
  uint64_t start = address;
  for (const PageMapping& mapping : table_.FindOverlapping(address, size)) {
    if (!mapping.addresses_lost()) continue;
    if (mapping.address > start) {
      (void)kernel_->Unmap(start, mapping.address - start);
    }
    start = mapping.end();
  }
  // A refusal leaves addresses reserved that nobody uses, which is harmless.
  if (address + size > start) {
    (void)kernel_->Unmap(start, address + size - start);
  }
}

absl::Status HostAddressSpace::Map(uint64_t address,
                                   std::span<const PhysicalPage> pages,
                                   std::vector<PageHandle>* mapped) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<PageMapping> mappings,
                         table_.PlanMap(address, pages));
  const uint64_t size = mappings.back().end() - address;
  const DeviceId device = pages.front().device;
  const uint64_t before = CountAround(address, size, device);
  table_.AddMappings(std::move(mappings));
  const uint64_t needed =
      kernel_mappings_ + CountAround(address, size, device) - before;
  const auto forget = [&] { table_.RemoveMappings(address, size); };
  // Never refuses what merges: it needs no more than there is.
  if (needed > mapping_limit_ && needed > kernel_mappings_) {
    forget();
    return OutOfMappings("Map", needed);
  }

  uint64_t done = 0;
  if (absl::Status status = MapRuns(pages, address, &done); !status.ok()) {
    forget();
    const Removal removal =
        done > 0 ? RemoveFromKernel(address, done) : Removal::kDone;
    if (removal == Removal::kDone) return status;
    if (removal == Removal::kAddressesLost) {
      table_.AddLostAddresses(address, done);
    } else {
      uint64_t at = address;
      for (const PhysicalPage& page : pages) {
        if (at >= address + done) break;
        table_.Quarantine({at, page});
        mapped->push_back(page.handle);
        at += page.size;
      }
    }
    kernel_mappings_ += CountAround(address, size, device) - before;
    return absl::DataLossError(absl::StrFormat(
        "%s; the rollback was refused too, so that %s is in quarantine",
        std::string(status.message()), FormatRange(address, done)));
  }
  kernel_mappings_ = needed;
  mapped->reserve(pages.size());
  for (const PhysicalPage& page : pages) mapped->push_back(page.handle);
  return absl::OkStatus();
}

absl::Status HostAddressSpace::MapRuns(std::span<const PhysicalPage> pages,
                                       uint64_t address, uint64_t* done) {
  if (!backed(pages.front().device)) return absl::OkStatus();
  for (size_t i = 0; i < pages.size();) {
    const uint64_t offset = pages[i].backing;
    uint64_t run = pages[i].size;
    size_t end = i + 1;
    while (end < pages.size() && Merges(pages[end - 1], pages[end])) {
      run += pages[end++].size;
    }
    const int error = kernel_->MapFile(address + *done, run,
                                       files_[pages[i].device.value()], offset);
    if (error != 0) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "Map: the kernel refused %s, with %d kernel mappings in use: %s",
          FormatRange(address + *done, run), kernel_mappings_,
          std::strerror(error)));
    }
    *done += run;
    i = end;
  }
  return absl::OkStatus();
}

absl::Status HostAddressSpace::Unmap(uint64_t address, uint64_t size,
                                     std::vector<PageHandle>* unmapped) {
  QUIRE_RETURN_IF_ERROR(table_.CheckUnmap(address, size));
  const DeviceId device = *table_.CheckAccess(address, 1);
  const uint64_t before = CountAround(address, size, device);
  std::vector<PageMapping> mappings = table_.TakeMappings(address, size);
  const uint64_t needed =
      kernel_mappings_ + CountAround(address, size, device) - before;
  const auto remember = [&] { table_.AddMappings(std::move(mappings)); };
  if (needed > mapping_limit_ + mapping_limit_ / kUnmapHeadroomParts &&
      needed > kernel_mappings_) {
    remember();
    return OutOfMappings("Unmap", needed);
  }
  const Removal removal =
      backed(device) ? RemoveFromKernel(address, size) : Removal::kDone;
  if (removal == Removal::kRefused) {
    remember();
    return OutOfMappings("Unmap", needed);
  }
  unmapped->reserve(mappings.size());
  for (const PageMapping& mapping : mappings) {
    unmapped->push_back(mapping.page.handle);
  }
  if (removal == Removal::kAddressesLost) {
    table_.AddLostAddresses(address, size);
    kernel_mappings_ += CountAround(address, size, device) - before;
    return absl::DataLossError(absl::StrFormat(
        "Unmap: out of kernel mappings (%d in use): %s is unmapped, but the "
        "addresses were lost and are in quarantine",
        kernel_mappings_, FormatRange(address, size)));
  }
  kernel_mappings_ = needed;
  return absl::OkStatus();
}

HostAddressSpace::Removal HostAddressSpace::RemoveFromKernel(uint64_t address,
                                                             uint64_t size) {
  if (kernel_->Cover(address, size) == 0) return Removal::kDone;
  // At its limit the kernel still takes whole mappings away.
  if (kernel_->Unmap(address, size) != 0) return Removal::kRefused;
  return kernel_->ReserveAt(address, size) == 0 ? Removal::kDone
                                                : Removal::kAddressesLost;
}

uint64_t HostAddressSpace::CountAround(uint64_t address, uint64_t size,
                                       DeviceId device) const {
  return backed(device) ? CountAround(address, size) : 0;
}

uint64_t HostAddressSpace::CountAround(uint64_t address, uint64_t size) const {
  const AddressReservation reservation = *table_.FindReservation(address);
  const uint64_t start = std::max(reservation.address, address - 1);
  const uint64_t end = std::min(reservation.end(), address + size + 1);
  uint64_t count = 0;
  uint64_t reached = start;
  const PageMapping* previous = nullptr;
  const std::vector<PageMapping> mappings =
      table_.FindOverlapping(start, end - start);
  for (const PageMapping& mapping : mappings) {
    const bool pages_are_mapped =
        mapping.quarantined || backed(mapping.page.device);
    if (!pages_are_mapped) continue;
    if (mapping.address > reached) {
      ++count;
      previous = nullptr;
    }
    const bool merges = previous != nullptr && !previous->quarantined &&
                        !mapping.quarantined &&
                        Merges(previous->page, mapping.page);
    if (!merges) ++count;
    previous = &mapping;
    reached = mapping.end();
  }
  return reached < end ? count + 1 : count;
}

absl::Status HostAddressSpace::OutOfMappings(const char* call,
                                             uint64_t needed) const {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s: out of kernel mappings: needs %d, %d are in use, the limit is %d; "
      "larger pages need fewer",
      call, needed, kernel_mappings_, mapping_limit_));
}

}  // namespace quire
