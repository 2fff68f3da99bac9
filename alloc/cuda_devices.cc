#include "alloc/cuda_devices.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_format.h"
#include "alloc/cuda_status.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status CheckVirtualMemory(const CudaFunctionTable& cuda,
                                CUdevice device) {
  int supported = 0;
  QUIRE_RETURN_IF_ERROR(CudaStatus(
      cuda, "cuDeviceGetAttribute",
      cuda.DeviceGetAttribute(
          &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
          device)));
  if (supported != 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "CUDA device %d has no virtual memory management", device));
}

absl::StatusOr<Bytes> Granularity(const CudaFunctionTable& cuda,
                                  CUdevice device,
                                  CUmemAllocationGranularity_flags kind) {
  const CUmemAllocationProp properties = CudaPageProperties(device);
  size_t granularity = 0;
  QUIRE_RETURN_IF_ERROR(CudaStatus(
      cuda, "cuMemGetAllocationGranularity",
      cuda.MemGetAllocationGranularity(&granularity, &properties, kind)));
  if (!IsPowerOfTwo(granularity)) {
    return absl::UnavailableError(
        absl::StrFormat("CUDA device %d has granularity %d, no power of two",
                        device, granularity));
  }
  return Bytes(granularity);
}

absl::StatusOr<DeviceInfo> Describe(const CudaFunctionTable& cuda,
                                    CUdevice device) {
  std::array<char, 256> name{};
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cuda, "cuDeviceGetName",
                 cuda.DeviceGetName(
                     name.data(), static_cast<int>(name.size()) - 1, device)));
  size_t total = 0;
  QUIRE_RETURN_IF_ERROR(CudaStatus(cuda, "cuDeviceTotalMem",
                                   cuda.DeviceTotalMem(&total, device)));
  QUIRE_ASSIGN_OR_RETURN(
      const Bytes minimum,
      Granularity(cuda, device, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  QUIRE_ASSIGN_OR_RETURN(
      const Bytes recommended,
      Granularity(cuda, device, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  return DeviceInfo{name.data(), Bytes(total), minimum, recommended};
}

CUmemAccessDesc AccessOf(CUdevice device) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

absl::Status AddPeers(const CudaFunctionTable& cuda,
                      std::vector<CudaDevice>* devices) {
  for (CudaDevice& owner : *devices) {
    for (const CudaDevice& peer : *devices) {
      if (peer.device == owner.device) continue;
      int reaches = 0;
      QUIRE_RETURN_IF_ERROR(CudaStatus(
          cuda, "cuDeviceCanAccessPeer",
          cuda.DeviceCanAccessPeer(&reaches, peer.device, owner.device)));
      if (reaches != 0) owner.access.push_back(AccessOf(peer.device));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CudaDevice>> Find(const CudaFunctionTable& cuda) {
  QUIRE_RETURN_IF_ERROR(CudaStatus(cuda, "cuInit", cuda.Init(0)));
  int count = 0;
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cuda, "cuDeviceGetCount", cuda.DeviceGetCount(&count)));
  if (count == 0) return absl::UnavailableError("there is no CUDA device");
  std::vector<CudaDevice> devices;
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    QUIRE_RETURN_IF_ERROR(
        CudaStatus(cuda, "cuDeviceGet", cuda.DeviceGet(&device, i)));
    QUIRE_RETURN_IF_ERROR(CheckVirtualMemory(cuda, device));
    QUIRE_ASSIGN_OR_RETURN(DeviceInfo info, Describe(cuda, device));
    devices.push_back({device, std::move(info), {AccessOf(device)}});
  }
  QUIRE_RETURN_IF_ERROR(AddPeers(cuda, &devices));
  // One granularity for all: a range of addresses belongs to no device.
  Bytes granularity;
  for (const CudaDevice& device : devices) {
    granularity = std::max(granularity, device.info.minimum_granularity);
  }
  for (CudaDevice& device : devices) {
    device.info.minimum_granularity = granularity;
    device.info.recommended_granularity =
        std::max(granularity, device.info.recommended_granularity);
  }
  return devices;
}

}  // namespace

CUmemAllocationProp CudaPageProperties(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

absl::StatusOr<std::vector<CudaDevice>> FindCudaDevices(
    const CudaFunctionTable& cuda) {
  auto devices = Find(cuda);
  if (devices.ok()) return devices;
  // Whatever is wrong at start, there is no device to be had.
  return absl::UnavailableError(devices.status().message());
}

}  // namespace quire
