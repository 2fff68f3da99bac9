// Carries bytes of files to the device in stream order, again and again: the
// disk tier of offloaded weights.
//
// A few pinned buffers lie between. A read is a function on a stream of its
// buffer, its copy follows on the caller's stream, and events keep the two from
// overtaking each other in a buffer; so the caller queues as much as it likes,
// no thread of its own waits for the disk, and as many reads are in flight as
// there are buffers. Buffers are pinned when first used.
//
// A read that fails is found after the fact, with TakeFailure: the copies that
// were queued behind it ran, on whatever was in the buffers. Until it is taken,
// no further read is made.
//
// Not thread-safe, apart from what runs on the streams.

#ifndef QUIRE_LOADER_DISK_FEED_H_
#define QUIRE_LOADER_DISK_FEED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/random_access_file.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

// A run of bytes of a file, and where it goes.
struct DiskPiece {
  const RandomAccessFile* file = nullptr;  // outlives what was queued
  uint64_t offset = 0;
  uint64_t size = 0;
  DeviceAddress to;
};

class DiskFeed {
 public:
  // REQUIRES: at least one buffer, of at least a byte.
  DiskFeed(Driver* driver, DeviceId device, size_t buffers, Bytes buffer_size);
  // REQUIRES: Close was called.
  ~DiskFeed() = default;
  DiskFeed(const DiskFeed&) = delete;
  DiskFeed& operator=(const DiskFeed&) = delete;

  // Queues the pieces. They are on the device when `copies`, always the same
  // stream, has passed this call. After an error part of them may be.
  absl::Status Queue(std::span<const DiskPiece> pieces, StreamId copies);
  // The first failure of a read since the last call. REQUIRES: the copies that
  // the caller asks about are over.
  absl::Status TakeFailure();

  // A pinned buffer for the caller, while nothing is queued.
  absl::StatusOr<std::span<std::byte>> Borrow();
  Bytes pinned() const;
  // Gives everything back. REQUIRES: `copies` was drained. Where the driver
  // does not confirm that the reads are over, buffers are kept for good, and
  // the error says so.
  absl::Status Close();

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    std::optional<StreamId> reads;
    std::optional<EventId> filled;   // on the stream of reads
    std::optional<EventId> emptied;  // on the stream of copies
  };
  struct Failure {
    Mutex mutex;
    absl::Status first ABSL_GUARDED_BY(mutex);
  };

  absl::Status Open(Buffer* buffer);
  absl::Status QueueChunk(const DiskPiece& chunk, StreamId copies);

  Driver* const driver_;
  const DeviceId device_;
  const Bytes buffer_size_;
  std::vector<Buffer> buffers_;
  size_t next_ = 0;  // the buffer of the next chunk
  // Shared with functions that are still queued.
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
};

}  // namespace quire

#endif  // QUIRE_LOADER_DISK_FEED_H_
