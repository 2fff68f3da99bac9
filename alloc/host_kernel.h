// The kernel's memory calls that HostDriver's addresses are made of.
//
// Behind an interface only so that tests can refuse them: at its limit of
// mappings the kernel refuses calls that can otherwise not fail.
//
// Each call returns 0 or an errno. Thread-safe.

#ifndef QUIRE_ALLOC_HOST_KERNEL_H_
#define QUIRE_ALLOC_HOST_KERNEL_H_

#include <cstdint>

namespace quire {

class HostKernel {
 public:
  virtual ~HostKernel() = default;

  // Addresses without memory, wherever the kernel likes.
  virtual int Reserve(uint64_t size, uint64_t* address) = 0;
  // The same at one place. EEXIST where anything is there.
  virtual int ReserveAt(uint64_t address, uint64_t size) = 0;
  // Part of a file, shared, readable and writable, in place of what is there.
  virtual int MapFile(uint64_t address, uint64_t size, int fd,
                      uint64_t offset) = 0;
  // Addresses without memory in place of what is there.
  virtual int Cover(uint64_t address, uint64_t size) = 0;
  // Gives the addresses back.
  virtual int Unmap(uint64_t address, uint64_t size) = 0;
};

// Addresses without memory, aligned: more than needed, cut at both ends, since
// the kernel aligns to its own page. REQUIRES: `alignment` is a power of two.
int ReserveAligned(HostKernel* kernel, uint64_t size, uint64_t alignment,
                   uint64_t* address);

// The kernel itself; never destroyed.
HostKernel* SystemHostKernel();

// How many mappings the kernel allows a process (vm.max_map_count).
uint64_t SystemMappingLimit();

}  // namespace quire

#endif  // QUIRE_ALLOC_HOST_KERNEL_H_
