// Host functions that are queued on CUDA streams.
//
// A device that has failed drops what is queued on it, host functions too, and
// says nothing of it. So they belong to this object and not to the queue: those
// that never run go with it.
//
// Thread-safe.

#ifndef QUIRE_ALLOC_CUDA_HOST_FUNCTIONS_H_
#define QUIRE_ALLOC_CUDA_HOST_FUNCTIONS_H_

#include <functional>
#include <list>

#include "absl/status/status.h"
#include "alloc/cuda_function_table.h"
#include "quire/alloc/mutex.h"

namespace quire {

class CudaHostFunctions {
 public:
  // `launch` queues what the driver is to call, with its argument.
  using Launch = std::function<absl::Status(CUhostFn function, void* argument)>;

  CudaHostFunctions() = default;
  // REQUIRES: the streams are destroyed, so that nothing will run any more.
  ~CudaHostFunctions() = default;
  CudaHostFunctions(const CudaHostFunctions&) = delete;
  CudaHostFunctions& operator=(const CudaHostFunctions&) = delete;

  // Where `launch` fails, `function` is gone when the call returns.
  absl::Status Add(std::function<void()> function, const Launch& launch);

 private:
  struct Entry {
    CudaHostFunctions* owner;
    std::function<void()> function;
    std::list<Entry>::iterator self;
  };

  static void CUDA_CB Run(void* argument);
  std::function<void()> Take(Entry* entry);

  Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_ALLOC_CUDA_HOST_FUNCTIONS_H_
