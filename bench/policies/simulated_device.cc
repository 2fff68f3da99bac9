#include "bench/policies/simulated_device.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Of addresses that models reserve, so many lie in one range of the driver's.
constexpr Bytes kAddressesAtOnce = GiB(256);

}  // namespace

absl::StatusOr<std::unique_ptr<SimulatedDevice>> SimulatedDevice::Create(
    Bytes memory, const DriverCostTable& costs) {
  HostDriverOptions options;
  options.memory_per_device = memory;
  options.backing = HostDriverOptions::Backing::kNone;
  options.granularity = kPage;
  options.costs = costs;
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostDriver> driver,
                         HostDriver::Create(options));
  return absl::WrapUnique(
      new SimulatedDevice(memory, costs, std::move(driver)));
}

absl::StatusOr<DeviceAddress> SimulatedDevice::TakeAddress(Bytes size) {
  std::vector<DeviceAddress>& spare = spare_[size.value()];
  if (!spare.empty()) {
    const DeviceAddress address = spare.back();
    spare.pop_back();
    return address;
  }
  ++seam_calls_;
  return driver_->ReserveAddress(size, Bytes(0));
}

absl::StatusOr<DeviceAddress> SimulatedDevice::Malloc(Bytes size) {
  ++own_calls_;
  const std::optional<Bytes> rounded = CheckedAlignUp(size, kPage);
  if (!rounded || *rounded > memory_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cudaMalloc: %s is more than the device has, %s",
                        FormatBytes(size), FormatBytes(memory_)));
  }
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address, TakeAddress(*rounded));
  ++seam_calls_;
  const absl::StatusOr<PageHandle> page =
      driver_->CreatePage(DeviceId(0), *rounded);
  if (!page.ok()) {
    spare_[rounded->value()].push_back(address);
    return page.status();
  }
  ++seam_calls_;
  absl::Status mapped = driver_->Map(address, std::span(&*page, 1));
  if (!mapped.ok()) {
    ++seam_calls_;
    mapped.Update(driver_->ReleasePage(*page));
    spare_[rounded->value()].push_back(address);
    return mapped;
  }
  segments_[address.value()] = {*rounded, *page};
  malloc_bytes_ = SaturatingAdd(malloc_bytes_, *rounded);
  return address;
}

absl::Status SimulatedDevice::Free(DeviceAddress address) {
  const auto found = segments_.find(address.value());
  if (found == segments_.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cudaFree: %#x was not allocated", address.value()));
  }
  const Segment segment = found->second;
  segments_.erase(found);
  malloc_bytes_ = SaturatingSubtract(malloc_bytes_, segment.size);
  ++own_calls_;
  seam_calls_ += 2;
  QUIRE_RETURN_IF_ERROR(driver_->Unmap(address, segment.size));
  spare_[segment.size.value()].push_back(address);
  return driver_->ReleasePage(segment.page);
}

absl::StatusOr<DeviceAddress> SimulatedDevice::MallocPieces(Bytes size,
                                                            Bytes piece) {
  ++own_calls_;
  if (size > SaturatingSubtract(memory_, malloc_bytes_)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s more than the device has left", FormatBytes(size)));
  }
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress range, TakeAddress(size));
  std::vector<PageHandle> pages;
  const auto give_up = [&](absl::Status status) {
    for (const PageHandle page : pages) {
      ++seam_calls_;
      status.Update(driver_->ReleasePage(page));
    }
    spare_[size.value()].push_back(range);
    return status;
  };
  while (pages.size() < size.value() / piece.value()) {
    ++seam_calls_;
    const absl::StatusOr<PageHandle> page =
        driver_->CreatePage(DeviceId(0), piece);
    if (!page.ok()) return give_up(page.status());
    pages.push_back(*page);
  }
  ++seam_calls_;
  const absl::Status mapped = driver_->Map(range, pages);
  if (!mapped.ok()) return give_up(mapped);
  uint64_t address = range.value();
  for (const PageHandle page : pages) {
    pieces_[address] = {piece, page, range.value()};
    address += piece.value();
  }
  piece_ranges_[range.value()] = {size, pages.size()};
  malloc_bytes_ = SaturatingAdd(malloc_bytes_, size);
  return range;
}

absl::Status SimulatedDevice::FreePieces(DeviceAddress address, Bytes size) {
  own_calls_ += 1;
  seam_calls_ += 1;
  QUIRE_RETURN_IF_ERROR(driver_->Unmap(address, size));
  const uint64_t end = address.value() + size.value();
  for (uint64_t at = address.value(); at < end;) {
    const auto found = pieces_.find(at);
    if (found == pieces_.end()) return NotAllocated("piece", DeviceAddress(at));
    const Piece piece = found->second;
    pieces_.erase(found);
    ++seam_calls_;
    QUIRE_RETURN_IF_ERROR(driver_->ReleasePage(piece.page));
    malloc_bytes_ = SaturatingSubtract(malloc_bytes_, piece.size);
    at += piece.size.value();
    PieceRange& range = piece_ranges_[piece.range];
    if (--range.left > 0) continue;
    spare_[range.size.value()].push_back(DeviceAddress(piece.range));
    piece_ranges_.erase(piece.range);
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceAddress> SimulatedDevice::ReserveAddress(Bytes size) {
  PoolBlock* block = free_ranges_.BestFit(0, size.value());
  if (block != nullptr) {
    ChargeCall(costs_.reserve_address);
    free_ranges_.Erase(block);
  } else {
    // Charged by the driver itself.
    const Bytes at_once = std::max(size, kAddressesAtOnce);
    QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                           driver_->ReserveAddress(at_once, Bytes(0)));
    PoolBlock range;
    range.address = address.value();
    range.size = at_once.value();
    block = ranges_.Add(range);
  }
  if (block->size > size.value()) {
    free_ranges_.Insert(ranges_.Split(block, size.value()));
  }
  ranges_.MarkLive(block);
  return DeviceAddress(block->address);
}

absl::Status SimulatedDevice::ReleaseAddress(DeviceAddress address) {
  ChargeCall(costs_.release_address);
  PoolBlock* const block = ranges_.TakeLive(address);
  if (block == nullptr) return NotAllocated("address range", address);
  free_ranges_.Insert(ranges_.MergeFree(block, &free_ranges_));
  return absl::OkStatus();
}

void SimulatedDevice::ChargeCall() { ChargeCall(costs_.other); }

void SimulatedDevice::ChargeCall(uint64_t nanoseconds) {
  ++own_calls_;
  driver_->clock()->Advance(nanoseconds);
}

uint64_t SimulatedDevice::calls() const {
  return driver_->GetCallStatistics().total_count() - seam_calls_ + own_calls_;
}

}  // namespace quire
