// A session's part of a device that several processes use: its handle of the
// memory ledger, and what binds the session's memory to it.

#ifndef QUIRE_MODEL_ENGINE_SHARED_DEVICE_H_
#define QUIRE_MODEL_ENGINE_SHARED_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/units.h"
#include "quire/model/session.h"
#include "quire/paging/memory_balloon.h"
#include "quire/paging/memory_ledger.h"

namespace quire {

class SharedDevice {
 public:
  // Registers as `name`, and claims room for the weights: kResourceExhausted
  // where others leave too little and do not give it back within seconds.
  // `longest` is what the longest sequence takes of KV memory: so much is
  // claimed ahead, as admissions find what is claimed and no more. `runtime`
  // must outlive it.
  static absl::StatusOr<std::unique_ptr<SharedDevice>> Join(
      Runtime* runtime, const SharingOptions& options, const std::string& name,
      Bytes weights, Bytes longest);
  // Claims room for so much more, and waits for others to give it back:
  // kResourceExhausted where they do not.
  absl::Status EnsureRoom(Bytes room) { return balloon_->EnsureRoom(room); }
  // REQUIRES: what was claimed has gone back to the driver.
  ~SharedDevice() = default;

 private:
  SharedDevice() = default;
  std::unique_ptr<MemoryLedger> ledger_;
  std::unique_ptr<MemoryBalloon> balloon_;  // destroyed first
};

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_SHARED_DEVICE_H_
