// The pinned host memory of the fake of NVIDIA's driver.
//
// [names] of rules: docs/driver_rules.md, which quotes the documentation.
//
// Thread-safe.

#ifndef QUIRE_ALLOC_TESTING_FAKE_CUDA_PINNED_H_
#define QUIRE_ALLOC_TESTING_FAKE_CUDA_PINNED_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "quire/alloc/mutex.h"

namespace quire {

class FakeCudaPinned {
 public:
  // One allocation, or memory that was registered. Queued copies hold it, so
  // that what is given back under them is found out rather than touched.
  class Block {
   public:
    Block(CUdevice device, std::byte* start, size_t size, bool registered)
        : device_(device),
          start_(start),
          size_(size),
          registered_(registered) {}
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    CUdevice device() const { return device_; }
    const std::byte* start() const { return start_; }
    size_t size() const { return size_; }
    bool registered() const { return registered_; }
    void Free() { freed_ = true; }
    bool freed() const { return freed_; }

   private:
    const CUdevice device_;  // of the context that allocated it
    std::byte* const start_;
    const size_t size_;
    const bool registered_;  // else the memory goes with the block
    std::atomic<bool> freed_{false};
  };

  CUresult Allocate(CUdevice current, void** memory, size_t size,
                    unsigned flags);
  CUresult Free(void* memory);
  CUresult Register(CUdevice current, void* memory, size_t size,
                    unsigned flags);
  CUresult Unregister(void* memory);
  // The context of the device was reset: its memory is gone.
  void Reset(CUdevice device);
  // The block that holds the address; null for other host memory.
  std::shared_ptr<const Block> Find(const void* address) const;

  // ---- For tests ----
  size_t block_count() const;
  void AppendLeaks(std::vector<std::string>* leaks) const;

 private:
  mutable Mutex mutex_;
  std::map<const std::byte*, std::shared_ptr<Block>> blocks_
      ABSL_GUARDED_BY(mutex_);  // by start
};

}  // namespace quire

#endif  // QUIRE_ALLOC_TESTING_FAKE_CUDA_PINNED_H_
