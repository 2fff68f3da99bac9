// The functions of NVIDIA's driver that CudaDriver calls, as a table of
// pointers: filled from libcuda at run time, so that every program starts where
// there is no driver, or by a test with a driver of its own.

#ifndef QUIRE_ALLOC_CUDA_FUNCTION_TABLE_H_
#define QUIRE_ALLOC_CUDA_FUNCTION_TABLE_H_

#include <cuda.h>

#include "absl/status/statusor.h"

namespace quire {

// X(member, name, declaration). The name is what the driver is asked for; the
// declaration is spelt with its version, because the header's macros move the
// plain names to newer ones with other parameters.
#define QUIRE_CUDA_FUNCTIONS(X)                                           \
  X(Init, "cuInit", cuInit)                                               \
  X(GetErrorName, "cuGetErrorName", cuGetErrorName)                       \
  X(GetErrorString, "cuGetErrorString", cuGetErrorString)                 \
  X(DeviceGetCount, "cuDeviceGetCount", cuDeviceGetCount)                 \
  X(DeviceGet, "cuDeviceGet", cuDeviceGet)                                \
  X(DeviceGetName, "cuDeviceGetName", cuDeviceGetName)                    \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", cuDeviceGetAttribute)     \
  X(DeviceTotalMem, "cuDeviceTotalMem", cuDeviceTotalMem_v2)              \
  X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", cuDeviceCanAccessPeer)  \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain",                   \
    cuDevicePrimaryCtxRetain)                                             \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease",                 \
    cuDevicePrimaryCtxRelease_v2)                                         \
  X(CtxPushCurrent, "cuCtxPushCurrent", cuCtxPushCurrent_v2)              \
  X(CtxPopCurrent, "cuCtxPopCurrent", cuCtxPopCurrent_v2)                 \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", \
    cuThreadExchangeStreamCaptureMode)                                    \
  X(MemGetInfo, "cuMemGetInfo", cuMemGetInfo_v2)                          \
  X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity",         \
    cuMemGetAllocationGranularity)                                        \
  X(MemAddressReserve, "cuMemAddressReserve", cuMemAddressReserve)        \
  X(MemAddressFree, "cuMemAddressFree", cuMemAddressFree)                 \
  X(MemCreate, "cuMemCreate", cuMemCreate)                                \
  X(MemRelease, "cuMemRelease", cuMemRelease)                             \
  X(MemMap, "cuMemMap", cuMemMap)                                         \
  X(MemUnmap, "cuMemUnmap", cuMemUnmap)                                   \
  X(MemSetAccess, "cuMemSetAccess", cuMemSetAccess)                       \
  X(StreamCreate, "cuStreamCreate", cuStreamCreate)                       \
  X(StreamDestroy, "cuStreamDestroy", cuStreamDestroy_v2)                 \
  X(StreamSynchronize, "cuStreamSynchronize", cuStreamSynchronize)        \
  X(StreamWaitEvent, "cuStreamWaitEvent", cuStreamWaitEvent)              \
  X(EventCreate, "cuEventCreate", cuEventCreate)                          \
  X(EventDestroy, "cuEventDestroy", cuEventDestroy_v2)                    \
  X(EventRecord, "cuEventRecord", cuEventRecord)                          \
  X(EventQuery, "cuEventQuery", cuEventQuery)                             \
  X(EventSynchronize, "cuEventSynchronize", cuEventSynchronize)           \
  X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2)           \
  X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2)           \
  X(MemcpyDtoDAsync, "cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2)           \
  X(MemsetD8Async, "cuMemsetD8Async", cuMemsetD8Async)                    \
  X(LaunchHostFunc, "cuLaunchHostFunc", cuLaunchHostFunc)                 \
  X(MemHostAlloc, "cuMemHostAlloc", cuMemHostAlloc)                       \
  X(MemFreeHost, "cuMemFreeHost", cuMemFreeHost)                          \
  X(MemHostRegister, "cuMemHostRegister", cuMemHostRegister_v2)           \
  X(MemHostUnregister, "cuMemHostUnregister", cuMemHostUnregister)

struct CudaFunctionTable {
#define QUIRE_DECLARE_CUDA_FUNCTION(member, name, declaration) \
  decltype(&::declaration) member = nullptr;
  QUIRE_CUDA_FUNCTIONS(QUIRE_DECLARE_CUDA_FUNCTION)
#undef QUIRE_DECLARE_CUDA_FUNCTION
};

// Loads the driver. It stays loaded until the process ends: its own threads
// cannot be stopped. kUnavailable with the reason where there is none, or one
// that lacks a function.
absl::StatusOr<CudaFunctionTable> LoadCudaFunctionTable(
    const char* library = "libcuda.so.1");

}  // namespace quire

#endif  // QUIRE_ALLOC_CUDA_FUNCTION_TABLE_H_
