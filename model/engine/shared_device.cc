#include "model/engine/shared_device.h"

#include <chrono>

#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Programs that others wait for look at the ledger so often.
constexpr std::chrono::milliseconds kSyncInterval(20);
// Others come down at their next look, and give back what nothing uses.
constexpr std::chrono::milliseconds kPatience(2000);
// For workspaces, and for the growth of sequences between two looks.
constexpr Bytes kGrowth = MiB(64);

}  // namespace

absl::StatusOr<std::unique_ptr<SharedDevice>> SharedDevice::Join(
    Runtime* runtime, const SharingOptions& options, const std::string& name,
    Bytes weights, Bytes longest) {
  DeviceMemory* const memory = runtime->memory();
  QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo device,
                         runtime->driver()->GetMemoryInfo(memory->device()));
  std::unique_ptr<SharedDevice> shared(new SharedDevice());
  MemoryLedgerOptions ledger;
  if (options.ledger != kDefaultLedger) ledger.name = options.ledger;
  ledger.device = memory->device();
  ledger.budget = device.total;
  QUIRE_ASSIGN_OR_RETURN(shared->ledger_, MemoryLedger::Open(ledger));
  MemoryBalloonOptions balloon;
  balloon.name = name;
  balloon.min = options.min;
  balloon.claim_ahead = SaturatingAdd(longest, kGrowth);
  balloon.patience = kPatience;
  balloon.sync_interval = kSyncInterval;
  QUIRE_ASSIGN_OR_RETURN(
      shared->balloon_,
      MemoryBalloon::Create(memory, shared->ledger_.get(), balloon));
  for (const char* owner : {"weights", "kv"})
    QUIRE_RETURN_IF_ERROR(
        shared->balloon_->AddOwner(runtime->owners()->Register(owner)));
  // What is larger than all that is claimed cannot ask for more by itself.
  QUIRE_RETURN_IF_ERROR(
      shared->balloon_->EnsureRoom(SaturatingAdd(weights, kGrowth)));
  return shared;
}

}  // namespace quire
