#include "alloc/driver_checks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status WrongDevice(const char* call, DeviceAddress address,
                         DeviceId memory_device, const StreamPlace& stream) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %#x is memory of device %d, stream %d is of device %d", call,
      address.value(), memory_device.value(), stream.id.value(),
      stream.device.value()));
}

absl::StatusOr<DeviceId> CheckMapped(const char* call,
                                     const MappingTable& table,
                                     DeviceAddress address, Bytes size) {
  auto device = table.CheckAccess(address.value(), size.value());
  if (device.ok()) return device;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s", call, std::string(device.status().message())));
}

}  // namespace

absl::Status UnknownStream(StreamId stream) {
  return absl::NotFoundError(absl::StrFormat(
      "stream %d does not exist or was destroyed", stream.value()));
}

absl::Status UnknownEvent(EventId event) {
  return absl::NotFoundError(absl::StrFormat(
      "event %d does not exist or was destroyed", event.value()));
}

absl::Status CheckDevice(const char* call, DeviceId device, int device_count) {
  if (device.value() >= 0 && device.value() < device_count) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: no device %d; there are %d", call, device.value(), device_count));
}

absl::Status CheckPageSize(Bytes size, uint64_t granularity) {
  if (!size.zero() && size.value() % granularity == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "CreatePage: size %d is not a positive multiple of the granularity %d",
      size.value(), granularity));
}

absl::Status CheckPinnedSize(Bytes size) {
  if (!size.zero()) return absl::OkStatus();
  return absl::InvalidArgumentError("AllocatePinned: the size is 0");
}

absl::Status CheckHostPointer(const char* call, const void* host, Bytes size) {
  if (host != nullptr || size.zero()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: the host address is null", call));
}

absl::Status CheckRecord(const EventPlace& event, const StreamPlace& stream) {
  if (event.device == stream.device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "RecordEvent: event %d is of device %d, stream %d of device %d",
      event.id.value(), event.device.value(), stream.id.value(),
      stream.device.value()));
}

absl::Status CheckStreamAccess(const char* call, const MappingTable& table,
                               DeviceAddress address, Bytes size,
                               const StreamPlace& stream) {
  QUIRE_ASSIGN_OR_RETURN(const DeviceId device,
                         CheckMapped(call, table, address, size));
  if (device != stream.device) {
    return WrongDevice(call, address, device, stream);
  }
  return absl::OkStatus();
}

absl::Status CheckDeviceCopy(const MappingTable& table, DeviceAddress to,
                             DeviceAddress from, Bytes size,
                             const StreamPlace& stream) {
  QUIRE_ASSIGN_OR_RETURN(const DeviceId to_device,
                         CheckMapped("CopyOnDevice", table, to, size));
  QUIRE_ASSIGN_OR_RETURN(const DeviceId from_device,
                         CheckMapped("CopyOnDevice", table, from, size));
  if (to_device != stream.device && from_device != stream.device) {
    return WrongDevice("CopyOnDevice", to, to_device, stream);
  }
  const uint64_t distance =
      std::max(to.value(), from.value()) - std::min(to.value(), from.value());
  if (distance < size.value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("CopyOnDevice: %s and %s overlap",
                        FormatRange(to.value(), size.value()),
                        FormatRange(from.value(), size.value())));
  }
  return absl::OkStatus();
}

}  // namespace quire
