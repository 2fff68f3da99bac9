// The driver seam: everything Quire asks of a device, in about twenty calls.
//
// Nothing above this interface knows CUDA. Implementations: CudaDriver (the
// NVIDIA driver, loaded at run time), HostDriver (a software device of any
// size), FaultyDriver (wraps another; fails, delays or limits).
//
// The calls are those of CUDA's virtual memory management, less what every
// caller would have to repeat: a mapping is made and its access is set in one
// call, for a whole contiguous run, all or nothing.
//
// Errors (absl::StatusCode):
//   kInvalidArgument      a device, size, alignment or address that the call
//                         cannot take: outside of reservations, not mapped
//                         where it is to be read or written, of a device other
//                         than the stream's
//   kNotFound             a handle, stream or event that does not exist
//   kFailedPrecondition   the state forbids it: mapped twice, unmap of part of
//                         a page or of a gap, release of addresses still mapped
//   kResourceExhausted    out of physical memory, of addresses or of kernel
//                         mappings; the message says which
//   kDataLoss             a rollback was refused too: the range is quarantined
//                         and will not be handed out again
//   kUnavailable          no driver, no device
// A failed call changes nothing, kDataLoss apart.
//
// Thread safety: every call may be made from any thread at any time. Calls on
// one stream, event, address range or page must be ordered by the caller.
//
// Stream order: Map, Unmap, CreatePage and ReleasePage are *not* stream
// ordered. The caller must know that every use of the memory has finished.

#ifndef QUIRE_ALLOC_DRIVER_H_
#define QUIRE_ALLOC_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

struct DeviceInfo {
  std::string name;
  Bytes total_memory;
  // Sizes of pages and of mapped ranges are multiples of this.
  Bytes minimum_granularity;
  // The page size that the device's TLB likes best.
  Bytes recommended_granularity;
};

// What the device has now, seen from this process.
struct DeviceMemoryInfo {
  Bytes free;
  Bytes total;
};

// How often each call was made, and what time it took (on the virtual clock
// where there is one). The struct is a copy: reading it locks nothing.
struct DriverCallStatistics {
  struct Call {
    const char* name;  // static storage
    uint64_t count;
    uint64_t failed;
    uint64_t nanoseconds;
  };
  std::vector<Call> calls;

  uint64_t total_count() const;
  // 0 for names that are none of the calls.
  uint64_t CountOf(std::string_view name) const;
  uint64_t total_nanoseconds() const;
};

class Driver {
 public:
  Driver() = default;
  virtual ~Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // "host", "cuda".
  virtual std::string name() const = 0;
  // True where a DeviceAddress may be read and written by the host as a
  // pointer, after the stream that wrote it was synchronised.
  virtual bool device_memory_is_host_memory() const = 0;

  virtual int device_count() const = 0;
  virtual absl::StatusOr<DeviceInfo> GetDeviceInfo(DeviceId device) = 0;
  virtual absl::StatusOr<DeviceMemoryInfo> GetMemoryInfo(DeviceId device) = 0;

  // ---- Addresses ----
  // Reserves addresses without memory. REQUIRES: size is a multiple of the
  // minimum granularity; alignment is 0 (granularity) or a power of two.
  virtual absl::StatusOr<DeviceAddress> ReserveAddress(Bytes size,
                                                       Bytes alignment) = 0;
  // REQUIRES: exactly a reserved range, with nothing mapped in it.
  virtual absl::Status ReleaseAddress(DeviceAddress address, Bytes size) = 0;

  // ---- Physical pages ----
  virtual absl::StatusOr<PageHandle> CreatePage(DeviceId device,
                                                Bytes size) = 0;
  // The memory returns to the device when the last mapping is gone as well.
  virtual absl::Status ReleasePage(PageHandle page) = 0;

  // Maps `pages` side by side from `address` on and gives their own device (and
  // every enabled peer) read and write access: one access call for the run.
  // REQUIRES: the range lies in one reservation and nothing is mapped in it;
  // all pages are of one device. One page may be mapped at several addresses.
  // All or nothing.
  virtual absl::Status Map(DeviceAddress address,
                           std::span<const PageHandle> pages) = 0;
  // REQUIRES: the range covers whole mapped pages only, without gaps.
  virtual absl::Status Unmap(DeviceAddress address, Bytes size) = 0;

  // ---- Streams and events ----
  virtual absl::StatusOr<StreamId> CreateStream(DeviceId device) = 0;
  // A number for a stream that the program made itself: a CUstream, which is
  // also a cudaStream_t; null is the device's default stream. The same one for
  // the same stream, until it is destroyed here. The stream must live until
  // then. Errors: kUnavailable where the driver has no other streams than its
  // own.
  virtual absl::StatusOr<StreamId> AdoptStream(DeviceId /*device*/,
                                               void* /*stream*/) {
    return absl::UnavailableError(name() + " has no streams to adopt");
  }
  // Waits for the work queued on the stream. What was adopted is forgotten, and
  // stays with whoever made it.
  virtual absl::Status DestroyStream(StreamId stream) = 0;
  virtual absl::Status SynchronizeStream(StreamId stream) = 0;

  virtual absl::StatusOr<EventId> CreateEvent(DeviceId device) = 0;
  virtual absl::Status DestroyEvent(EventId event) = 0;
  // The event completes when all work queued on `stream` before is done.
  // Recording again moves the event. REQUIRES: both are of one device.
  virtual absl::Status RecordEvent(EventId event, StreamId stream) = 0;
  // True where the event has completed, or was never recorded.
  virtual absl::StatusOr<bool> QueryEvent(EventId event) = 0;
  virtual absl::Status SynchronizeEvent(EventId event) = 0;
  // Later work on `stream` waits for the event.
  virtual absl::Status WaitEvent(StreamId stream, EventId event) = 0;

  // ---- Work ----
  // Asynchronous in stream order; what is wrong with the arguments is found at
  // the call. Host memory must stay valid, and unchanged, until the stream has
  // passed the call. REQUIRES: the device memory is mapped, and of the stream's
  // device; of the two ends of CopyOnDevice, which may not overlap, one is, and
  // the other may be a peer's.
  virtual absl::Status CopyToDevice(DeviceAddress to, const void* from,
                                    Bytes size, StreamId stream) = 0;
  virtual absl::Status CopyToHost(void* to, DeviceAddress from, Bytes size,
                                  StreamId stream) = 0;
  virtual absl::Status CopyOnDevice(DeviceAddress to, DeviceAddress from,
                                    Bytes size, StreamId stream) = 0;
  virtual absl::Status Fill(DeviceAddress to, uint8_t value, Bytes size,
                            StreamId stream) = 0;
  // Runs `function` in stream order on a thread of the driver. It must not call
  // the driver.
  virtual absl::Status LaunchHostFunction(StreamId stream,
                                          std::function<void()> function) = 0;

  // ---- Pinned host memory ----
  virtual absl::StatusOr<void*> AllocatePinned(Bytes size) = 0;
  virtual absl::Status FreePinned(void* memory) = 0;
  // Pins memory that the caller has already, where it is; it stays the
  // caller's, who unpins it before giving it back. REQUIRES: whole pages of the
  // host, all of them mapped and none of them pinned. Errors: kResourceExhausted
  // where the system lets no more be pinned.
  virtual absl::Status PinMemory(void* memory, Bytes size) = 0;
  // REQUIRES: the start of what PinMemory pinned, and no copy from or to it
  // that is still queued.
  virtual absl::Status UnpinMemory(void* memory) = 0;

  virtual DriverCallStatistics GetCallStatistics() const = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_DRIVER_H_
