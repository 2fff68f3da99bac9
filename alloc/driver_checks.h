// What every driver checks of its arguments, so that all refuse the same misuse
// with the same words.

#ifndef QUIRE_ALLOC_DRIVER_CHECKS_H_
#define QUIRE_ALLOC_DRIVER_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "alloc/mapping_table.h"
#include "quire/alloc/units.h"

namespace quire {

// A stream or an event, named for messages, and where it lives.
struct StreamPlace {
  StreamId id;
  DeviceId device;
};
struct EventPlace {
  EventId id;
  DeviceId device;
};

absl::Status UnknownStream(StreamId stream);
absl::Status UnknownEvent(EventId event);

absl::Status CheckDevice(const char* call, DeviceId device, int device_count);
absl::Status CheckPageSize(Bytes size, uint64_t granularity);
absl::Status CheckPinnedSize(Bytes size);
absl::Status CheckHostPointer(const char* call, const void* host, Bytes size);
absl::Status CheckRecord(const EventPlace& event, const StreamPlace& stream);

// OK where all of the range is memory of the stream's device.
absl::Status CheckStreamAccess(const char* call, const MappingTable& table,
                               DeviceAddress address, Bytes size,
                               const StreamPlace& stream);
// OK where both ranges are memory, apart from each other, and at least one is
// of the stream's device.
absl::Status CheckDeviceCopy(const MappingTable& table, DeviceAddress to,
                             DeviceAddress from, Bytes size,
                             const StreamPlace& stream);

}  // namespace quire

#endif  // QUIRE_ALLOC_DRIVER_CHECKS_H_
