// What bounds decoding with weights that come from the host.

#ifndef QUIRE_MODEL_CLI_OFFLOAD_BOUND_H_
#define QUIRE_MODEL_CLI_OFFLOAD_BOUND_H_

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/model/session.h"

namespace quire {

struct OffloadBound {
  // Of copies to the device, nothing else running.
  double copy_bytes_per_second = 0;
  // In which a step's bytes move, and nothing is computed: its weights are read
  // by the session's threads while what it streams is copied to the device.
  double seconds_per_step = 0;
};

// Measured now, the best of several, on memory of its own: 64 MiB of the host
// and as much of the device. REQUIRES: nothing runs in the session.
absl::StatusOr<OffloadBound> MeasureOffloadBound(Session* session,
                                                 Bytes read_per_step,
                                                 Bytes streamed_per_step);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_OFFLOAD_BOUND_H_
