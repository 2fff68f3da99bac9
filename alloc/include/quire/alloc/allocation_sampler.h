// Remembers where some of the live allocations were made: for leak reports.
//
// One allocation in so many bytes is sampled, at random, so that the samples
// stand for all: large ones are nearly always among them, small ones as often
// as their bytes weigh. An allocation that is not sampled costs a subtraction,
// a free of one that was not a load; a sample costs a stack walk and a lock.
// Names of functions are looked up when somebody asks.
//
//   AllocationSampler sampler({.interval = MiB(4)});
//   sampler.OnAllocate(address, size);   // from every thread
//   sampler.OnFree(address);
//   for (const auto& sample : sampler.Live()) ...
//
// DeviceAllocator does this by itself: DeviceAllocatorOptions::sample_interval.

#ifndef QUIRE_ALLOC_ALLOCATION_SAMPLER_H_
#define QUIRE_ALLOC_ALLOCATION_SAMPLER_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

struct AllocationSamplerOptions {
  // Bytes from one sample to the next, on average; 0: every allocation.
  Bytes interval = MiB(4);
  // Callers kept of each, innermost first. At most kMostFrames.
  size_t frames = 16;
  // More than so many live samples are not kept.
  size_t most_samples = 65536;
};

// Thread-safe.
class AllocationSampler {
 public:
  static constexpr size_t kMostFrames = 64;

  struct Sample {
    DeviceAddress address;
    Bytes size;
    // What it stands for: the expected bytes of all allocations like it, for
    // each one that was sampled.
    double weight = 0;
    std::vector<const void*> callers;  // innermost first

    Bytes EstimatedBytes() const { return EstimatedBytesOf(weight); }
  };
  // A sum of weights in whole bytes.
  static Bytes EstimatedBytesOf(double weight) {
    return Bytes(static_cast<uint64_t>(std::min(weight, 1e19)));
  }

  explicit AllocationSampler(const AllocationSamplerOptions& options = {});

  // Whether the allocation is sampled: those that are not need no OnFree.
  // `caller` is on the stack: the callers begin there. Null, or elsewhere:
  // with whoever calls OnAllocate.
  bool OnAllocate(DeviceAddress address, Bytes size,
                  const void* caller = nullptr) {
    // An allocation of no bytes is one all the same.
    const uint64_t weight = size.zero() ? 1 : size.value();
    Countdown& countdown = this_thread_;
    if (countdown.sampler == serial_ && countdown.left > weight) {
      countdown.left -= weight;
      return false;
    }
    return Consider(address, size, weight, caller);
  }
  // Before the memory may be handed out again.
  void OnFree(DeviceAddress address) {
    if (filter_[FilterIndex(address)].load(std::memory_order_relaxed) != 0) {
      Forget(address);
    }
  }

  // What was allocated at `from` lies at `to` from here on.
  void OnMove(DeviceAddress from, DeviceAddress to);

  // In order of address.
  std::vector<Sample> Live() const;
  // Of the allocation that begins at `address`, where it is sampled.
  std::optional<Sample> Find(DeviceAddress address) const;
  // Samples that were too many.
  uint64_t dropped() const;

 private:
  // Of one thread. Draws are memoryless, so that a thread which goes back and
  // forth between two samplers may draw anew each time.
  struct Countdown {
    uint64_t sampler = 0;
    uint64_t left = 0;
  };
  static constexpr size_t kFilterSize = size_t{1} << 14;

  static size_t FilterIndex(DeviceAddress address) {
    return static_cast<size_t>((address.value() * 0x9e3779b97f4a7c15) >> 50);
  }
  // The slow ways.
  bool Consider(DeviceAddress address, Bytes size, uint64_t weight,
                const void* caller);
  std::vector<const void*> Callers(const void* first) const;
  void Forget(DeviceAddress address);
  bool Keep(Sample sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Sample> Take(DeviceAddress address)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t DrawInterval() const;

  static thread_local constinit Countdown this_thread_;

  const AllocationSamplerOptions options_;
  const uint64_t serial_;
  // Live samples by a hash of their addresses: 0 where there are none.
  std::array<std::atomic<uint16_t>, kFilterSize> filter_{};
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, Sample> live_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A caller in words: "quire::Load() (libmodel.so+0x1f3c)". The function is left
// out where the program does not export its name; addr2line knows it then.
std::string DescribeCaller(const void* caller);

}  // namespace quire

#endif  // QUIRE_ALLOC_ALLOCATION_SAMPLER_H_
