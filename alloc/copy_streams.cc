#include "alloc/copy_streams.h"

#include "quire/alloc/status_macros.h"

namespace quire {

absl::Status CopyStreams::Open(DeviceId device) {
  for (StreamId& stream : streams_) {
    QUIRE_ASSIGN_OR_RETURN(stream, driver_->CreateStream(device));
  }
  return absl::OkStatus();
}

absl::Status CopyStreams::Synchronize() const {
  for (size_t i = 0; i < kCount; ++i) QUIRE_RETURN_IF_ERROR(Synchronize(i));
  return absl::OkStatus();
}

CopyStreams::~CopyStreams() {
  for (const StreamId stream : streams_) {
    if (stream == StreamId()) continue;
    // A refusal may have been passing, and to destroy a stream is to wait for
    // it: a second try costs nothing.
    (void)driver_->SynchronizeStream(stream);
    if (!driver_->DestroyStream(stream).ok()) {
      (void)driver_->DestroyStream(stream);
    }
  }
}

}  // namespace quire
