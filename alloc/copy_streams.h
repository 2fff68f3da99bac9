// Streams for copies that one call makes and waits for.
//
// Two, so that one copies while the host fills or empties the memory of the
// other, and so that a device in software copies on two processors.

#ifndef QUIRE_ALLOC_COPY_STREAMS_H_
#define QUIRE_ALLOC_COPY_STREAMS_H_

#include <array>
#include <cstddef>

#include "absl/status/status.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/units.h"

namespace quire {

class CopyStreams {
 public:
  static constexpr size_t kCount = 2;

  // `driver` outlives it.
  explicit CopyStreams(Driver* driver) : driver_(driver) {}
  // Waits for what is queued: memory that is copied to or from may go once the
  // streams have gone.
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  // Makes the streams. Once, before all else.
  absl::Status Open(DeviceId device);
  StreamId at(size_t i) const { return streams_[i % kCount]; }
  absl::Status Synchronize(size_t i) const {
    return driver_->SynchronizeStream(at(i));
  }
  // All of them.
  absl::Status Synchronize() const;

 private:
  Driver* const driver_;
  std::array<StreamId, kCount> streams_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_COPY_STREAMS_H_
