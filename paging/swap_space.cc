#include "paging/swap_space.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Of a slab, where a single request needs no more: pinned in some ten
// milliseconds.
constexpr Bytes kSlab = MiB(64);

}  // namespace

// ---- SwapBlocks -------------------------------------------------------------

SwapBlocks::SwapBlocks(SwapBlocks&& other) noexcept
    : space_(std::exchange(other.space_, nullptr)),
      blocks_(std::exchange(other.blocks_, {})) {}

SwapBlocks& SwapBlocks::operator=(SwapBlocks&& other) noexcept {
  std::swap(space_, other.space_);
  std::swap(blocks_, other.blocks_);
  return *this;
}

SwapBlocks::~SwapBlocks() {
  if (space_ != nullptr) space_->GiveBack(blocks_);
}

SwapBlocks SwapBlocks::TakeLast() {
  SwapBlocks last(space_, {blocks_.back()});
  blocks_.pop_back();
  return last;
}

// ---- SwapSpace --------------------------------------------------------------

SwapSpace::SwapSpace(Driver* driver, Bytes block, Bytes limit)
    : driver_(driver),
      block_(block),
      most_blocks_(limit.value() / block.value()) {}

SwapSpace::~SwapSpace() {
  MutexLock lock(&mutex_);
  // Nothing can be done about memory that the driver will not take back.
  for (std::byte* slab : slabs_) (void)driver_->FreePinned(slab);
}

absl::StatusOr<std::optional<SwapBlocks>> SwapSpace::Take(uint64_t count) {
  MutexLock lock(&mutex_);
  const uint64_t free = most_blocks_ - (blocks_ - free_.size());
  if (count > free)
    return absl::ResourceExhaustedError(
        absl::StrCat("swap space: ", count, " pages of ", FormatBytes(block_),
                     ", and ", free, " of its ", most_blocks_, " are free"));
  if (count > free_.size()) return std::nullopt;
  std::vector<std::byte*> blocks;
  blocks.reserve(count);
  while (blocks.size() < count)
    blocks.push_back(free_.extract(free_.begin()).value());
  return SwapBlocks(this, std::move(blocks));
}

absl::Status SwapSpace::Pin(uint64_t count) {
  MutexLock pinning(&pin_mutex_);
  uint64_t blocks = 0;
  {
    MutexLock lock(&mutex_);
    if (free_.size() >= count) return absl::OkStatus();
    blocks =
        std::min(std::max(count - free_.size(), kSlab.value() / block_.value()),
                 most_blocks_ - blocks_);
  }
  // All are pinned, and others have them.
  if (blocks == 0) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(
      void* const memory,
      driver_->AllocatePinned(Bytes(blocks * block_.value())));
  auto* const slab = static_cast<std::byte*>(memory);
  MutexLock lock(&mutex_);
  slabs_.push_back(slab);
  blocks_ += blocks;
  for (uint64_t i = 0; i < blocks; ++i) free_.insert(slab + i * block_.value());
  return absl::OkStatus();
}

void SwapSpace::GiveBack(std::span<std::byte* const> blocks) {
  MutexLock lock(&mutex_);
  free_.insert(blocks.begin(), blocks.end());
}

Bytes SwapSpace::taken() const {
  MutexLock lock(&mutex_);
  return Bytes((blocks_ - free_.size()) * block_.value());
}

Bytes SwapSpace::pinned() const {
  MutexLock lock(&mutex_);
  return Bytes(blocks_ * block_.value());
}

}  // namespace quire
