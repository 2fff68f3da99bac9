// What the devices of the fake of NVIDIA's driver are like.

#ifndef QUIRE_ALLOC_TESTING_FAKE_CUDA_OPTIONS_H_
#define QUIRE_ALLOC_TESTING_FAKE_CUDA_OPTIONS_H_

#include <cstddef>

namespace quire {

struct FakeCudaOptions {
  int device_count = 1;
  // Physical memory of each device.
  size_t memory_per_device = size_t{128} << 20;
  // A power of two from the host's page size on.
  size_t granularity = size_t{2} << 20;
  // What is recommended; 0: the same.
  size_t recommended_granularity = 0;
  // Reservations together; the driver's error for both is "out of memory".
  size_t address_space = size_t{1} << 47;
  // Without, a device may be larger than the machine: every call is checked
  // alike, what work writes is dropped and what it reads is zeros.
  bool backing = true;
  bool has_virtual_memory = true;
  bool peers_reach_each_other = true;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_CUDA_OPTIONS_H_
