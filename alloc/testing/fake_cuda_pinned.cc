#include "alloc/testing/fake_cuda_pinned.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>

#include "absl/strings/str_format.h"
#include "quire/alloc/units.h"

namespace quire {

namespace {

bool IsMemory(void* start, size_t size) {
  // Changes nothing of anonymous memory, and fails where nothing is mapped.
  return msync(start, size, MS_ASYNC) == 0;
}

}  // namespace

FakeCudaPinned::Block::~Block() {
  if (!registered_) munmap(start_, size_);
}

CUresult FakeCudaPinned::Allocate(CUdevice current, void** memory, size_t size,
                                  unsigned flags) {
  constexpr unsigned kKnown = CU_MEMHOSTALLOC_PORTABLE |
                              CU_MEMHOSTALLOC_DEVICEMAP |
                              CU_MEMHOSTALLOC_WRITECOMBINED;
  // [pinned-arguments]
  if (memory == nullptr || size == 0 || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* const start = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  // [pinned-exhausted]
  if (start == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = start;
  auto* const bytes = static_cast<std::byte*>(start);
  MutexLock lock(&mutex_);
  blocks_[bytes] = std::make_shared<Block>(current, bytes, size, false);
  return CUDA_SUCCESS;
}

CUresult FakeCudaPinned::Free(void* memory) {
  MutexLock lock(&mutex_);
  const auto block = blocks_.find(static_cast<const std::byte*>(memory));
  // [pinned-free]
  if (block == blocks_.end() || block->second->registered()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  block->second->Free();
  blocks_.erase(block);
  return CUDA_SUCCESS;
}

CUresult FakeCudaPinned::Register(CUdevice current, void* memory, size_t size,
                                  unsigned flags) {
  constexpr unsigned kKnown =
      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // [register-arguments]
  if (memory == nullptr || size == 0 || (flags & ~kKnown) != 0 ||
      reinterpret_cast<uintptr_t>(memory) % page != 0 || size % page != 0 ||
      !IsMemory(memory, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto* const start = static_cast<std::byte*>(memory);
  MutexLock lock(&mutex_);
  // [register-once]
  const auto next = blocks_.lower_bound(start);
  if (next != blocks_.end() && next->first < start + size) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  if (next != blocks_.begin()) {
    const Block& before = *std::prev(next)->second;
    if (before.start() + before.size() > start) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
  }
  blocks_[start] = std::make_shared<Block>(current, start, size, true);
  return CUDA_SUCCESS;
}

CUresult FakeCudaPinned::Unregister(void* memory) {
  MutexLock lock(&mutex_);
  const auto block = blocks_.find(static_cast<const std::byte*>(memory));
  // [unregister-base]
  if (block == blocks_.end() || !block->second->registered()) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  block->second->Free();
  blocks_.erase(block);
  return CUDA_SUCCESS;
}

void FakeCudaPinned::Reset(CUdevice device) {
  MutexLock lock(&mutex_);
  std::erase_if(blocks_, [&](const auto& entry) {
    if (entry.second->device() != device) return false;
    entry.second->Free();
    return true;
  });
}

std::shared_ptr<const FakeCudaPinned::Block> FakeCudaPinned::Find(
    const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  MutexLock lock(&mutex_);
  const auto next = blocks_.upper_bound(byte);
  if (next == blocks_.begin()) return nullptr;
  const std::shared_ptr<Block>& block = std::prev(next)->second;
  const size_t offset = byte - block->start();
  return offset < block->size() ? block : nullptr;
}

size_t FakeCudaPinned::block_count() const {
  MutexLock lock(&mutex_);
  return blocks_.size();
}

void FakeCudaPinned::AppendLeaks(std::vector<std::string>* leaks) const {
  MutexLock lock(&mutex_);
  for (const auto& [start, block] : blocks_) {
    leaks->push_back(absl::StrFormat("pinned host memory of %s at %p",
                                     FormatBytes(Bytes(block->size())), start));
  }
}

}  // namespace quire
