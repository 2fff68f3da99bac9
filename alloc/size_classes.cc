#include "alloc/size_classes.h"

#include <algorithm>

#include "quire/alloc/allocator.h"

namespace quire {
namespace {

constexpr uint64_t kLargestSlot = MiB(1).value();

}  // namespace

SizeClasses::SizeClasses(Bytes page_size) : page_size_(page_size) {
  const uint64_t page = page_size.value();
  static_assert(kGrain == kDefaultAlignment.value());
  static_assert(ClassOfGrains(16) == 15 && GrainsOfClass(15) == 16);
  static_assert(ClassOfGrains(17) == 16 && GrainsOfClass(16) == 18);
  static_assert(ClassOfGrains(33) == 24 && GrainsOfClass(24) == 36);
  const int last = ClassOfGrains(std::min(page / 2, kLargestSlot) / kGrain);
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
