// The device that policies are compared on: a software device without memory,
// and cudaMalloc for it.
//
// The driver seam has no cudaMalloc. It is made of the seam's calls (addresses,
// one physical allocation of whole 2 MiB pages, one mapping), costs what they
// cost on the virtual clock, and counts as the one call that it is. Addresses
// that were freed are used again for the same size, without another call.

#ifndef QUIRE_BENCH_POLICIES_SIMULATED_DEVICE_H_
#define QUIRE_BENCH_POLICIES_SIMULATED_DEVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/policies/block_store.h"
#include "quire/alloc/host_driver.h"

namespace quire {

class SimulatedDevice {
 public:
  // What cudaMalloc takes memory in, from Pascal on.
  static constexpr Bytes kPage = MiB(2);

  static absl::StatusOr<std::unique_ptr<SimulatedDevice>> Create(
      Bytes memory, const DriverCostTable& costs = DriverCostTable::A100());

  HostDriver* driver() { return driver_.get(); }
  Bytes memory() const { return memory_; }

  // `size` rounded up to whole pages. Errors: kResourceExhausted, the driver's.
  absl::StatusOr<DeviceAddress> Malloc(Bytes size);
  // REQUIRES: a result of Malloc that was not freed.
  absl::Status Free(DeviceAddress address);
  // As Malloc, in physical pieces of `piece` that can go back one by one.
  // REQUIRES: `piece` is whole pages, and `size` whole pieces.
  absl::StatusOr<DeviceAddress> MallocPieces(Bytes size, Bytes piece);
  // REQUIRES: one or more pieces side by side, that are there.
  absl::Status FreePieces(DeviceAddress address, Bytes size);
  // What Malloc and MallocPieces have handed out and is not freed.
  Bytes malloc_bytes() const { return malloc_bytes_; }

  // The driver's calls of these names, counted and charged as they are. Many
  // ranges lie in one that the driver has: a model that makes and drops ranges
  // all the time waits for no kernel. `size` is whole pages.
  absl::StatusOr<DeviceAddress> ReserveAddress(Bytes size);
  // REQUIRES: a result of ReserveAddress, which nothing is mapped in.
  absl::Status ReleaseAddress(DeviceAddress address);

  // Calls that the system makes of its driver and the seam does not have: each
  // costs what events and copies do.
  void ChargeCall();

  // Driver calls so far, and what they cost: cudaMalloc and cudaFree once each.
  uint64_t calls() const;
  uint64_t nanoseconds() const { return driver_->clock()->nanoseconds(); }

 private:
  struct Segment {
    Bytes size;
    PageHandle page;
  };
  struct Piece {
    Bytes size;
    PageHandle page;
    uint64_t range;  // what TakeAddress gave
  };
  struct PieceRange {
    Bytes size;
    uint64_t left = 0;  // pieces
  };
  SimulatedDevice(Bytes memory, const DriverCostTable& costs,
                  std::unique_ptr<HostDriver> driver)
      : memory_(memory), costs_(costs), driver_(std::move(driver)) {}
  absl::StatusOr<DeviceAddress> TakeAddress(Bytes size);
  void ChargeCall(uint64_t nanoseconds);

  const Bytes memory_;
  const DriverCostTable costs_;
  const std::unique_ptr<HostDriver> driver_;
  absl::flat_hash_map<uint64_t, Segment> segments_;         // by address
  absl::flat_hash_map<uint64_t, Piece> pieces_;             // by address
  absl::flat_hash_map<uint64_t, PieceRange> piece_ranges_;  // by address
  absl::flat_hash_map<uint64_t, std::vector<DeviceAddress>> spare_;  // by size
  BlockStore ranges_;  // of ReserveAddress
  FreeBlocks free_ranges_;
  Bytes malloc_bytes_;
  uint64_t seam_calls_ = 0;  // made by Malloc and Free
  uint64_t own_calls_ = 0;   // charged by Malloc, Free and the others
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_SIMULATED_DEVICE_H_
