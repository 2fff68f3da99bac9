#include "alloc/cuda_fake.h"

#include <cstdlib>
#include <cstring>

namespace quire {
namespace {

FakeCuda* current = nullptr;

constexpr CUdeviceptr kFirstAddress = CUdeviceptr{1} << 40;

}  // namespace

// The functions of the table.
struct FakeCudaFunctions {
  static CUresult Init(unsigned int) { return current->Begin("cuInit"); }
  static CUresult GetErrorName(CUresult result, const char** name) {
    *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                               : nullptr;
    return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  static CUresult GetErrorString(CUresult result, const char** text) {
    *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : nullptr;
    return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }

  static CUresult DeviceGetCount(int* count) {
    *count = current->device_count;
    return current->Begin("cuDeviceGetCount");
  }
  static CUresult DeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return current->Begin("cuDeviceGet");
  }
  static CUresult DeviceGetName(char* name, int length, CUdevice) {
    std::strncpy(name, "fake", length);
    return current->Begin("cuDeviceGetName");
  }
  static CUresult DeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
    *value = current->has_virtual_memory ? 1 : 0;
    return current->Begin("cuDeviceGetAttribute");
  }
  static CUresult DeviceTotalMem(size_t* bytes, CUdevice) {
    *bytes = current->memory_per_device;
    return current->Begin("cuDeviceTotalMem");
  }
  static CUresult DeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
    *can = current->peers_reach_each_other ? 1 : 0;
    return current->Begin("cuDeviceCanAccessPeer");
  }

  static CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    const CUresult result = current->Begin("cuDevicePrimaryCtxRetain");
    if (result != CUDA_SUCCESS) return result;
    ++current->retained[device];
    *context = FakeCuda::ContextOf(device);
    return CUDA_SUCCESS;
  }
  static CUresult DevicePrimaryCtxRelease(CUdevice device) {
    if (current->retained[device] == 0) return CUDA_ERROR_INVALID_CONTEXT;
    --current->retained[device];
    return current->Begin("cuDevicePrimaryCtxRelease");
  }
  static CUresult CtxPushCurrent(CUcontext context) {
    const CUresult result = current->Begin("cuCtxPushCurrent");
    if (result == CUDA_SUCCESS) current->context_stack.push_back(context);
    return result;
  }
  static CUresult CtxPopCurrent(CUcontext* context) {
    if (current->context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = current->context_stack.back();
    current->context_stack.pop_back();
    return current->Begin("cuCtxPopCurrent");
  }

  static CUresult MemGetInfo(size_t* free, size_t* total) {
    if (current->context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    for (int device = 0; device < current->device_count; ++device) {
      if (!current->ContextIs(device)) continue;
      *total = current->memory_per_device;
      *free = *total - current->UsedBytes(device);
    }
    return current->Begin("cuMemGetInfo");
  }
  static CUresult MemGetAllocationGranularity(
      size_t* granularity, const CUmemAllocationProp*,
      CUmemAllocationGranularity_flags) {
    *granularity = FakeCuda::kGranularity;
    return current->Begin("cuMemGetAllocationGranularity");
  }
  static CUresult MemAddressReserve(CUdeviceptr* address, size_t size,
                                    size_t alignment, CUdeviceptr,
                                    unsigned long long) {
    const CUresult result = current->Begin("cuMemAddressReserve");
    if (result != CUDA_SUCCESS) return result;
    CUdeviceptr next = kFirstAddress;
    if (!current->reservations.empty()) {
      const auto& [last, last_size] = *current->reservations.rbegin();
      next = last + last_size;
    }
    *address = (next + alignment - 1) / alignment * alignment;
    current->reservations[*address] = size;
    return CUDA_SUCCESS;
  }
  static CUresult MemAddressFree(CUdeviceptr address, size_t size) {
    const CUresult result = current->Begin("cuMemAddressFree");
    if (result != CUDA_SUCCESS) return result;
    const auto found = current->reservations.find(address);
    const auto mapping = current->mappings.lower_bound(address);
    if (found == current->reservations.end() || found->second != size ||
        (mapping != current->mappings.end() &&
         mapping->first < address + size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    current->reservations.erase(found);
    return CUDA_SUCCESS;
  }
  static CUresult MemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                            const CUmemAllocationProp* properties,
                            unsigned long long) {
    const CUresult result = current->Begin("cuMemCreate");
    if (result != CUDA_SUCCESS) return result;
    const int device = properties->location.id;
    if (size == 0 || size % FakeCuda::kGranularity != 0 ||
        properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (current->UsedBytes(device) + size > current->memory_per_device) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = current->next_++;
    current->handles[*handle] = {size, device};
    current->allocations_[*handle] = {size, device};
    return CUDA_SUCCESS;
  }
  static CUresult MemRelease(CUmemGenericAllocationHandle handle) {
    const CUresult result = current->Begin("cuMemRelease");
    if (result != CUDA_SUCCESS) return result;
    if (current->handles.erase(handle) == 0) return CUDA_ERROR_INVALID_VALUE;
    FreeIfUnused(handle);
    return CUDA_SUCCESS;
  }
  static CUresult MemMap(CUdeviceptr address, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle,
                         unsigned long long) {
    const CUresult result = current->Begin("cuMemMap");
    if (result != CUDA_SUCCESS) return result;
    const auto page = current->handles.find(handle);
    auto reservation = current->reservations.upper_bound(address);
    if (page == current->handles.end() || page->second.size != size ||
        offset != 0 || reservation == current->reservations.begin()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    --reservation;
    if (address + size > reservation->first + reservation->second) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (const auto& [other, mapping] : current->mappings) {
      if (other < address + size && address < other + mapping.size) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    current->mappings[address] = {size, handle, {}};
    return CUDA_SUCCESS;
  }
  static CUresult MemUnmap(CUdeviceptr address, size_t size) {
    const CUresult result = current->Begin("cuMemUnmap");
    if (result != CUDA_SUCCESS) return result;
    const auto found = current->mappings.find(address);
    if (found == current->mappings.end() || found->second.size != size) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CUmemGenericAllocationHandle handle = found->second.handle;
    current->mappings.erase(found);
    FreeIfUnused(handle);
    return CUDA_SUCCESS;
  }
  static CUresult MemSetAccess(CUdeviceptr address, size_t size,
                               const CUmemAccessDesc* access, size_t count) {
    const CUresult result = current->Begin("cuMemSetAccess");
    if (result != CUDA_SUCCESS) return result;
    std::vector<FakeCuda::Mapping*> covered;
    for (CUdeviceptr at = address; at < address + size;) {
      const auto found = current->mappings.find(at);
      if (found == current->mappings.end()) return CUDA_ERROR_INVALID_VALUE;
      covered.push_back(&found->second);
      at += found->second.size;
    }
    for (FakeCuda::Mapping* const mapping : covered) {
      for (size_t i = 0; i < count; ++i) {
        if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
          mapping->access.insert(access[i].location.id);
        }
      }
    }
    return CUDA_SUCCESS;
  }

  static CUresult StreamCreate(CUstream* stream, unsigned int flags) {
    const CUresult result = current->Begin("cuStreamCreate");
    if (result != CUDA_SUCCESS) return result;
    if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *stream = reinterpret_cast<CUstream>(current->next_++);
    return AddToContext(*stream, &current->streams);
  }
  static CUresult StreamDestroy(CUstream stream) {
    const CUresult result = OnStream("cuStreamDestroy", stream);
    if (result == CUDA_SUCCESS) current->streams.erase(stream);
    return result;
  }
  static CUresult StreamSynchronize(CUstream stream) {
    return OnStream("cuStreamSynchronize", stream);
  }
  static CUresult StreamWaitEvent(CUstream stream, CUevent event,
                                  unsigned int) {
    if (!current->events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
    return OnStream("cuStreamWaitEvent", stream);
  }
  static CUresult EventCreate(CUevent* event, unsigned int flags) {
    const CUresult result = current->Begin("cuEventCreate");
    if (result != CUDA_SUCCESS) return result;
    if (flags != CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_VALUE;
    *event = reinterpret_cast<CUevent>(current->next_++);
    return AddToContext(*event, &current->events);
  }
  static CUresult EventDestroy(CUevent event) {
    const CUresult result = OnEvent("cuEventDestroy", event);
    if (result == CUDA_SUCCESS) current->events.erase(event);
    return result;
  }
  static CUresult EventRecord(CUevent event, CUstream stream) {
    if (!current->events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
    return OnStream("cuEventRecord", stream);
  }
  static CUresult EventQuery(CUevent event) {
    const CUresult result = OnEvent("cuEventQuery", event);
    if (result != CUDA_SUCCESS) return result;
    return current->events_are_complete ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult EventSynchronize(CUevent event) {
    return OnEvent("cuEventSynchronize", event);
  }

  static CUresult MemcpyHtoDAsync(CUdeviceptr to, const void*, size_t,
                                  CUstream stream) {
    return OnMemory("cuMemcpyHtoDAsync", to, stream);
  }
  static CUresult MemcpyDtoHAsync(void*, CUdeviceptr from, size_t,
                                  CUstream stream) {
    return OnMemory("cuMemcpyDtoHAsync", from, stream);
  }
  static CUresult MemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr, size_t,
                                  CUstream stream) {
    return OnMemory("cuMemcpyDtoDAsync", to, stream);
  }
  static CUresult MemsetD8Async(CUdeviceptr to, unsigned char, size_t,
                                CUstream stream) {
    return OnMemory("cuMemsetD8Async", to, stream);
  }
  static CUresult LaunchHostFunc(CUstream stream, CUhostFn function,
                                 void* data) {
    const CUresult result = OnStream("cuLaunchHostFunc", stream);
    if (result == CUDA_SUCCESS) function(data);
    return result;
  }

  static CUresult MemHostAlloc(void** memory, size_t size, unsigned int) {
    const CUresult result = current->Begin("cuMemHostAlloc");
    if (result != CUDA_SUCCESS) return result;
    if (current->context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *memory = std::malloc(size);
    current->pinned.insert(*memory);
    return CUDA_SUCCESS;
  }
  static CUresult MemFreeHost(void* memory) {
    const CUresult result = current->Begin("cuMemFreeHost");
    if (result != CUDA_SUCCESS) return result;
    if (current->pinned.erase(memory) == 0) return CUDA_ERROR_INVALID_VALUE;
    std::free(memory);
    return CUDA_SUCCESS;
  }

  static void FreeIfUnused(CUmemGenericAllocationHandle handle) {
    if (current->handles.contains(handle)) return;
    for (const auto& [address, mapping] : current->mappings) {
      if (mapping.handle == handle) return;
    }
    current->allocations_.erase(handle);
  }
  template <typename Object>
  static CUresult AddToContext(Object object, std::map<Object, int>* objects) {
    for (int device = 0; device < current->device_count; ++device) {
      if (!current->ContextIs(device)) continue;
      (*objects)[object] = device;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  static CUresult OnStream(const char* function, CUstream stream) {
    const CUresult result = current->Begin(function);
    if (result != CUDA_SUCCESS) return result;
    const auto found = current->streams.find(stream);
    if (found == current->streams.end()) return CUDA_ERROR_INVALID_HANDLE;
    return current->ContextIs(found->second) ? CUDA_SUCCESS
                                             : CUDA_ERROR_INVALID_CONTEXT;
  }
  static CUresult OnEvent(const char* function, CUevent event) {
    const CUresult result = current->Begin(function);
    if (result != CUDA_SUCCESS) return result;
    const auto found = current->events.find(event);
    if (found == current->events.end()) return CUDA_ERROR_INVALID_HANDLE;
    return current->ContextIs(found->second) ? CUDA_SUCCESS
                                             : CUDA_ERROR_INVALID_CONTEXT;
  }
  // The device of the stream must have access to the address.
  static CUresult OnMemory(const char* function, CUdeviceptr address,
                           CUstream stream) {
    const CUresult result = OnStream(function, stream);
    if (result != CUDA_SUCCESS) return result;
    auto mapping = current->mappings.upper_bound(address);
    if (mapping == current->mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
    --mapping;
    return address < mapping->first + mapping->second.size &&
                   mapping->second.access.contains(current->streams[stream])
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  }
};

FakeCuda::FakeCuda() { current = this; }

FakeCuda::~FakeCuda() {
  for (void* const memory : pinned) std::free(memory);
  current = nullptr;
}

CudaFunctionTable FakeCuda::Table() const {
  CudaFunctionTable table;
#define QUIRE_SET_FAKE_FUNCTION(member, name, declaration) \
  table.member = &FakeCudaFunctions::member;
  QUIRE_CUDA_FUNCTIONS(QUIRE_SET_FAKE_FUNCTION)
#undef QUIRE_SET_FAKE_FUNCTION
  return table;
}

void FakeCuda::FailCall(const std::string& function, int n, CUresult result) {
  faults_.insert({function, {calls_[function] + n, result}});
}

CUresult FakeCuda::Begin(const char* function) {
  const int call = ++calls_[function];
  const auto [first, last] = faults_.equal_range(function);
  for (auto fault = first; fault != last; ++fault) {
    if (fault->second.call == call) return fault->second.result;
  }
  return CUDA_SUCCESS;
}

bool FakeCuda::Empty() const {
  for (const auto& [device, times] : retained) {
    if (times != 0) return false;
  }
  return reservations.empty() && handles.empty() && mappings.empty() &&
         allocations_.empty() && context_stack.empty() && streams.empty() &&
         events.empty() && pinned.empty();
}

CUcontext FakeCuda::ContextOf(int device) {
  return reinterpret_cast<CUcontext>(uintptr_t{0x1000} + device);
}

bool FakeCuda::ContextIs(int device) const {
  return !context_stack.empty() && context_stack.back() == ContextOf(device);
}

size_t FakeCuda::UsedBytes(int device) const {
  size_t used = 0;
  for (const auto& [handle, allocation] : allocations_) {
    if (allocation.device == device) used += allocation.size;
  }
  return used;
}

}  // namespace quire
