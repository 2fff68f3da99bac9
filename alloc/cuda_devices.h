// What CudaDriver asks of the devices once, at start.

#ifndef QUIRE_ALLOC_CUDA_DEVICES_H_
#define QUIRE_ALLOC_CUDA_DEVICES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "alloc/cuda_function_table.h"
#include "quire/alloc/driver.h"

namespace quire {

struct CudaDevice {
  CUdevice device;
  DeviceInfo info;
  // Who may read and write this device's memory: itself, then every device that
  // can reach it. All of them, always: a mapping that lacks a grant faults, or
  // hangs, on the peer and far from here.
  std::vector<CUmemAccessDesc> access;
};

// How memory of a device is created.
CUmemAllocationProp CudaPageProperties(CUdevice device);

// Initialises the driver. kUnavailable with the reason where there is no device
// or one that cannot map memory (virtual machines' GPUs often cannot).
absl::StatusOr<std::vector<CudaDevice>> FindCudaDevices(
    const CudaFunctionTable& cuda);

}  // namespace quire

#endif  // QUIRE_ALLOC_CUDA_DEVICES_H_
