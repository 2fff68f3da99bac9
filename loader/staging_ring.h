// Pinned buffers between the disk and the device, with the stream that empties
// them and an event per buffer that says when.
//
// Nothing is taken from the driver before it is needed: the stream by Open, a
// buffer and its event when the buffer is first acquired. Close gives all of it
// back, and first waits for the copies in flight: a driver that reads a buffer
// which is gone corrupts memory without a sign.
//
// One buffer: Acquire -> write -> Copy... -> Seal -> Acquire, which waits for
// the copies. Different buffers may be in different hands at once; the steps of
// one buffer, and Copy and Seal of all, are ordered by the caller.

#ifndef QUIRE_LOADER_STAGING_RING_H_
#define QUIRE_LOADER_STAGING_RING_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/driver.h"
#include "quire/alloc/units.h"

namespace quire {

class StagingRing {
 public:
  StagingRing(Driver* driver, DeviceId device, std::span<const Bytes> sizes);
  // REQUIRES: Close was called, or Open never was or failed.
  ~StagingRing() = default;
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  size_t buffers() const { return slots_.size(); }

  absl::Status Open();
  // The buffer, free to be written. Pins it at first use; later waits until
  // what was sealed has left it.
  absl::StatusOr<std::byte*> Acquire(size_t buffer);
  // Queues a copy of a part of the buffer.
  absl::Status Copy(size_t buffer, size_t offset, size_t size,
                    DeviceAddress to);
  // No more copies out of the buffer until it is acquired again.
  absl::Status Seal(size_t buffer);
  // Waits until everything queued is on the device.
  absl::Status Drain();
  // What is pinned now. Not while another thread is in Acquire.
  Bytes pinned() const;
  // Waits for what is in flight and gives everything back. Does all it can
  // where the driver fails, and returns the first error that a second attempt
  // did not get past. Where no call would confirm that the copies are over, the
  // buffers are kept, for good, and the error says so.
  absl::Status Close();

 private:
  struct Slot {
    Bytes size;
    void* memory = nullptr;
    std::optional<EventId> event;
    bool sealed = false;  // the event stands for copies out of the buffer
  };

  Driver* const driver_;
  const DeviceId device_;
  std::optional<StreamId> stream_;
  std::vector<Slot> slots_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_STAGING_RING_H_
