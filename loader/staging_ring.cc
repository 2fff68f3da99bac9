#include "loader/staging_ring.h"

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"

namespace quire {

StagingRing::StagingRing(Driver* driver, DeviceId device,
                         std::span<const Bytes> sizes)
    : driver_(driver), device_(device), slots_(sizes.size()) {
  for (size_t i = 0; i < sizes.size(); ++i) slots_[i].size = sizes[i];
}

absl::Status StagingRing::Open() {
  QUIRE_ASSIGN_OR_RETURN(stream_, driver_->CreateStream(device_));
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> StagingRing::Acquire(size_t buffer) {
  Slot& slot = slots_[buffer];
  if (!slot.event.has_value()) {
    QUIRE_ASSIGN_OR_RETURN(slot.event, driver_->CreateEvent(device_));
  }
  if (slot.memory == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(slot.memory, driver_->AllocatePinned(slot.size));
  }
  if (slot.sealed) {
    QUIRE_RETURN_IF_ERROR(driver_->SynchronizeEvent(*slot.event));
    slot.sealed = false;
  }
  return static_cast<std::byte*>(slot.memory);
}

absl::Status StagingRing::Copy(size_t buffer, size_t offset, size_t size,
                               DeviceAddress to) {
  const auto* memory = static_cast<const std::byte*>(slots_[buffer].memory);
  return driver_->CopyToDevice(to, memory + offset, Bytes(size), *stream_);
}

absl::Status StagingRing::Seal(size_t buffer) {
  Slot& slot = slots_[buffer];
  QUIRE_RETURN_IF_ERROR(driver_->RecordEvent(*slot.event, *stream_));
  slot.sealed = true;
  return absl::OkStatus();
}

absl::Status StagingRing::Drain() {
  return driver_->SynchronizeStream(*stream_);
}

Bytes StagingRing::pinned() const {
  Bytes held;
  for (const Slot& slot : slots_)
    if (slot.memory != nullptr) held = SaturatingAdd(held, slot.size);
  return held;
}

absl::Status StagingRing::Close() {
  absl::Status first_error;
  bool drained = true;
  if (stream_.has_value()) {
    drained =
        TryTwice([this] { return driver_->SynchronizeStream(*stream_); }).ok();
    const absl::Status destroyed =
        TryTwice([this] { return driver_->DestroyStream(*stream_); });
    // Destroying a stream waits for its work as well.
    drained = drained || destroyed.ok();
    first_error.Update(destroyed);
    stream_.reset();
  }
  for (Slot& slot : slots_) {
    if (slot.event.has_value()) {
      first_error.Update(
          TryTwice([&] { return driver_->DestroyEvent(*slot.event); }));
      slot.event.reset();
    }
    if (slot.memory != nullptr && drained) {
      first_error.Update(
          TryTwice([&] { return driver_->FreePinned(slot.memory); }));
      slot.memory = nullptr;
    }
  }
  if (!drained && !pinned().zero()) {
    return absl::InternalError(absl::StrCat(
        FormatBytes(pinned()),
        " of staging memory stay pinned: the device would not say that its "
        "copies are over: ",
        first_error.message()));
  }
  return first_error;
}

}  // namespace quire
