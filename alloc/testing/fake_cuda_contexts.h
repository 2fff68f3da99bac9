// The contexts of the fake of NVIDIA's driver: the primary context of each
// device, and the stack of current contexts of each thread.
//
// [names] of rules: docs/driver_rules.md, which quotes the documentation.
//
// Thread-safe. What belongs to a context is kept by others and named by its
// device: primary contexts are the only ones.

#ifndef QUIRE_ALLOC_TESTING_FAKE_CUDA_CONTEXTS_H_
#define QUIRE_ALLOC_TESTING_FAKE_CUDA_CONTEXTS_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "quire/alloc/mutex.h"

namespace quire {

class FakeCudaContexts {
 public:
  // `id` tells the fakes of a process apart.
  FakeCudaContexts(uint64_t id, int device_count)
      : id_(id), retained_(device_count, 0) {}

  // REQUIRES of both: the device exists.
  CUresult Retain(CUdevice device, CUcontext* context);
  // `is_reset`: that was the last reference, so all that the context held goes.
  CUresult Release(CUdevice device, bool* is_reset);
  CUresult Push(CUcontext context);
  CUresult Pop(CUcontext* context);
  // The device of the calling thread's current context.
  CUresult FindCurrent(CUdevice* device) const;

  // ---- For tests ----
  int retained(CUdevice device) const;
  // Of the calling thread, the current one last.
  std::vector<CUcontext> stack() const;
  void AppendLeaks(std::vector<std::string>* leaks) const;

 private:
  static CUcontext ContextOf(CUdevice device);

  const uint64_t id_;
  mutable Mutex mutex_;
  std::vector<int> retained_ ABSL_GUARDED_BY(mutex_);  // by device
  // Contexts on the stacks of all threads.
  std::atomic<int64_t> pushed_{0};
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_CUDA_CONTEXTS_H_
