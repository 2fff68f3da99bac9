// The sizes of slots: what a small request is rounded up to.
//
// All sizes are multiples of 256 bytes, what CUDA guarantees and kernels rely
// on: up to 4 KiB every multiple, above that eight steps for each doubling. So
// a request of n bytes loses at most max(255, n / 8) bytes, and a class is
// computed from a size, not looked up. The largest class is the last one that
// fits twice into a page, and at most 1 MiB: above it a range of its own wastes
// less, and such requests are rare enough to be mapped one by one.
//
// A slab is the fewest pages of which at most an eighth is left over at the
// end: four at most, since less than half a page is left over.
//
// Immutable, thread-safe. Everything is O(1), requests with an alignment above
// 256 bytes apart, which look at some sixteen classes at most.

#ifndef QUIRE_ALLOC_SIZE_CLASSES_H_
#define QUIRE_ALLOC_SIZE_CLASSES_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "quire/alloc/units.h"

namespace quire {

class SizeClasses {
 public:
  // REQUIRES: page_size is a power of two of at least 512 bytes.
  explicit SizeClasses(Bytes page_size);

  int count() const { return static_cast<int>(classes_.size()); }
  Bytes largest() const { return classes_.back().slot_size; }

  // The smallest class of which every slot holds `size` bytes at a multiple of
  // `alignment`. Nullopt: a request for whole pages. Size 0 takes a slot, so
  // that it has an address of its own. REQUIRES: alignment is a power of two.
  std::optional<int> ClassFor(Bytes size, Bytes alignment) const;
  // The same for the default alignment. REQUIRES: size <= largest().
  int ClassOf(Bytes size) const {
    return ClassOfGrains((std::max(size.value(), uint64_t{1}) + kGrain - 1) /
                         kGrain);
  }

  Bytes slot_size(int size_class) const {
    return classes_[size_class].slot_size;
  }
  PageCount slab_pages(int size_class) const {
    return classes_[size_class].slab_pages;
  }
  uint32_t slots_per_slab(int size_class) const {
    return classes_[size_class].slots;
  }

 private:
  // Sizes are counted in grains here.
  static constexpr uint64_t kGrain = 256;
  // The classes up to this many grains are every multiple; each doubling above
  // has kSteps classes.
  static constexpr uint64_t kLinearGrains = 16;
  static constexpr int kSteps = 8;
  static constexpr int kStepBits = 3;
  static_assert(kSteps == 1 << kStepBits);
  static_assert(kLinearGrains == 2 * kSteps);

  static constexpr int ClassOfGrains(uint64_t grains) {
    if (grains <= kLinearGrains) return static_cast<int>(grains) - 1;
    const int shift = std::bit_width(grains - 1) - (kStepBits + 1);
    return shift * kSteps + static_cast<int>((grains - 1) >> shift);
  }
  static constexpr uint64_t GrainsOfClass(int size_class) {
    if (size_class < static_cast<int>(kLinearGrains)) {
      return static_cast<uint64_t>(size_class) + 1;
    }
    const int shift = size_class / kSteps - 1;
    return (static_cast<uint64_t>(size_class - shift * kSteps) + 1) << shift;
  }

  struct Class {
    Bytes slot_size;
    PageCount slab_pages;
    uint32_t slots;
  };

  Bytes page_size_;
  std::vector<Class> classes_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_SIZE_CLASSES_H_
