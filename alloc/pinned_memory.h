// Pinned host memory that goes back to its driver.

#ifndef QUIRE_ALLOC_PINNED_MEMORY_H_
#define QUIRE_ALLOC_PINNED_MEMORY_H_

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"

namespace quire {

class PinnedMemory {
 public:
  // `driver` outlives it.
  static absl::StatusOr<PinnedMemory> Allocate(Driver* driver, Bytes size) {
    QUIRE_ASSIGN_OR_RETURN(void* const memory, driver->AllocatePinned(size));
    return PinnedMemory(driver, static_cast<std::byte*>(memory));
  }
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept
      : driver_(other.driver_), data_(std::exchange(other.data_, nullptr)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~PinnedMemory() {
    // A refusal may have been passing: a second try costs nothing.
    if (data_ != nullptr && !driver_->FreePinned(data_).ok()) {
      (void)driver_->FreePinned(data_);
    }
  }

  std::byte* data() const { return data_; }

 private:
  PinnedMemory(Driver* driver, std::byte* data)
      : driver_(driver), data_(data) {}

  Driver* driver_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PINNED_MEMORY_H_
