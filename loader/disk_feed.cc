#include "loader/disk_feed.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"

namespace quire {

DiskFeed::DiskFeed(Driver* driver, DeviceId device, size_t buffers,
                   Bytes buffer_size)
    : driver_(driver),
      device_(device),
      buffer_size_(buffer_size),
      buffers_(buffers) {}

absl::Status DiskFeed::Open(Buffer* buffer) {
  if (!buffer->reads.has_value()) {
    QUIRE_ASSIGN_OR_RETURN(buffer->reads, driver_->CreateStream(device_));
  }
  for (std::optional<EventId>* const event :
       {&buffer->filled, &buffer->emptied}) {
    if (event->has_value()) continue;
    QUIRE_ASSIGN_OR_RETURN(*event, driver_->CreateEvent(device_));
  }
  if (buffer->memory == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(void* const memory,
                           driver_->AllocatePinned(buffer_size_));
    buffer->memory = static_cast<std::byte*>(memory);
  }
  return absl::OkStatus();
}

absl::Status DiskFeed::Queue(std::span<const DiskPiece> pieces,
                             StreamId copies) {
  for (const DiskPiece& piece : pieces) {
    uint64_t done = 0;
    while (done < piece.size) {
      DiskPiece chunk = piece;
      chunk.offset += done;
      chunk.to = DeviceAddress(piece.to.value() + done);
      // Chunks end at multiples of their size in the file, as the page cache is
      // dropped by whole pages.
      chunk.size =
          std::min(piece.size - done,
                   buffer_size_.value() - chunk.offset % buffer_size_.value());
      QUIRE_RETURN_IF_ERROR(QueueChunk(chunk, copies));
      done += chunk.size;
    }
  }
  return absl::OkStatus();
}

absl::Status DiskFeed::QueueChunk(const DiskPiece& chunk, StreamId copies) {
  Buffer& buffer = buffers_[next_];
  QUIRE_RETURN_IF_ERROR(Open(&buffer));
  QUIRE_RETURN_IF_ERROR(driver_->WaitEvent(*buffer.reads, *buffer.emptied));
  QUIRE_RETURN_IF_ERROR(driver_->LaunchHostFunction(
      *buffer.reads, [failure = failure_, chunk, memory = buffer.memory] {
        {
          MutexLock lock(&failure->mutex);
          if (!failure->first.ok()) return;
        }
        absl::Status status =
            chunk.file->Read(chunk.offset, std::span(memory, chunk.size));
        chunk.file->DropCache(chunk.offset, chunk.size);
        if (status.ok()) status = chunk.file->CheckUnchanged();
        MutexLock lock(&failure->mutex);
        failure->first.Update(status);
      }));
  QUIRE_RETURN_IF_ERROR(driver_->RecordEvent(*buffer.filled, *buffer.reads));
  QUIRE_RETURN_IF_ERROR(driver_->WaitEvent(copies, *buffer.filled));
  QUIRE_RETURN_IF_ERROR(driver_->CopyToDevice(chunk.to, buffer.memory,
                                              Bytes(chunk.size), copies));
  // Without the event, the next read into the buffer could overtake this copy:
  // then the copy is waited for here.
  if (const absl::Status recorded =
          driver_->RecordEvent(*buffer.emptied, copies);
      !recorded.ok()) {
    TryTwice([&] { return driver_->SynchronizeStream(copies); }).IgnoreError();
    return recorded;
  }
  next_ = (next_ + 1) % buffers_.size();
  return absl::OkStatus();
}

absl::Status DiskFeed::TakeFailure() {
  MutexLock lock(&failure_->mutex);
  absl::Status first = failure_->first;
  failure_->first = absl::OkStatus();
  return first;
}

absl::StatusOr<std::span<std::byte>> DiskFeed::Borrow() {
  QUIRE_RETURN_IF_ERROR(Open(&buffers_.front()));
  return std::span(buffers_.front().memory, buffer_size_.value());
}

Bytes DiskFeed::pinned() const {
  uint64_t total = 0;
  for (const Buffer& buffer : buffers_)
    total += buffer.memory == nullptr ? 0 : buffer_size_.value();
  return Bytes(total);
}

absl::Status DiskFeed::Close() {
  absl::Status first_error;
  bool all_drained = true;
  for (Buffer& buffer : buffers_) {
    bool drained = true;
    if (buffer.reads.has_value()) {
      drained = TryTwice([&] {
                  return driver_->SynchronizeStream(*buffer.reads);
                }).ok();
      const absl::Status destroyed =
          TryTwice([&] { return driver_->DestroyStream(*buffer.reads); });
      // Destroying a stream waits for its work as well.
      drained = drained || destroyed.ok();
      first_error.Update(destroyed);
      buffer.reads.reset();
    }
    all_drained = all_drained && drained;
    for (std::optional<EventId>* const event :
         {&buffer.filled, &buffer.emptied}) {
      if (!event->has_value()) continue;
      first_error.Update(
          TryTwice([&] { return driver_->DestroyEvent(**event); }));
      event->reset();
    }
    if (buffer.memory != nullptr && drained) {
      first_error.Update(
          TryTwice([&] { return driver_->FreePinned(buffer.memory); }));
      buffer.memory = nullptr;
    }
  }
  if (!all_drained && !pinned().zero())
    return absl::InternalError(absl::StrCat(
        FormatBytes(pinned()),
        " of staging memory stay pinned: the device would not say that its "
        "reads are over: ",
        first_error.message()));
  return first_error;
}

}  // namespace quire
