#include "alloc/size_classes.h"

#include <algorithm>
#include <bit>

#include "quire/alloc/allocator.h"

namespace quire {
namespace {

// Sizes are counted in grains here.
constexpr uint64_t kGrain = kDefaultAlignment.value();
// The classes up to this many grains are every multiple; each doubling above
// has kSteps classes.
constexpr uint64_t kLinearGrains = 16;
constexpr int kSteps = 8;
constexpr int kStepBits = 3;
static_assert(kSteps == 1 << kStepBits);
static_assert(kLinearGrains == 2 * kSteps);

constexpr int ClassOfGrains(uint64_t grains) {
  if (grains <= kLinearGrains) return static_cast<int>(grains) - 1;
  const int shift = std::bit_width(grains - 1) - (kStepBits + 1);
  return shift * kSteps + static_cast<int>((grains - 1) >> shift);
}

constexpr uint64_t GrainsOfClass(int size_class) {
  if (size_class < static_cast<int>(kLinearGrains)) return size_class + 1;
  const int shift = size_class / kSteps - 1;
  return (static_cast<uint64_t>(size_class - shift * kSteps) + 1) << shift;
}

static_assert(ClassOfGrains(16) == 15 && GrainsOfClass(15) == 16);
static_assert(ClassOfGrains(17) == 16 && GrainsOfClass(16) == 18);
static_assert(ClassOfGrains(33) == 24 && GrainsOfClass(24) == 36);

}  // namespace

SizeClasses::SizeClasses(Bytes page_size) : page_size_(page_size) {
  const uint64_t page = page_size.value();
  const int last = ClassOfGrains(page / 2 / kGrain);
  classes_.reserve(last + 1);
  for (int i = 0; i <= last; ++i) {
    const uint64_t slot = GrainsOfClass(i) * kGrain;
    uint64_t pages = 1;
    while (pages * page % slot > pages * page / 8) ++pages;
    classes_.push_back({Bytes(slot), PageCount(pages),
                        static_cast<uint32_t>(pages * page / slot)});
  }
}

std::optional<int> SizeClasses::ClassFor(Bytes size, Bytes alignment) const {
  // Slabs start at a multiple of the page size, so a slot has the alignment of
  // its size, up to that.
  if (size > largest() || alignment > largest()) return std::nullopt;
  const uint64_t least =
      std::max({size.value(), alignment.value(), uint64_t{1}});
  int size_class = ClassOfGrains((least + kGrain - 1) / kGrain);
  // Ends at the next power of two at the latest.
  while (size_class < count() &&
         slot_size(size_class).value() % alignment.value() != 0) {
    ++size_class;
  }
  if (size_class == count()) return std::nullopt;
  return size_class;
}

}  // namespace quire
