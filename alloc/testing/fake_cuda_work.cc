// The functions of FakeCuda that create streams and events and give them work.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>

#include "alloc/testing/fake_cuda.h"

namespace quire {
namespace {

// A copy goes in steps: memory may be unmapped between any two of them, which
// is what goes wrong when an unmap does not wait for the copy.
constexpr size_t kStepBytes = size_t{1} << 20;

void* Pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

bool IsFreed(const std::shared_ptr<const FakeCudaPinned::Block>& block) {
  return block != nullptr && block->freed();
}

}  // namespace

// ---- Streams and events -----------------------------------------------------

CUresult FakeCuda::StreamCreate(CUstream* stream, unsigned flags) {
  return InContext([&](CUdevice current) {
    return streams_.CreateStream(current, stream, flags);
  });
}

CUresult FakeCuda::StreamDestroy(CUstream stream) {
  return InContext([&](CUdevice) { return streams_.DestroyStream(stream); });
}

CUresult FakeCuda::StreamSynchronize(CUstream stream) {
  return InContext([&](CUdevice) { return streams_.Synchronize(stream); });
}

CUresult FakeCuda::StreamWaitEvent(CUstream stream, CUevent event,
                                   unsigned flags) {
  return InContext(
      [&](CUdevice) { return streams_.WaitEvent(stream, event, flags); });
}

CUresult FakeCuda::EventCreate(CUevent* event, unsigned flags) {
  return InContext([&](CUdevice current) {
    return streams_.CreateEvent(current, event, flags);
  });
}

CUresult FakeCuda::EventDestroy(CUevent event) {
  return InContext([&](CUdevice) { return streams_.DestroyEvent(event); });
}

CUresult FakeCuda::EventRecord(CUevent event, CUstream stream) {
  return InContext([&](CUdevice) { return streams_.Record(event, stream); });
}

// The only one of them that needs no context.
CUresult FakeCuda::EventQuery(CUevent event) { return streams_.Query(event); }

CUresult FakeCuda::EventSynchronize(CUevent event) {
  return InContext([&](CUdevice) { return streams_.SynchronizeEvent(event); });
}

// ---- Copies -----------------------------------------------------------------

CUresult FakeCuda::SubmitSteps(CUstream stream, size_t size,
                               std::function<bool(const Step&)> work) {
  return InContext([&](CUdevice current) {
    return streams_.Submit(current, stream, [=, this] {
      for (size_t offset = 0; offset < size; offset += kStepBytes) {
        const size_t bytes = std::min(kStepBytes, size - offset);
        if (work({current, offset, bytes})) continue;
        // [failure-stays]
        streams_.Fail(CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
      }
    });
  });
}

CUresult FakeCuda::MemcpyHtoDAsync(CUdeviceptr to, const void* from,
                                   size_t size, CUstream stream) {
  if (from == nullptr && size > 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult checked = memory_->CheckArgument(to, size);
      checked != CUDA_SUCCESS) {
    return checked;
  }
  return SubmitSteps(
      stream, size, [=, this, block = pinned_.Find(from)](const Step& step) {
        const FakeCudaMemory::Range range = {
            to + step.offset, step.bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        // [pinned-in-use]
        return !IsFreed(block) && memory_->Touch(step.device, {&range, 1}, [&] {
          if (!options_.backing) return;
          std::memcpy(Pointer(range.address),
                      static_cast<const std::byte*>(from) + step.offset,
                      step.bytes);
        });
      });
}

CUresult FakeCuda::MemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size,
                                   CUstream stream) {
  if (to == nullptr && size > 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult checked = memory_->CheckArgument(from, size);
      checked != CUDA_SUCCESS) {
    return checked;
  }
  return SubmitSteps(
      stream, size, [=, this, block = pinned_.Find(to)](const Step& step) {
        const FakeCudaMemory::Range range = {from + step.offset, step.bytes,
                                             CU_MEM_ACCESS_FLAGS_PROT_READ};
        std::byte* const host = static_cast<std::byte*>(to) + step.offset;
        return !IsFreed(block) && memory_->Touch(step.device, {&range, 1}, [&] {
          if (options_.backing) {
            std::memcpy(host, Pointer(range.address), step.bytes);
          } else {
            std::memset(host, 0, step.bytes);
          }
        });
      });
}

CUresult FakeCuda::MemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from,
                                   size_t size, CUstream stream) {
  for (const CUdeviceptr address : {to, from}) {
    if (const CUresult checked = memory_->CheckArgument(address, size);
        checked != CUDA_SUCCESS) {
      return checked;
    }
  }
  return SubmitSteps(stream, size, [=, this](const Step& step) {
    const std::array<FakeCudaMemory::Range, 2> ranges = {
        {{to + step.offset, step.bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
         {from + step.offset, step.bytes, CU_MEM_ACCESS_FLAGS_PROT_READ}}};
    return memory_->Touch(step.device, ranges, [&] {
      if (!options_.backing) return;
      std::memcpy(Pointer(ranges[0].address), Pointer(ranges[1].address),
                  step.bytes);
    });
  });
}

CUresult FakeCuda::MemsetD8Async(CUdeviceptr to, unsigned char value,
                                 size_t size, CUstream stream) {
  if (const CUresult checked = memory_->CheckArgument(to, size);
      checked != CUDA_SUCCESS) {
    return checked;
  }
  return SubmitSteps(stream, size, [=, this](const Step& step) {
    const FakeCudaMemory::Range range = {to + step.offset, step.bytes,
                                         CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return memory_->Touch(step.device, {&range, 1}, [&] {
      if (!options_.backing) return;
      std::memset(Pointer(range.address), value, step.bytes);
    });
  });
}

CUresult FakeCuda::LaunchHostFunc(CUstream stream, CUhostFn function,
                                  void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // [host-function-order] [host-function-failure] Submit sees to both.
  return InContext([&](CUdevice current) {
    return streams_.Submit(current, stream, [=] { function(data); });
  });
}

}  // namespace quire
