// FakeCuda itself, and the functions that need no stream.

#include "alloc/testing/fake_cuda.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"
#include "alloc/testing/fake_cuda_table.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

struct NamedResult {
  CUresult result;
  const char* name;
  const char* text;
};

// The results of this fake and those that tests make it return.
constexpr NamedResult kResults[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED",
     "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED",
     "driver shutting down"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE",
     "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT",
     "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE",
     "invalid resource handle"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED",
     "context is destroyed"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED",
     "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED",
     "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
     "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
     "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another "
     "thread"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const NamedResult* FindResult(CUresult result) {
  const auto* const found =
      std::find_if(std::begin(kResults), std::end(kResults),
                   [&](const NamedResult& r) { return r.result == result; });
  return found == std::end(kResults) ? nullptr : found;
}

bool IsAboutResults(FakeCudaCall call) {
  return call == FakeCudaCall::kGetErrorName ||
         call == FakeCudaCall::kGetErrorString;
}

// Whether the call is work, or about the memory and the objects of work: a
// device that has failed refuses it.
bool IsWork(FakeCudaCall call) {
  switch (call) {
    case FakeCudaCall::kInit:
    case FakeCudaCall::kGetErrorName:
    case FakeCudaCall::kGetErrorString:
    case FakeCudaCall::kDeviceGetCount:
    case FakeCudaCall::kDeviceGet:
    case FakeCudaCall::kDeviceGetName:
    case FakeCudaCall::kDeviceGetAttribute:
    case FakeCudaCall::kDeviceTotalMem:
    case FakeCudaCall::kDeviceCanAccessPeer:
    case FakeCudaCall::kDevicePrimaryCtxRetain:
    case FakeCudaCall::kDevicePrimaryCtxRelease:
    case FakeCudaCall::kCtxPushCurrent:
    case FakeCudaCall::kCtxPopCurrent:
    case FakeCudaCall::kThreadExchangeStreamCaptureMode:
      return false;
    default:
      return true;
  }
}

// Whether a capture depends on the call without seeing it.
bool IsUnsafeInCapture(FakeCudaCall call) {
  switch (call) {
    case FakeCudaCall::kMemAddressReserve:
    case FakeCudaCall::kMemAddressFree:
    case FakeCudaCall::kMemCreate:
    case FakeCudaCall::kMemRelease:
    case FakeCudaCall::kMemMap:
    case FakeCudaCall::kMemUnmap:
    case FakeCudaCall::kMemSetAccess:
    case FakeCudaCall::kMemHostAlloc:
    case FakeCudaCall::kMemFreeHost:
    case FakeCudaCall::kMemHostRegister:
    case FakeCudaCall::kMemHostUnregister:
    case FakeCudaCall::kStreamSynchronize:
    case FakeCudaCall::kEventQuery:
    case FakeCudaCall::kEventSynchronize:
      return true;
    default:
      return false;
  }
}

std::atomic<uint64_t> last_id{0};

}  // namespace

// ---- The fake ---------------------------------------------------------------

absl::StatusOr<std::unique_ptr<FakeCuda>> FakeCuda::Create(
    const FakeCudaOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<FakeCudaMemory> memory,
                         FakeCudaMemory::Create(options));
  auto fake =
      absl::WrapUnique(new FakeCuda(options, std::move(memory), ++last_id));
  const std::optional<int> slot = FakeCudaTable::TakeSlot(fake.get());
  if (!slot) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("there are %d fakes of libcuda already", kMaxFakes));
  }
  fake->slot_ = *slot;
  return fake;
}

FakeCuda::FakeCuda(const FakeCudaOptions& options,
                   std::unique_ptr<FakeCudaMemory> memory, uint64_t id)
    : options_(options),
      calls_(FakeCudaTable::kCalls, 0),
      memory_(std::move(memory)),
      contexts_(id, options.device_count),
      streams_(id) {}

FakeCuda::~FakeCuda() {
  if (slot_ >= 0) FakeCudaTable::LeaveSlot(slot_);
}

CudaFunctionTable FakeCuda::Table() const {
  return FakeCudaTable::ForSlot(slot_);
}

void FakeCuda::FailCall(std::string_view function, int n, CUresult result) {
  const FakeCudaCall call = *FakeCudaTable::CallOf(function);
  MutexLock lock(&calls_mutex_);
  faults_.push_back({call, calls_[static_cast<size_t>(call)] + n, result});
}

int FakeCuda::CallsOf(std::string_view function) const {
  const FakeCudaCall call = *FakeCudaTable::CallOf(function);
  MutexLock lock(&calls_mutex_);
  return calls_[static_cast<size_t>(call)];
}

CUresult FakeCuda::TakeFault(FakeCudaCall call) {
  MutexLock lock(&calls_mutex_);
  const int number = ++calls_[static_cast<size_t>(call)];
  const auto fault = std::find_if(
      faults_.begin(), faults_.end(),
      [&](const Fault& f) { return f.call == call && f.at == number; });
  return fault == faults_.end() ? CUDA_SUCCESS : fault->result;
}

CUresult FakeCuda::Begin(FakeCudaCall call) {
  const CUresult fault = TakeFault(call);
  if (fault != CUDA_SUCCESS || IsAboutResults(call)) return fault;
  // [host-function-calls]
  if (HostStream::OnStreamThread()) return CUDA_ERROR_NOT_PERMITTED;
  // [init-first]
  if (call != FakeCudaCall::kInit && !is_initialised_) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (!IsWork(call)) return CUDA_SUCCESS;
  // [failure-stays]
  if (streams_.failure() != CUDA_SUCCESS) return streams_.failure();
  return IsUnsafeInCapture(call) ? streams_.CheckUnsafeCall() : CUDA_SUCCESS;
}

