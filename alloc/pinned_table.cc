#include "alloc/pinned_table.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>

#include "absl/strings/str_format.h"

namespace quire {

void PinnedTable::Add(void* memory, Bytes size, Origin origin) {
  ranges_[memory] = {size, origin};
}

absl::Status PinnedTable::AddOfCaller(void* memory, Bytes size) {
  const auto start = reinterpret_cast<uint64_t>(memory);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (start == 0 || size.zero() || start % page != 0 ||
      size.value() % page != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("PinMemory: %d bytes at %p are not whole pages of %d",
                        size.value(), memory, page));
  }
  // Changes nothing of anonymous memory, and refuses what is not mapped.
  if (msync(memory, size.value(), MS_ASYNC) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "PinMemory: not all of %s at %p is memory", FormatBytes(size), memory));
  }
  const auto next = ranges_.lower_bound(memory);
  bool overlaps =
      next != ranges_.end() &&
      reinterpret_cast<uint64_t>(next->first) - start < size.value();
  if (next != ranges_.begin()) {
    const auto& [before, range] = *std::prev(next);
    overlaps |= start - reinterpret_cast<uint64_t>(before) < range.size.value();
  }
  if (overlaps) {
    return absl::FailedPreconditionError(
        absl::StrFormat("PinMemory: some of %s at %p is pinned already",
                        FormatBytes(size), memory));
  }
  Add(memory, size, Origin::kCaller);
  return absl::OkStatus();
}

absl::StatusOr<Bytes> PinnedTable::Remove(void* memory, Origin origin) {
  const auto found = ranges_.find(memory);
  if (found == ranges_.end() || found->second.origin != origin) {
    return absl::InvalidArgumentError(
        origin == Origin::kAllocated
            ? absl::StrFormat("FreePinned: %p is not pinned memory", memory)
            : absl::StrFormat("UnpinMemory: PinMemory did not pin %p", memory));
  }
  const Bytes size = found->second.size;
  ranges_.erase(found);
  return size;
}

void PinnedTable::AppendLeaks(std::vector<std::string>* leaks) const {
  for (const auto& [memory, range] : ranges_) {
    leaks->push_back(absl::StrFormat("pinned host memory of %s at %p",
                                     FormatBytes(range.size), memory));
  }
}

}  // namespace quire
