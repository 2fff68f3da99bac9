// What DeviceMemory tells its hooks, and what it asks of them.

#include <optional>

#include "alloc/device_memory_impl.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/verdict.h"

namespace quire {

HookDeferral::HookDeferral(DeviceMemory* memory)
    : scope_(std::make_unique<HookScope>(memory->impl_->dispatcher())) {}
HookDeferral::~HookDeferral() = default;

void DeviceMemory::Impl::AddHooks(MemoryHooks* hooks) {
  dispatcher_.hooks().Add(hooks);
  MutexLock lock(&mutex_);
  events_.set_enabled(true);
}

void DeviceMemory::Impl::RemoveHooks(MemoryHooks* hooks) {
  dispatcher_.hooks().Remove(hooks);
  MutexLock lock(&mutex_);
  events_.set_enabled(!dispatcher_.hooks().empty());
}

bool DeviceMemory::Impl::AskOutOfMemoryHooks(const absl::Status& status) {
  const auto verdict = OutOfMemoryVerdict::FromStatus(status);
  if (!verdict) return false;
  // More than a limit is not to be had, whatever is given up for it, unless it
  // is raised: that of the memory is, by who says so.
  if (verdict->owner_limit && verdict->requested > verdict->owner_limit->limit)
    return false;
  return !dispatcher_.OutOfMemory(*verdict).zero();
}

void DeviceMemory::Impl::SetGauge() {
  gauge_.SetLimits(soft_limit_, backing_.pool().limit(), thresholds_);
}

void DeviceMemory::Impl::UpdatePressure() {
  const PageAccounts& accounts = backing_.accounts();
  const uint64_t used =
      accounts.live() + accounts.cooling() + backing_.quarantined();
  const PressureLevel before = gauge_.level();
  if (gauge_.Update(used)) {
    pressure_.store(gauge_.level(), std::memory_order_relaxed);
    events_.Add(PressureChange{std::nullopt, before, gauge_.level(),
                               PageBytes(used), LimitBytes(gauge_.limit())});
  }
  // The lambda is not seen to run under the lock.
  EventLog* const events = &events_;
  backing_.owners().UpdatePressure([&](OwnerId owner,
                                       const OwnerAccount& account,
                                       PressureLevel owner_before) {
    events->Add(PressureChange{owner, owner_before, account.gauge.level(),
                               PageBytes(account.live),
                               LimitBytes(account.gauge.limit())});
  });
}

}  // namespace quire
