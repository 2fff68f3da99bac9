#include "alloc/cuda_address_space.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/cuda_status.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// `first` is why the work failed, `second` why it could not be undone.
absl::Status Quarantined(const absl::Status& first, const absl::Status& second,
                         uint64_t address, uint64_t size) {
  return absl::DataLossError(absl::StrFormat(
      "%s; undoing it failed too (%s), so that pages in %s are in quarantine",
      std::string(first.message()), std::string(second.message()),
      FormatRange(address, size)));
}

}  // namespace

CudaAddressSpace::CudaAddressSpace(const CudaFunctionTable* cuda,
                                   const std::vector<CudaDevice>* devices)
    : cuda_(cuda),
      devices_(devices),
      table_(devices->front().info.minimum_granularity.value()) {}

CudaAddressSpace::~CudaAddressSpace() {
  // Best effort: at the end of the process the driver may be gone already.
  table_.ForEachMapping(
      [this](const PageMapping& mapping) { (void)UnmapOne(mapping); });
  for (const auto& [address, size] : table_.reservations()) {
    (void)cuda_->MemAddressFree(address, size);
  }
}

absl::StatusOr<uint64_t> CudaAddressSpace::Reserve(uint64_t size,
                                                   uint64_t alignment) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t aligned,
                         table_.CheckReserve(size, alignment));
  CUdeviceptr address = 0;
  // The driver's error says "out of memory" here too.
  QUIRE_RETURN_IF_ERROR(CudaStatus(
      *cuda_, "cuMemAddressReserve",
      cuda_->MemAddressReserve(&address, size, aligned, /*addr=*/0,
                               /*flags=*/0),
      absl::StrFormat("out of addresses, not of memory: asked for %s aligned "
                      "to %s",
                      FormatBytes(Bytes(size)), FormatBytes(Bytes(aligned)))));
  if (address % aligned != 0) {
    (void)cuda_->MemAddressFree(address, size);
    return absl::InternalError(absl::StrFormat(
        "cuMemAddressReserve: %#x is not aligned to %d", address, aligned));
  }
  table_.AddReservation(address, size);
  return address;
}

absl::Status CudaAddressSpace::Release(uint64_t address, uint64_t size) {
  QUIRE_RETURN_IF_ERROR(table_.CheckRelease(address, size));
  if (!table_.FindOverlapping(address, size).empty()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("ReleaseAddress: %s holds pages in quarantine",
                        FormatRange(address, size)));
  }
  QUIRE_RETURN_IF_ERROR(CudaStatus(*cuda_, "cuMemAddressFree",
                                   cuda_->MemAddressFree(address, size),
                                   FormatRange(address, size)));
  table_.RemoveReservation(address);
  return absl::OkStatus();
}

absl::Status CudaAddressSpace::Map(uint64_t address,
                                   std::span<const PhysicalPage> pages,
                                   std::vector<PageHandle>* mapped) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<PageMapping> mappings,
                         table_.PlanMap(address, pages));
  size_t done = 0;
  const absl::Status status = MapRun(mappings, &done);
  if (status.ok()) {
    table_.AddMappings(std::move(mappings));
    for (const PhysicalPage& page : pages) mapped->push_back(page.handle);
    return absl::OkStatus();
  }
  absl::Status undone;
  for (const PageMapping& mapping : std::span(mappings).first(done)) {
    absl::Status unmapped = UnmapOne(mapping);
    if (unmapped.ok()) continue;
    table_.Quarantine(mapping);
    mapped->push_back(mapping.page.handle);
    undone = std::move(unmapped);
  }
  if (undone.ok()) return status;
  return Quarantined(status, undone, address, mappings.back().end() - address);
}

absl::Status CudaAddressSpace::Unmap(uint64_t address, uint64_t size,
                                     std::vector<PageHandle>* unmapped) {
  QUIRE_RETURN_IF_ERROR(table_.CheckUnmap(address, size));
  const std::vector<PageMapping> mappings =
      table_.FindOverlapping(address, size);
  absl::Status status;
  size_t done = 0;
  for (const PageMapping& mapping : mappings) {
    status = UnmapOne(mapping);
    if (!status.ok()) break;
    ++done;
  }
  if (status.ok()) {
    table_.RemoveMappings(address, size);
    for (const PageMapping& mapping : mappings) {
      unmapped->push_back(mapping.page.handle);
    }
    return absl::OkStatus();
  }
  if (done == 0) return status;
  const auto undo = std::span(mappings).first(done);
  size_t mapped_again = 0;
  const absl::Status undone = MapRun(undo, &mapped_again);
  if (undone.ok()) return status;
  for (const PageMapping& mapping : undo) table_.Quarantine(mapping);
  return Quarantined(status, undone, address, undo.back().end() - address);
}

absl::Status CudaAddressSpace::MapRun(std::span<const PageMapping> mappings,
                                      size_t* done) {
  for (const PageMapping& mapping : mappings) {
    QUIRE_RETURN_IF_ERROR(CudaStatus(
        *cuda_, "cuMemMap",
        cuda_->MemMap(mapping.address, mapping.page.size, /*offset=*/0,
                      mapping.page.backing, /*flags=*/0),
        FormatRange(mapping.address, mapping.page.size)));
    ++*done;
  }
  const uint64_t address = mappings.front().address;
  const uint64_t size = mappings.back().end() - address;
  const std::vector<CUmemAccessDesc>& access =
      (*devices_)[mappings.front().page.device.value()].access;
  return CudaStatus(
      *cuda_, "cuMemSetAccess",
      cuda_->MemSetAccess(address, size, access.data(), access.size()),
      FormatRange(address, size));
}

absl::Status CudaAddressSpace::UnmapOne(const PageMapping& mapping) {
  return CudaStatus(*cuda_, "cuMemUnmap",
                    cuda_->MemUnmap(mapping.address, mapping.page.size),
                    FormatRange(mapping.address, mapping.page.size));
}

}  // namespace quire