std::vector<std::string> FakeCuda::Leaks() const {
  std::vector<std::string> leaks;
  memory_->AppendLeaks(&leaks);
  streams_.AppendLeaks(&leaks);
  pinned_.AppendLeaks(&leaks);
  return leaks;
}

std::vector<std::string> FakeCuda::ContextLeaks() const {
  std::vector<std::string> leaks;
  contexts_.AppendLeaks(&leaks);
  return leaks;
}

// ---- Start, results, devices ------------------------------------------------

CUresult FakeCuda::Init(unsigned flags) {
  // [init-flags]
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  is_initialised_ = true;
  return CUDA_SUCCESS;
}

CUresult FakeCuda::GetErrorName(CUresult result, const char** name) {
  // [error-name]
  const NamedResult* const found = FindResult(result);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult FakeCuda::GetErrorString(CUresult result, const char** text) {
  const NamedResult* const found = FindResult(result);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult FakeCuda::DeviceGetCount(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = options_.device_count;
  return CUDA_SUCCESS;
}

CUresult FakeCuda::DeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // [device-ordinal]
  if (!IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult FakeCuda::DeviceGetName(char* name, int length, CUdevice device) {
  if (name == nullptr || length < 1) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  // [device-name]
  const std::string full = absl::StrFormat("fake device %d", device);
  const size_t copied = full.copy(name, length - 1);
  name[copied] = '\0';
  return CUDA_SUCCESS;
}

CUresult FakeCuda::DeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                      CUdevice device) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  // The only attribute that is modelled.
  if (attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *value = options_.has_virtual_memory ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult FakeCuda::DeviceTotalMem(size_t* bytes, CUdevice device) {
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = options_.memory_per_device;
  return CUDA_SUCCESS;
}

CUresult FakeCuda::DeviceCanAccessPeer(int* can, CUdevice device,
                                       CUdevice peer) {
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device) || !IsDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  // [device-peer]
  *can = device != peer && options_.peers_reach_each_other ? 1 : 0;
  return CUDA_SUCCESS;
}

// ---- Contexts ---------------------------------------------------------------

CUresult FakeCuda::DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  return contexts_.Retain(device, context);
}

CUresult FakeCuda::DevicePrimaryCtxRelease(CUdevice device) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  bool is_reset = false;
  const CUresult result = contexts_.Release(device, &is_reset);
  if (is_reset) {
    streams_.Reset(device);
    pinned_.Reset(device);
  }
  return result;
}

CUresult FakeCuda::CtxPushCurrent(CUcontext context) {
  return contexts_.Push(context);
}

CUresult FakeCuda::CtxPopCurrent(CUcontext* context) {
  return contexts_.Pop(context);
}

CUresult FakeCuda::ThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return streams_.ExchangeCaptureMode(mode);
}

// ---- Memory -----------------------------------------------------------------

CUresult FakeCuda::MemGetInfo(size_t* free, size_t* total) {
  return InContext(
      [&](CUdevice current) { return memory_->GetInfo(current, free, total); });
}

CUresult FakeCuda::MemGetAllocationGranularity(
    size_t* granularity, const CUmemAllocationProp* properties,
    CUmemAllocationGranularity_flags option) {
  return memory_->GetAllocationGranularity(granularity, properties, option);
}

CUresult FakeCuda::MemAddressReserve(CUdeviceptr* address, size_t size,
                                     size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags) {
  return memory_->AddressReserve(address, size, alignment, hint, flags);
}

CUresult FakeCuda::MemAddressFree(CUdeviceptr address, size_t size) {
  return memory_->AddressFree(address, size);
}

CUresult FakeCuda::MemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* properties,
                             unsigned long long flags) {
  return memory_->CreateAllocation(handle, size, properties, flags);
}

CUresult FakeCuda::MemRelease(CUmemGenericAllocationHandle handle) {
  return memory_->Release(handle);
}

CUresult FakeCuda::MemMap(CUdeviceptr address, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  return memory_->Map(address, size, offset, handle, flags);
}

CUresult FakeCuda::MemUnmap(CUdeviceptr address, size_t size) {
  return memory_->Unmap(address, size);
}

CUresult FakeCuda::MemSetAccess(CUdeviceptr address, size_t size,
                                const CUmemAccessDesc* access, size_t count) {
  return memory_->SetAccess(address, size, access, count);
}

CUresult FakeCuda::MemHostAlloc(void** memory, size_t size, unsigned flags) {
  return InContext([&](CUdevice current) {
    return pinned_.Allocate(current, memory, size, flags);
  });
}

CUresult FakeCuda::MemFreeHost(void* memory) {
  return InContext([&](CUdevice) { return pinned_.Free(memory); });
}

CUresult FakeCuda::MemHostRegister(void* memory, size_t size, unsigned flags) {
  return InContext([&](CUdevice current) {
    return pinned_.Register(current, memory, size, flags);
  });
}

CUresult FakeCuda::MemHostUnregister(void* memory) {
  return InContext([&](CUdevice) { return pinned_.Unregister(memory); });
}

}  // namespace quire
