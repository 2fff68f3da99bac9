// A segment of PyTorch's caching allocator that grows: addresses for more than
// the device has, backed in granules, each one physical allocation. Memory is
// O(granules up to the last one that was backed).

#ifndef QUIRE_BENCH_POLICIES_PYTORCH_SEGMENT_H_
#define QUIRE_BENCH_POLICIES_PYTORCH_SEGMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"

namespace quire {

class ExpandableSegment {
 public:
  struct Range {
    uint64_t address = 0;
    uint64_t size = 0;
  };

  // Addresses for `size` bytes, rounded up to granules.
  static absl::StatusOr<ExpandableSegment> Create(Driver* driver, uint64_t size,
                                                  uint64_t granule);

  uint64_t address() const { return address_.value(); }
  uint64_t size() const { return count_ * granule_; }

  // Backs the granules that hold the range, and returns what these are. All or
  // nothing. REQUIRES: none of them is backed. Errors: the driver's.
  absl::StatusOr<Range> Map(Range range);
  // Gives back the granules that lie wholly in the range: perhaps none.
  absl::StatusOr<Range> Unmap(Range range);
  // What Unmap would give back.
  Range WholeGranules(Range range) const;

 private:
  ExpandableSegment(Driver* driver, DeviceAddress address, uint64_t granule,
                    uint64_t count)
      : driver_(driver), address_(address), granule_(granule), count_(count) {}

  Driver* driver_;
  DeviceAddress address_;
  uint64_t granule_;
  uint64_t count_;
  std::vector<PageHandle> granules_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_PYTORCH_SEGMENT_H_
