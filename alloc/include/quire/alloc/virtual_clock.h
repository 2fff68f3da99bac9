// A clock that driver calls advance by what they cost on a real GPU, so that a
// run without one reports what it would have spent there.

#ifndef QUIRE_ALLOC_VIRTUAL_CLOCK_H_
#define QUIRE_ALLOC_VIRTUAL_CLOCK_H_

#include <atomic>
#include <cstdint>

namespace quire {

// Nanoseconds per driver call. Per-page costs are for one 2 MiB page.
struct DriverCostTable {
  uint64_t reserve_address;
  uint64_t release_address;
  uint64_t create_page;   // per page
  uint64_t release_page;  // per page
  uint64_t map_page;      // per page
  uint64_t set_access;    // per contiguous run
  uint64_t unmap_page;    // per page
  uint64_t other;         // streams, events, copies: the call alone

  // kvcached's bench_vmm on an A100 with 4096 pages of 2 MB (create 193 us, map
  // 1.45, access 36, unmap 25.6, reserve 19); release from vAttention's paper.
  static constexpr DriverCostTable A100() {
    return {19000, 19000, 193000, 23000, 1450, 36000, 25600, 1000};
  }
  // vAttention's paper, 2 MB: reserve 2, create 29, map 2, access 38, unmap 34,
  // release 23.
  static constexpr DriverCostTable VAttentionPaper() {
    return {2000, 2000, 29000, 23000, 2000, 38000, 34000, 1000};
  }
  static constexpr DriverCostTable Free() { return {}; }
};

// Thread-safe.
class VirtualClock {
 public:
  uint64_t nanoseconds() const { return now_.load(std::memory_order_relaxed); }
  void Advance(uint64_t nanoseconds) {
    now_.fetch_add(nanoseconds, std::memory_order_relaxed);
  }

 private:
  std::atomic<uint64_t> now_{0};
};

}  // namespace quire

#endif  // QUIRE_ALLOC_VIRTUAL_CLOCK_H_
