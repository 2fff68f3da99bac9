#include "alloc/host_kernel.h"

#include <sys/mman.h>

#include <cerrno>
#include <fstream>

#include "quire/alloc/units.h"

namespace quire {
namespace {

// The kernel's default, for where its settings cannot be read.
constexpr uint64_t kDefaultMappingLimit = 65530;

constexpr int kReserveFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

int MapAt(uint64_t address, uint64_t size, int protection, int flags, int fd,
          uint64_t offset) {
  void* const mapped = mmap(Pointer(address), size, protection, flags, fd,
                            static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? errno : 0;
}

class SystemKernel : public HostKernel {
 public:
  int Reserve(uint64_t size, uint64_t* address) override {
    void* const mapped = mmap(nullptr, size, PROT_NONE, kReserveFlags, -1, 0);
    if (mapped == MAP_FAILED) return errno;
    *address = reinterpret_cast<uint64_t>(mapped);
    return 0;
  }
  int ReserveAt(uint64_t address, uint64_t size) override {
    return MapAt(address, size, PROT_NONE, kReserveFlags | MAP_FIXED_NOREPLACE,
                 -1, 0);
  }
  int MapFile(uint64_t address, uint64_t size, int fd,
              uint64_t offset) override {
    return MapAt(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 fd, offset);
  }
  int Cover(uint64_t address, uint64_t size) override {
    return MapAt(address, size, PROT_NONE, kReserveFlags | MAP_FIXED, -1, 0);
  }
  int Unmap(uint64_t address, uint64_t size) override {
    return munmap(Pointer(address), size) == 0 ? 0 : errno;
  }
};

}  // namespace

int ReserveAligned(HostKernel* kernel, uint64_t size, uint64_t alignment,
                   uint64_t* address) {
  const auto padded = CheckedAdd(size, alignment);
  if (!padded) return ENOMEM;
  uint64_t start = 0;
  if (const int error = kernel->Reserve(*padded, &start); error != 0) {
    return error;
  }
  *address = *CheckedAlignUp(start, alignment);
  const uint64_t before = *address - start;
  const uint64_t behind = *padded - size - before;
  // Refusals leave addresses reserved that nobody uses, which is harmless.
  if (before > 0) (void)kernel->Unmap(start, before);
  if (behind > 0) (void)kernel->Unmap(*address + size, behind);
  return 0;
}

HostKernel* SystemHostKernel() {
  static SystemKernel kernel;
  return &kernel;
}

uint64_t SystemMappingLimit() {
  std::ifstream file("/proc/sys/vm/max_map_count");
  uint64_t limit = 0;
  return file >> limit ? limit : kDefaultMappingLimit;
}

}  // namespace quire
